/**
 * The tree of a session, as far as plyfs reads it; and *pins*, its own entries in it.
 *
 * A pin keeps the place to which the conversation was moved (an agent that starts again is at the entry written last),
 * gives the files that are there a node of their own, and names where /redo leads. It holds nothing but ids, so all of
 * this survives a restart, and nothing has to be kept in memory.
 */
import { readFileSync } from "node:fs";
import type { Agent, Context, Entry, SessionManager } from "./agent.ts";

export const PIN = "plyfs";

const REDO_MAX = 1000;

interface Pin {
  redo?: string[];
}

export function leafOf(ctx: Context): string | undefined {
  return ctx.sessionManager.getLeafId() ?? undefined;
}

export function entryOf(manager: SessionManager, id: string): Entry | undefined {
  return manager.getEntry(id) as Entry | undefined;
}

/** The entries from the first to `from` (the leaf). */
export function branchOf(manager: SessionManager, from?: string): Entry[] {
  return (from === undefined ? manager.getBranch() : manager.getBranch(from)) as Entry[];
}

/** An entry and its ancestors, nearest first. */
export function lineOf(manager: SessionManager, from: string | undefined): string[] {
  if (from === undefined) return [];
  return branchOf(manager, from)
    .map((entry) => entry.id)
    .reverse();
}

export function isPrompt(entry: Entry): boolean {
  return entry.type === "message" && entry.message?.role === "user";
}

/** True for a command that the person ran, and its output. */
export function isExecution(entry: Entry): boolean {
  return entry.type === "message" && /Execution$/.test(entry.message?.role ?? "");
}

/** The text of a prompt, to be edited and sent again. */
export function textOf(entry: Entry): string {
  const content = entry.message?.content;
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content
    .filter((part) => part?.type === "text")
    .map((part) => part.text)
    .join("\n");
}

/** Where /redo leads from an entry, nearest first. A prompt stands for the point just before it. */
export function redoOf(entry: Entry | undefined): string[] {
  if (entry?.type !== "custom" || entry.customType !== PIN) return [];
  const redo: unknown = (entry.data as Pin | undefined)?.redo;
  return Array.isArray(redo) ? redo.filter((id) => typeof id === "string") : [];
}

/** Pin the leaf; the new entry's id. */
export function pin(agent: Agent, ctx: Context, redo: string[] = []): string | undefined {
  agent.appendEntry(PIN, redo.length === 0 ? {} : { redo: redo.slice(0, REDO_MAX) });
  return leafOf(ctx);
}

/** True if an agent that starts again would be somewhere else. */
export function isLeafForgotten(manager: SessionManager): boolean {
  const entries = manager.getEntries() as Entry[];
  return (entries.at(-1)?.id ?? null) !== manager.getLeafId();
}

/** The id of the session that this one was forked off. */
export function parentOf(manager: SessionManager): string | undefined {
  const header = manager.getHeader() as { id?: string; parentSession?: string } | null;
  const parent = header?.parentSession;
  if (!parent) return undefined;
  if (!parent.endsWith(".jsonl")) return parent;
  try {
    const first = readFileSync(parent, "utf8").split("\n", 1)[0] as string;
    const id: unknown = JSON.parse(first).id;
    if (typeof id === "string") return id;
  } catch {
    // The parent's file is gone; the name below still has its id.
  }
  return /_([0-9a-f-]{8,})\.jsonl$/.exec(parent)?.[1];
}
