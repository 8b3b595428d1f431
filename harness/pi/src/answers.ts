/** What the daemon answers, as far as the extension reads it (docs/protocol.md). */
export interface Change {
  path: string;
  kind: "create" | "overwrite" | "delete" | "rename" | "type" | "mode";
  from?: string;
}

export interface Restored {
  head: string;
  from: string;
  saved: string | null;
  changes: Change[];
  kept: { path: string; reason: string }[];
  fingerprint: string;
}

export interface Captured {
  id: string;
  parent: string | null;
  created: boolean;
  changed: number;
  state: string | null;
  recorded: boolean;
  changes: Change[];
}

export interface Status {
  workspace: string;
  mode: string;
  head: string;
  changed: number;
  store_bytes: number;
  health: string[];
}
