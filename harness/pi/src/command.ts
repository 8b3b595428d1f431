/** Running the `plyfs` command, which is done to serve or unmount a workspace and never in a turn. */
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { Failure } from "./failure.ts";

/** The words that start plyfs: as the environment says, as `plyfs install` has noted beside this package, or by name. */
export function commandWords(env: NodeJS.ProcessEnv = process.env): string[] {
  if (env.PLYFS_COMMAND) return env.PLYFS_COMMAND.split(" ").filter(Boolean);
  try {
    const words: unknown = JSON.parse(readFileSync(new URL("../command.json", import.meta.url), "utf8"));
    if (Array.isArray(words) && words.length > 0 && words.every((one) => typeof one === "string")) return words;
  } catch {
    // Installed by the agent's own package manager.
  }
  return ["plyfs"];
}

/** The object that a command prints with `--json`. Raises what it gives as its error, told in `language`. */
export function run<T>(args: string[], language: "en" | "zh-CN"): Promise<T> {
  const [program, ...words] = commandWords();
  return new Promise((resolve, reject) => {
    const child = spawn(program as string, [...words, ...args, "--json"], {
      cwd: "/",
      env: { ...process.env, PLYFS_ERROR_LANGUAGE: language },
      stdio: ["ignore", "pipe", "pipe"],
    });
    let out = "";
    let err = "";
    child.stdout.setEncoding("utf8").on("data", (text: string) => {
      out += text;
    });
    child.stderr.setEncoding("utf8").on("data", (text: string) => {
      err += text;
    });
    child.on("error", (error: NodeJS.ErrnoException) => {
      const missing = error.code === "ENOENT";
      reject(
        missing
          ? Failure.own("notInstalled", program as string)
          : new Failure("failed", error.message),
      );
    });
    child.on("close", () => {
      try {
        const value = JSON.parse(out);
        if (value.error) reject(Failure.from(value.error));
        else resolve(value as T);
      } catch {
        reject(err.trim() ? new Failure("failed", err.trim()) : Failure.own("noAnswer", args[0] as string));
      }
    });
  });
}

/** Have a command run after this process has ended, because its own directory may be what keeps a mount busy. */
export function runAfterUs(args: string[]): void {
  const words = [...commandWords(), ...args];
  const [program, ...rest] = process.platform === "win32" ? afterOnWindows(words) : afterOnPosix(words);
  spawn(program as string, rest, { cwd: "/", detached: true, stdio: "ignore", windowsHide: true }).unref();
}

function afterOnPosix(words: string[]): string[] {
  // Something that the agent had started may be in the directory a little longer: exit code 4.
  const script =
    'pid=$1; shift; while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done; ' +
    'for pause in 1 2 4 8 16 32; do "$@"; [ $? -eq 4 ] || exit; sleep $pause; done; exec "$@"';
  return ["/bin/sh", "-c", script, "plyfs-after", String(process.pid), ...words];
}

function afterOnWindows(words: string[]): string[] {
  const quoted = words.map((word) => `'${word.replaceAll("'", "''")}'`).join(" ");
  const script = `Wait-Process -Id ${process.pid} -ErrorAction SilentlyContinue; & ${quoted}`;
  return ["powershell.exe", "-NoProfile", "-NonInteractive", "-Command", script];
}
