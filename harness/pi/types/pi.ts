/** The extension is one for Pi. */
import type { ExtensionAPI } from "@earendil-works/pi-coding-agent";
import plyfs from "../src/index.ts";

export const pi: (pi: ExtensionAPI) => void = plyfs;
