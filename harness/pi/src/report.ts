/** What /plyfs shows: where the workspace stands, its checkpoints, what is wrong, what is set. */
import type { Level } from "./agent.ts";
import type { Holdups } from "./holdups.ts";
import type { Words } from "./language.ts";
import type { Status } from "./answers.ts";
import type { Workspace } from "./workspace.ts";

const REPORTS = ["", "status", "log", "health", "settings"];

/** Is there a report of that name? */
export function isReport(name: string): boolean {
  return REPORTS.includes(name);
}

/** A report, and how grave it is. */
export async function report(
  name: string,
  workspace: Workspace,
  session: string,
  words: Words,
  holdups: Holdups,
): Promise<[string, Level]> {
  if (name === "log") return [await graphOf(workspace, session), "info"];
  if (name === "settings") {
    await workspace.reload();
    return [JSON.stringify(workspace.settings, null, 2), "info"];
  }
  const { health, head, changed, mode, workspace: path } = await workspace.call<Status>("status");
  if (name !== "health") {
    return [[words.serves(path, mode), words.statusHead(head, changed), ...health].join("\n"), "info"];
  }
  const wrong = [...health, ...(workspace.failure ? [workspace.failure.in(words)] : [])];
  const lines = wrong.length > 0 ? wrong : [words.healthy];
  const held = words.heldUp(Math.round(holdups.longest), holdups.hook);
  return [[...lines, held].join("\n"), wrong.length > 0 ? "warning" : "info"];
}

interface Row {
  id: string;
  parent: string | null;
  time: number;
  label: string | null;
  session: string | null;
  changed: number;
}

/** The newest checkpoints, newest first; `*` is the head, `|` stands where they are this session's. */
async function graphOf(workspace: Workspace, session: string): Promise<string> {
  const log = await workspace.call<{ head: string; checkpoints: Row[] }>("log");
  const rows = log.checkpoints.slice(-30).reverse();
  return rows
    .map((row) => {
      const mark = row.id === log.head ? "*" : row.session === session ? "|" : ":";
      const time = new Date(row.time * 1000).toISOString().slice(5, 19).replace("T", " ");
      return `${mark} ${row.id}  ${time}  ~${row.changed}  ${row.label ?? ""}`.trimEnd();
    })
    .join("\n");
}
