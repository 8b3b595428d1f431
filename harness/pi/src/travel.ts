/**
 * Moving the conversation and the files together: /undo, /redo, /tree, /restore, /drift, and a session that is opened
 * again.
 *
 * The rule of every move: what is unsaved is captured first; the target's state is planned; the files are moved only if
 * nothing has changed since the plan; the conversation follows; and if that fails, the files go back. Where the
 * conversation then is gets a pin (`nodes.ts`).
 */
import { existsSync } from "node:fs";
import { relative, resolve } from "node:path";
import type { Agent, CommandContext, Context, Entry, Level } from "./agent.ts";
import { Failure } from "./failure.ts";
import type { Words } from "./language.ts";
import { branchOf, entryOf, isLeafForgotten, isPrompt, leafOf, PIN, pin, redoOf, textOf } from "./nodes.ts";
import { choose, listOf, namesOf } from "./preview.ts";
import type { States } from "./states.ts";
import type { Change, Restored } from "./answers.ts";
import type { Workspace } from "./workspace.ts";

/** What /undo and /redo move. */
type Extent = "both" | "files" | "chat";

/** A move through the agent's own /tree that was planned before it and is made after it. */
interface Plan {
  state: string;
  now: string;
  fingerprint: string | undefined;
}

/** Entries that say nothing: a conversation that ends in them still is at the one before. */
const SILENT = new Set(["label", "custom", "model_change", "thinking_level_change", "session_info", "mode_change"]);

export class Travel {
  readonly #agent: Agent;
  readonly #workspace: Workspace;
  readonly #states: States;
  readonly #words: Words;
  #moving = false;
  #plan: Plan | undefined;
  /** The text of the prompt that has come back into the editor. */
  #given: string | undefined;
  /** What is to be told when the conversation has moved: an agent that draws it anew wipes away what was said before. */
  #notes: [string, Level][] = [];

  constructor(agent: Agent, workspace: Workspace, states: States, words: Words) {
    this.#agent = agent;
    this.#workspace = workspace;
    this.#states = states;
    this.#words = words;
  }

  async undo(args: string, ctx: CommandContext): Promise<void> {
    const words = this.#words;
    const asked = this.#asked(args, words.undoAbout, ctx);
    if (!asked) return;
    const { count, extent } = asked;
    await this.#idle(ctx);
    const prompts = branchOf(ctx.sessionManager).filter(isPrompt);
    const steps = Math.min(count, prompts.length);
    const target = prompts[prompts.length - steps];
    if (!target || steps === 0) {
      ctx.ui.notify(words.nothingToUndo, "warning");
      return;
    }
    const between = prompts.slice(prompts.length - steps + 1).map((entry) => entry.id);
    const files = await this.#go(ctx, target, extent, (here) => [...between, ...here]);
    if (files !== undefined && extent === "both") this.#notes.push([words.undone(steps, files), "info"]);
  }

  async redo(args: string, ctx: CommandContext): Promise<void> {
    const words = this.#words;
    const asked = this.#asked(args, words.redoAbout, ctx);
    if (!asked) return;
    const { count, extent } = asked;
    await this.#idle(ctx);
    const branch = branchOf(ctx.sessionManager);
    const way = redoOf(speaking(branch));
    const steps = Math.min(count, way.length);
    const target = entryOf(ctx.sessionManager, way[steps - 1] ?? "");
    if (!target) {
      const wentOn = branch.some((entry) => redoOf(entry).length > 0);
      ctx.ui.notify(wentOn ? words.wentOn : words.nothingToRedo, "warning");
      return;
    }
    const files = await this.#go(ctx, target, extent, () => way.slice(steps));
    if (files !== undefined && extent === "both") this.#notes.push([words.redone(files), "info"]);
  }

  async #idle(ctx: CommandContext): Promise<void> {
    if (!ctx.isIdle()) ctx.ui.notify(this.#words.waits, "info");
    await ctx.waitForIdle();
  }

