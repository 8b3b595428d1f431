/**
 * Which workspaces are served now, and at which socket: the runtime directory that docs/protocol.md describes.
 *
 * Looks at nothing below a served directory, because a mount whose daemon has died would answer nothing, or never.
 */
import { readFileSync, readlinkSync, realpathSync } from "node:fs";
import { homedir } from "node:os";
import { dirname, join, resolve } from "node:path";

export interface Served {
  workspace: string;
  mountpoint: string;
  /** A path; or `127.0.0.1:PORT`, which asks for the token. */
  socket: string;
  token: string | null;
  pid: number;
  mode: string;
  state: string;
}

const LINKS_MAX = 40;

/** The root of the store and of the runtime directory. */
export function homeDirectory(env: NodeJS.ProcessEnv = process.env): string {
  if (env.PLYFS_HOME) return resolve(env.PLYFS_HOME);
  if (process.platform === "darwin") return join(homedir(), "Library", "Application Support", "plyfs");
  if (process.platform === "win32") return join(env.LOCALAPPDATA ?? join(homedir(), "AppData", "Local"), "plyfs");
  return join(env.XDG_STATE_HOME || join(homedir(), ".local", "state"), "plyfs");
}

/** The 64-bit FNV-1a hash of `path` in hexadecimal. */
export function keyOf(path: string): string {
  let value = 0xcbf29ce484222325n;
  for (const byte of Buffer.from(path)) value = ((value ^ BigInt(byte)) * 0x100000001b3n) & 0xffffffffffffffffn;
  return value.toString(16).padStart(16, "0");
}

function read(path: string, env: NodeJS.ProcessEnv): Served | undefined {
  try {
    const entry = JSON.parse(readFileSync(join(homeDirectory(env), "run", `${keyOf(path)}.json`), "utf8"));
    if (path === entry.workspace || path === entry.mountpoint) return entry as Served;
  } catch {
    // Not served, or an entry of another version.
  }
  return undefined;
}

/** True if there is such a process. */
export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}

/** True if it is about to go, because somebody wanted that. */
export function isLeaving(served: Served): boolean {
  return served.state === "stopping" && isAlive(served.pid);
}

/** What serves `path`: the outermost of the directories above it, or itself. */
export function find(path: string, env: NodeJS.ProcessEnv = process.env): Served | undefined {
  if (process.platform === "win32") return findByRealPath(path, env);
  const waiting = path.split("/").filter(Boolean).reverse();
  let done = "/";
  let links = 0;
  while (waiting.length > 0) {
    const part = waiting.pop() as string;
    if (part === ".") continue;
    if (part === "..") {
      done = dirname(done);
      continue;
    }
    const step = join(done, part);
    const entry = read(step, env);
    if (entry) return entry;
    let target: string;
    try {
      target = readlinkSync(step);
    } catch {
      done = step;
      continue;
    }
    if (++links > LINKS_MAX) return undefined;
    waiting.push(...target.split("/").filter(Boolean).reverse());
    if (target.startsWith("/")) done = "/";
  }
  return undefined;
}

/** As `find`, where no mount can hang, and a path has many spellings. */
function findByRealPath(path: string, env: NodeJS.ProcessEnv): Served | undefined {
  let found: Served | undefined;
  let step = realpathSync.native(path);
  for (;;) {
    found = read(step, env) ?? found;
    const above = dirname(step);
    if (above === step) return found;
    step = above;
  }
}
