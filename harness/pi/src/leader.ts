/**
 * For which session an agent works: a sub-agent, in this process or in one that was started from here, is told so by the
 * environment. What it changes is the doing of the session that started it, and is undone with that.
 *
 * Somebody who sits in front of an agent is nobody's sub-agent, wherever it was started from.
 */
import type { Context } from "./agent.ts";
import { isAlive } from "./registry.ts";

const NAME = "PLYFS_SESSION";

/** The session that the one with the id `own` works for. */
export function leaderOf(ctx: Context, own: string, env: NodeJS.ProcessEnv = process.env): string | undefined {
  if (ctx.hasUI) return undefined;
  const [, id, pid] = /^(.+)@(\d+)$/.exec(env[NAME] ?? "") ?? [];
  if (id === undefined || id === own || !isAlive(Number(pid))) return undefined;
  return id;
}

/** From now on sub-agents work for `own`. */
export function lead(own: string, env: NodeJS.ProcessEnv = process.env): void {
  env[NAME] = `${own}@${process.pid}`;
}

/** No longer. */
export function follow(own: string, env: NodeJS.ProcessEnv = process.env): void {
  if (env[NAME] === `${own}@${process.pid}`) delete env[NAME];
}
