/** The badge in the agent's status line: the mode, what is unsaved, and whether something is wrong. */
import type { Context } from "./agent.ts";
import type { Words } from "./language.ts";
import type { Workspace } from "./workspace.ts";

const KEY = "plyfs";

export function badgeText(workspace: Workspace, words: Words): string {
  switch (workspace.life) {
    case "off":
      return `plyfs ${words.badgeOff}`;
    case "starting":
      return `plyfs ${words.badgeStarting}`;
    case "dead":
      return `plyfs ✗ ${words.badgeDead}`;
    case "absent":
      return workspace.failure ? `plyfs ✗ ${words.badgeTrouble}` : `plyfs ${words.badgeOff}`;
    case "serving": {
      const parts = ["plyfs", workspace.mode];
      if (workspace.unsaved > 0) parts.push(words.badgeChanges(workspace.unsaved));
      if (workspace.failure || workspace.problems.length > 0) parts.push(`✗ ${words.badgeTrouble}`);
      else parts.push("✓");
      return parts.join(" ");
    }
  }
}

export class Badge {
  /** What is shown; at first that is not known, because the agent may still show what was there before a reload. */
  #last: string | undefined | null = null;

  show(ctx: Context, workspace: Workspace, words: Words): void {
    const text = workspace.settings.badge ? badgeText(workspace, words) : undefined;
    if (text === this.#last) return;
    this.#last = text;
    ctx.ui.setStatus(KEY, text);
  }
}
