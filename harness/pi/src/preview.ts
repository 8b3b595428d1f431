/** What is about to change, shown to be decided on: the safe choice first, Escape cancels, a long list scrolls. */
import type { Component, Context, Terminal, Theme } from "./agent.ts";
import type { Words } from "./language.ts";
import { clipped, shown } from "./width.ts";
import type { Change } from "./answers.ts";

const LISTED_MAX = 20;
const ROWS = 12;
const SIGNS: Record<Change["kind"], string> = {
  delete: "-",
  overwrite: "~",
  rename: ">",
  create: "+",
  type: "!",
  mode: "%",
};
const COLOURS: Record<Change["kind"], "error" | "warning" | "success" | "muted"> = {
  delete: "error",
  overwrite: "warning",
  rename: "warning",
  create: "success",
  type: "warning",
  mode: "muted",
};
const ORDER: Change["kind"][] = ["delete", "overwrite", "type", "rename", "create", "mode"];

/** What loses most first. */
export function sorted(changes: Change[]): Change[] {
  return [...changes].sort((a, b) => ORDER.indexOf(a.kind) - ORDER.indexOf(b.kind) || (a.path < b.path ? -1 : 1));
}

export function lineOfChange(change: Change, words: Words): string {
  const name = change.from === undefined ? shown(change.path) : `${shown(change.from)} -> ${shown(change.path)}`;
  return `${SIGNS[change.kind]} ${words.kinds[change.kind]} ${name}`;
}

/** The first lines of a list, for where nothing scrolls. */
export function listOf(changes: Change[], words: Words, most = LISTED_MAX): string {
  const lines = sorted(changes)
    .slice(0, most)
    .map((change) => `  ${lineOfChange(change, words)}`);
  if (changes.length > most) lines.push(`  ${words.andMore(changes.length - most)}`);
  return lines.join("\n");
}

/** Names in one line. */
export function namesOf(changes: { path: string }[], most = 5): string {
  const names = changes.slice(0, most).map((change) => shown(change.path));
  return names.join(", ") + (changes.length > most ? `, +${changes.length - most}` : "");
}

class Preview implements Component {
  #top = 0;
  #chosen = 0;
  readonly #title: string;
  readonly #changes: Change[];
  readonly #choices: string[];
  readonly #words: Words;
  readonly #terminal: Terminal;
  readonly #theme: Theme;
  readonly #done: (choice: number) => void;

  constructor(
    title: string,
    changes: Change[],
    choices: string[],
    words: Words,
    terminal: Terminal,
    theme: Theme,
    done: (choice: number) => void,
  ) {
    this.#title = title;
    this.#changes = sorted(changes);
    this.#choices = choices;
    this.#words = words;
    this.#terminal = terminal;
    this.#theme = theme;
    this.#done = done;
  }

  render(width: number): string[] {
    const theme = this.#theme;
    const rule = theme.fg("accent", "─".repeat(Math.max(1, width)));
    const part = this.#changes.slice(this.#top, this.#top + ROWS);
    const rows = part.map((change) =>
      theme.fg(COLOURS[change.kind], clipped(`  ${lineOfChange(change, this.#words)}`, width)),
    );
    const left = this.#changes.length - this.#top - part.length;
    if (this.#changes.length > ROWS) rows.push(theme.fg("dim", clipped(`  ${this.#words.andMore(left)}`, width)));
    const choices = this.#choices.map((choice, index) => {
      const text = clipped(`${index === this.#chosen ? "→" : " "} ${choice}`, width);
      return index === this.#chosen ? theme.fg("accent", text) : text;
    });
    const title = theme.bold(clipped(`plyfs  ${this.#title}`, width));
    return [rule, title, ...rows, "", ...choices, theme.fg("dim", clipped(this.#words.keys, width)), rule];
  }

  handleInput(data: string): void {
    const last = Math.max(0, this.#changes.length - ROWS);
    switch (keyOf(data)) {
      case "up":
        this.#chosen = Math.max(0, this.#chosen - 1);
        break;
      case "down":
        this.#chosen = Math.min(this.#choices.length - 1, this.#chosen + 1);
        break;
      case "pageup":
        this.#top = Math.max(0, this.#top - ROWS);
        break;
      case "pagedown":
        this.#top = Math.min(last, this.#top + ROWS);
        break;
      case "enter":
        this.#done(this.#chosen);
        return;
      case "escape":
        this.#done(-1);
        return;
      default:
        return;
    }
    this.#terminal.requestRender();
  }

  invalidate(): void {}
}

/** The key in what a terminal sent, in the old form or the one of kitty's protocol; nothing for a key let go. */
export function keyOf(data: string): string {
  if (data === "\r" || data === "\n") return "enter";
  if (data === "\x1b" || data === "\x03") return "escape";
  const found = /^\x1b(?:\[|O)(?:(\d+)(?:;\d+(?::(\d))?)?)?([A-Z~u])$/.exec(data);
  if (!found || found[2] === "3") return "";
  const [, number, , end] = found;
  if (end === "A") return "up";
  if (end === "B") return "down";
  // A terminal may keep the page keys for itself.
  if (end === "C") return "pagedown";
  if (end === "D") return "pageup";
  if (end === "~") return number === "5" ? "pageup" : number === "6" ? "pagedown" : "";
  if (end === "u") return number === "13" ? "enter" : number === "27" ? "escape" : "";
  return "";
}

/** Which of `choices` was taken; -1 if none. */
export async function choose(
  ctx: Context,
  words: Words,
  title: string,
  changes: Change[],
  choices: string[],
): Promise<number> {
  if (ctx.mode === "tui") {
    return ctx.ui.custom<number>(
      (terminal, theme, _, done) => new Preview(title, changes, choices, words, terminal, theme, done),
    );
  }
  const taken = await ctx.ui.select(`${title}\n${listOf(changes, words)}`, choices);
  return taken === undefined ? -1 : choices.indexOf(taken);
}