  /**
   * Go to an entry. `redo` tells where /redo leads from there, given the way that leads back to where we are. Answers
   * how many files have changed; undefined if it was not done.
   */
  async #go(
    ctx: CommandContext,
    target: Entry,
    extent: Extent,
    redo: (here: string[]) => string[],
  ): Promise<number | undefined> {
    const words = this.#words;
    const here = await this.#save(ctx);
    let state = await this.#states.find(ctx, target.id);
    if (state === undefined) this.#notes.push([words.noState, "warning"]);
    let done: Restored | undefined;
    if (extent === "chat") state = undefined;
    if (state !== undefined) {
      const plan = await this.#preview(state);
      if (this.#workspace.settings.confirm === "always" && ctx.hasUI && plan.changes.length > 0) {
        const choices = [words.keepFiles, words.restoreToo];
        const choice = await choose(ctx, words, words.previewTitle(plan.changes.length), plan.changes, choices);
        if (choice < 0) {
          this.#notes.push([words.cancelled, "info"]);
          return undefined;
        }
        if (choice === 0) state = undefined;
      }
      if (state !== undefined) done = await this.#restore(state, plan.fingerprint);
    }
    if (extent !== "files" && !(await this.#navigate(ctx, target))) {
      if (done) await this.#restore(here.id, undefined, true);
      return undefined;
    }
    const mark = pin(this.#agent, ctx, redo(this.#wayTo(ctx, here.node)));
    if (mark !== undefined) await this.#states.bind(mark, state ?? here.id);
    if (done) this.#tellKept(done);
    const files = done?.changes.length ?? 0;
    if (extent === "chat" || state === undefined) this.#notes.push([words.chatOnly, "info"]);
    else if (extent === "files") this.#notes.push([words.filesOnly(files), "info"]);
    return files;
  }

  /** The way to an entry, and from there on. */
  #wayTo(ctx: Context, node: string | undefined): string[] {
    return node === undefined ? [] : [node, ...redoOf(entryOf(ctx.sessionManager, node))];
  }

  /** Move the conversation. False if somebody does not let us, and then it is where it was. */
  async #navigate(ctx: CommandContext, target: Entry): Promise<boolean> {
    const isHere = leafOf(ctx) === target.id;
    const to = isHere && isPrompt(target) ? target.parentId : target.id;
    if (to === null || (isHere && !isPrompt(target))) return true;
    this.#moving = true;
    try {
      const { cancelled } = await ctx.navigateTree(to);
      if (cancelled) {
        this.#notes.push([this.#words.cancelled, "warning"]);
        return false;
      }
    } catch (error) {
      this.#notes.push([this.#words.moveFailed(Failure.of(error).message), "error"]);
      return false;
    } finally {
      this.#moving = false;
    }
    if (isPrompt(target)) this.#given = textOf(target).trim();
    if (isPrompt(target) && (ctx.mode !== "tui" || isHere)) ctx.ui.setEditorText(textOf(target));
    return true;
  }

  /**
   * A person has typed another command behind the text that has just come back, and means the command: its name and
   * arguments.
   */
  meant(text: string): [string, string] | undefined {
    const given = this.#given;
    this.#given = undefined;
    if (!given || !text.startsWith(given)) return undefined;
    const [, name, args] = /^\s*\/(undo|redo)(?: +(\S.*))?$/.exec(text.slice(given.length).trimEnd()) ?? [];
    return name === undefined ? undefined : [name, args ?? ""];
  }

  /** Capture what is unsaved. If the leaf had its state already, a pin gives what was made since a node of its own. */
  async #save(ctx: Context): Promise<{ id: string; node: string | undefined }> {
    const leaf = leafOf(ctx);
    const captured = await this.#states.boundary(ctx, true);
    if (captured.created && !captured.recorded && captured.changes.length > 0) {
      this.#notes.push([this.#words.saved(captured.id, namesOf(captured.changes)), "info"]);
    }
    if (leaf === undefined || captured.state === captured.id) return { id: captured.id, node: leaf };
    if (!captured.created && captured.state !== null) {
      // Another session has moved the files and kept ours: its point is not what is here, ours with its changes is.
      const { changes } = await this.#workspace.call<{ changes: Change[] }>("diff");
      if (changes.length > 0) return { id: captured.state, node: leaf };
    }
    const mark = pin(this.#agent, ctx, redoOf(entryOf(ctx.sessionManager, leaf)));
    if (mark !== undefined) await this.#states.bind(mark, captured.id);
    return { id: captured.id, node: mark };
  }

  /** The agent is about to move through its tree. */
  async beforeTree(ctx: Context, targetId: string): Promise<{ cancel: true } | undefined> {
    if (this.#moving) return undefined;
    this.#plan = undefined;
    const words = this.#words;
    const { id: now } = await this.#states.boundary(ctx);
    const state = await this.#states.find(ctx, targetId);
    if (state === undefined) return undefined;
    let plan = await this.#preview(state);
    if (plan.changes.length > 0 && this.#workspace.settings.confirm !== "never") {
      const title = words.previewTitle(plan.changes.length);
      const choice = ctx.hasUI
        ? await choose(ctx, words, title, plan.changes, [words.keepFiles, words.restoreToo])
        : 0;
      if (choice < 0) return { cancel: true };
      if (choice === 0) {
        await this.#save(ctx);
        this.#plan = { state: now, now, fingerprint: undefined };
        return undefined;
      }
      const again = await this.#preview(state);
      if (again.fingerprint !== plan.fingerprint) {
        ctx.ui.notify(words.moved, "warning");
        return { cancel: true };
      }
      plan = again;
    }
    await this.#save(ctx);
    this.#plan = { state, now, fingerprint: plan.fingerprint };
    return undefined;
  }

  /** The agent has moved through its tree. */
  async afterTree(ctx: Context): Promise<void> {
    const plan = this.#plan;
    this.#plan = undefined;
    if (this.#moving || !plan) return;
    let state = plan.state;
    if (plan.fingerprint !== undefined) {
      try {
        const done = await this.#restore(plan.state, plan.fingerprint);
        this.#tellKept(done);
        if (done.changes.length > 0) this.#notes.push([this.#words.restored(done.changes.length), "info"]);
      } catch (error) {
        const failure = Failure.of(error);
        state = plan.now;
        if (failure.code !== "conflict") throw failure;
        this.#notes.push([this.#words.movedAfter, "warning"]);
      }
    }
    const node = isLeafForgotten(ctx.sessionManager) ? pin(this.#agent, ctx) : leafOf(ctx);
    if (node !== undefined) await this.#states.bind(node, state);
  }

  /** What restoring this point would change. */
  async drift(ctx: CommandContext): Promise<void> {
    const state = await this.#states.find(ctx, leafOf(ctx));
    const changes = state === undefined ? [] : (await this.#preview(state, true)).changes;
    const words = this.#words;
    if (state === undefined) ctx.ui.notify(words.noState, "warning");
    else if (changes.length === 0) ctx.ui.notify(words.noDrift, "info");
    else ctx.ui.notify(`${words.driftIs(changes.length)}\n${listOf(changes, words, 50)}`, "info");
  }

  async restore(args: string, ctx: CommandContext): Promise<void> {
    const words = this.#words;
    const given = args.split(/\s+/).filter(Boolean);
    const sure = given.includes("--yes") || given.includes("-y");
    const [spec, ...paths] = given.filter((word) => word !== "--yes" && word !== "-y");
    await this.#idle(ctx);
    const node = spec ?? leafOf(ctx);
    const isEntry = node !== undefined && entryOf(ctx.sessionManager, node) !== undefined;
    const leafs = await this.#states.find(ctx, leafOf(ctx));
    let state = isEntry ? await this.#states.find(ctx, node) : spec;
    const here = await this.#save(ctx);
    if (state === undefined) {
      this.#notes.push([words.noState, "warning"]);
      return;
    }
    let only = paths.length > 0 ? this.#inWorkspace(ctx, paths) : undefined;
    let plan: Restored;
    try {
      plan = await this.#preview(state, true, only);
    } catch (error) {
      // No checkpoint of that name: a path of this point then, if there is or was one.
      if (isEntry || spec === undefined || leafs === undefined || Failure.of(error).code !== "unknown_checkpoint") {
        throw error;
      }
      [state, only] = [leafs, this.#inWorkspace(ctx, [spec, ...paths])];
      plan = await this.#preview(state, true, only);
      if (plan.changes.length === 0 && !existsSync(resolve(ctx.cwd, spec))) throw error;
    }
    if (plan.changes.length === 0) {
      this.#notes.push([words.nothingToRestore, "info"]);
      return;
    }
    if (!sure && ctx.hasUI) {
      const title = words.restoreTitle(plan.changes.length);
      const choice = await choose(ctx, words, title, plan.changes, [words.keepNow, words.restoreNow]);
      if (choice !== 1) {
        this.#notes.push([words.cancelled, "info"]);
        return;
      }
    }
    const done = await this.#restore(state, plan.fingerprint, true, only);
    const mark = pin(this.#agent, ctx, this.#wayTo(ctx, here.node));
    if (mark !== undefined) await this.#states.bind(mark, done.head);
    this.#tellKept(done);
    this.#notes.push([words.restored(done.changes.length), "info"]);
  }

  /** A session is opened whose files may not be as it left them. */
  async reopen(ctx: Context): Promise<void> {
    const words = this.#words;
    const how = this.#workspace.settings.reopen;
    const state = await this.#states.find(ctx, leafOf(ctx));
    if (state === undefined || how === "keep" || !ctx.hasUI) return;
    const plan = await this.#preview(state, true);
    if (plan.changes.length === 0) return;
    if (how === "ask") {
      if (ctx.mode !== "tui") {
        ctx.ui.notify(words.reopenWaits(plan.changes.length), "warning");
        return;
      }
      const title = words.reopenTitle(plan.changes.length);
      const choice = await choose(ctx, words, title, plan.changes, [words.keepNow, words.restoreNow]);
      if (choice !== 1) return;
    }
    const done = await this.#restore(state, plan.fingerprint, true);
    this.#tellKept(done);
    this.#notes.push([words.restored(done.changes.length), "info"]);
    this.tell(ctx);
  }

  /** What going to a state would do. Other sessions' changes are kept, unless the point itself is asked for (`force`). */
  #preview(state: string, force = false, paths?: string[]): Promise<Restored> {
    const params = { checkpoint: state, session: this.#states.session, dry_run: true, force, paths: paths ?? null };
    return this.#workspace.call<Restored>("restore", params);
  }

  async #restore(state: string, fingerprint?: string, force = false, paths?: string[]): Promise<Restored> {
    const params = { checkpoint: state, session: this.#states.session, fingerprint: fingerprint ?? null, force };
    const done = await this.#workspace.call<Restored>("restore", { ...params, paths: paths ?? null });
    this.#workspace.unsaved = 0;
    this.#workspace.onChange();
    return done;
  }

  #tellKept(done: Restored): void {
    if (done.kept.length > 0) this.#notes.push([this.#words.kept(namesOf(done.kept)), "warning"]);
  }

  /** Tell what was noted. */
  tell(ctx: Context): void {
    const notes = this.#notes;
    this.#notes = [];
    // In one: an agent may show the second of two in the place of the first.
    const level = (["error", "warning"] as Level[]).find((one) => notes.some(([, of]) => of === one)) ?? "info";
    if (notes.length > 0) ctx.ui.notify(notes.map(([text]) => text).join("\n"), level);
  }

  /** Paths as a person types them, as ones below the top of the workspace. */
  #inWorkspace(ctx: Context, paths: string[]): string[] {
    return paths.map((path) => relative(this.#workspace.root, resolve(ctx.cwd, path)).replaceAll("\\", "/"));
  }

  /** What is asked for; undefined if that is not clear, and the person is told so. */
  #asked(args: string, usage: string, ctx: Context): { count: number; extent: Extent } | undefined {
    let count = 1;
    let extent: Extent = this.#workspace.settings.undo;
    for (const word of args.split(/\s+/).filter(Boolean)) {
      if (/^[1-9]\d{0,5}$/.test(word)) count = Number(word);
      else if (word === "files" || word === "chat" || word === "both") extent = word;
      else {
        ctx.ui.notify(this.#words.notAnArgument(word, usage), "warning");
        return undefined;
      }
    }
    return { count, extent };
  }
}

/** The last entry of a branch that is a pin or says something. */
function speaking(branch: Entry[]): Entry | undefined {
  return branch.findLast((entry) => !SILENT.has(entry.type) || entry.customType === PIN);
}
