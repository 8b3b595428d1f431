/** What plyfs says, in English. Other languages have the same keys. */
import type { Change } from "../answers.ts";

const differ = (count: number): string => `${several(count, "file")} ${count === 1 ? "differs" : "differ"}`;
const several = (count: number, one: string): string => `${count} ${one}${count === 1 ? "" : "s"}`;

export const en = {
  undoAbout: "Go back before the last prompt, conversation and files: /undo [n] [files|chat]",
  redoAbout: "Go forward again: /redo [n] [files|chat]",
  driftAbout: "What restoring the files of this point would change now",
  restoreAbout: "Bring files back to this point, an entry or a checkpoint: /restore [id] [path...] [--yes]",
  plyfsAbout: "plyfs: /plyfs [status|log|health|settings|doctor], and /plyfs undo, redo, drift, restore",

  badgeChanges: (count: number) => `+${count}`,
  badgeStarting: "starting",
  badgeOff: "off",
  badgeDead: "daemon died: /plyfs doctor",
  badgeTrouble: "trouble: /plyfs health",

  nothingToUndo: "plyfs: nothing to undo: no prompt lies before this point",
  nothingToRedo: "plyfs: nothing to redo: nothing was undone here; /tree shows every point",
  wentOn: "plyfs: nothing to redo: the conversation has gone on since the undo; /tree shows every point",
  notAnArgument: (word: string, usage: string) => `plyfs: nothing was done: what is ${word}?\n${usage}`,
  waits: "plyfs: that waits until the agent has finished; Escape ends what it does",
  slow: "plyfs: still waiting for the daemon; nothing is done before it answers",
  undone: (steps: number, files: number) =>
    `plyfs: went back ${several(steps, "prompt")}; ${several(files, "file")} restored. /redo returns`,
  redone: (files: number) => `plyfs: went forward; ${several(files, "file")} restored`,
  chatOnly: "plyfs: the conversation moved, the files stay as they are",
  filesOnly: (files: number) => `plyfs: ${several(files, "file")} restored; the conversation stays where it is`,
  noState: "plyfs: no state of the files was recorded at that point, so they stay as they are",
  restored: (files: number) => `plyfs: ${several(files, "file")} restored`,
  nothingToRestore: "plyfs: the files are as this point left them",
  saved: (id: string, paths: string) => `plyfs: edits made since the last turn are kept in checkpoint ${id}: ${paths}`,
  kept: (paths: string) => `plyfs: kept, because another session changed them since: ${paths}`,
  moved: "plyfs: the files changed while you looked; nothing was done. Look at the new preview",
  movedAfter: "plyfs: the files changed meanwhile and stay as they are; /restore brings back those of this point",
  cancelled: "plyfs: nothing was done",
  moveFailed: (why: string) => `plyfs: the conversation could not be moved (${why}); the files are as before`,

  previewTitle: (count: number) => `Going there changes ${several(count, "file")}:`,
  restoreTitle: (count: number) => `Restoring changes ${several(count, "file")}:`,
  reopenTitle: (count: number) => `${differ(count)} from what this point of the session left:`,
  keepFiles: "Keep the files, move the conversation alone",
  keepNow: "Keep the files as they are",
  restoreToo: "Restore the files too",
  restoreNow: "Restore the files",
  andMore: (count: number) => `... and ${count} more`,
  keys: "↑/↓ choose, ←/→ scroll, Enter takes it, Escape cancels",
  kinds: {
    create: "create",
    overwrite: "overwrite",
    delete: "delete",
    rename: "rename",
    type: "change type",
    mode: "change mode",
  } satisfies Record<Change["kind"], string>,

  reopenWaits: (count: number) =>
    `plyfs: ${differ(count)} from what this point left; /drift lists them, /restore brings them back`,
  noDrift: "plyfs: the files are as this point left them",
  driftIs: (count: number) => `plyfs: restoring this point would change ${several(count, "file")}:`,

  clash: (taken: string, ours: string) => `plyfs: ${taken}: another extension has that too; plyfs answers to ${ours}`,

  mountAsk: "Serve this directory with plyfs?",
  mountWhy: "Then /undo, /redo and /tree move the files together with the conversation.",
  scansAsSet: "plyfs: the directory is scanned, as is set: large files and ignored ones may be left out",
  scanning: "plyfs: FUSE cannot be had here, so the directory is scanned: large files and ignored ones may be left out",
  serves: (workspace: string, mode: string) => `plyfs serves ${workspace} (${mode})`,
  statusHead: (head: string, changed: number) =>
    `head ${head}, ${changed === 0 ? "nothing unsaved" : `${several(changed, "unsaved change")}`}`,
  healthy: "plyfs: all is well",
  heldUp: (ms: number, hook: string) => `the longest that the agent has waited for plyfs: ${ms} ms (${hook})`,
  mended: "plyfs: mended",
  failures: {
    notInstalled: (program: string): [string, string] => [`there is no command ${program}`, "pip install plyfs"],
    noAnswer: (command: string): [string, string] => [`plyfs ${command} gave no answer`, ""],
    daemonGone: (path: string): [string, string] => [`no daemon listens at ${path}`, "/plyfs doctor"],
    daemonDied: (path: string): [string, string] => [`the daemon of ${path} has gone away`, "/plyfs doctor"],
    daemonSilent: (path: string): [string, string] => [
      `the daemon of ${path} does not answer`,
      "it may have much to do; `plyfs status` in a shell tells whether it comes back",
    ],
    protocol: (version: string): [string, string] => [`the daemon speaks protocol ${version}`, "plyfs unmount"],
    notServed: (path: string): [string, string] => [`plyfs does not serve ${path}`, `plyfs mount ${path}`],
  },
  failed: (message: string, hint: string) => `plyfs: ${message}${hint ? `\nhint: ${hint}` : ""}`,
};

export type Words = typeof en;
