/** What /plyfs log shows: the checkpoints of a workspace, one a line. */
import type { Workspace } from "./workspace.ts";

interface Row {
  id: string;
  parent: string | null;
  time: number;
  label: string | null;
  session: string | null;
  changed: number;
}

/** The newest checkpoints, newest first; `*` is the head, `|` stands where they are this session's. */
export async function graphOf(workspace: Workspace, session: string): Promise<string> {
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
