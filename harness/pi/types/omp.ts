/** The extension is one for Oh My Pi. */
import type { ExtensionAPI } from "@oh-my-pi/pi-coding-agent";
import plyfs from "../src/index.ts";

export const omp: (omp: ExtensionAPI) => void = plyfs;
