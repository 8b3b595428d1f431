/**
 * Recording which files belong to which node of this session, through the daemon's State(session, node).
 *
 * Owns what is known of a prompt before the agent has written it down as an entry, and of tool calls that an agent
 * reports late. Everything else is the daemon's, or stands in the session itself.
 */
import type { AgentEvent, Context, Entry } from "./agent.ts";
import { branchOf, entryOf, isExecution, isPrompt, leafOf, lineOf, parentOf } from "./nodes.ts";
import type { Captured } from "./answers.ts";
import type { Workspace } from "./workspace.ts";

export class States {
  readonly session: string;
  /** The session that this one works for, as a sub-agent. */
  readonly leader: string | undefined;
  /** The files as they were when the last prompt was sent, and after which entry that was. */
  #before: { id: string; leaf: string | undefined } | undefined;
  #works = false;
  #steps = new Map<string, string>();
  /** The last node whose state was recorded here, and that state. */
  #last: { node: string; id: string } | undefined;
  readonly #workspace: Workspace;

  constructor(workspace: Workspace, session: string, leader?: string) {
    this.#workspace = workspace;
    this.session = session;
    this.leader = leader;
  }

  /** The session is here. */
  async open(ctx: Context): Promise<void> {
    const parent = parentOf(ctx.sessionManager);
    await this.#workspace.call("session", {
      session: this.session,
      parent: parent ?? null,
      // Without a file it cannot be taken up again, so nothing need be kept for it.
      file: ctx.sessionManager.getSessionFile() ?? "",
      pid: process.pid,
      owns: this.#workspace.owns,
      within: this.leader ?? null,
      working: this.#works,
    });
  }

  /** A checkpoint, recorded for `node` if that has no state yet. */
  async capture(node: string | undefined, changes = false, label?: string): Promise<Captured> {
    const captured = await this.#workspace.call<Captured>("capture", {
      session: this.session,
      node: node ?? null,
      label: label ?? null,
      changes,
    });
    this.#workspace.well();
    return captured;
  }

  /**
   * Before something that may change files. What is unsaved becomes a checkpoint, but the leaf's only if it has no
   * state and no ancestor has, or if it is a command that the person ran: else a person has made it since.
   */
  async boundary(ctx: Context, changes = false): Promise<Captured> {
    const leaf = leafOf(ctx);
    const entry = leaf === undefined ? undefined : entryOf(ctx.sessionManager, leaf);
    const state = leaf !== undefined && leaf === this.#last?.node ? this.#last.id : await this.find(ctx, leaf);
    const isLeafs = state === undefined || (entry !== undefined && isExecution(entry));
    const captured = await this.capture(isLeafs ? leaf : undefined, changes);
    return { ...captured, state: captured.state ?? state ?? null };
  }

  /** A prompt is about to be sent; its entry comes later. */
  async prompt(ctx: Context, leaf: string | undefined): Promise<void> {
    const { id } = await this.boundary(ctx);
    this.#before = { id, leaf };
    await this.#work(true);
  }

  /** A prompt was sent whose entry has no state yet. */
  get owesPrompt(): boolean {
    return this.#before !== undefined;
  }

  /** A tool is about to run: the prompt is written down by now, and should the agent be killed, it has its state. */
  async sent(ctx: Context): Promise<void> {
    await this.#bindPrompt(ctx);
  }

  /** A turn has ended, and the leaf is its last entry. `usedTools` false: no tool has run since the last capture. */
  async turn(ctx: Context, usedTools: boolean): Promise<void> {
    const leaf = leafOf(ctx);
    const prompt = this.#bindPrompt(ctx);
    if (leaf !== undefined && leaf !== this.#last?.node) {
      if (!usedTools && this.#last && this.#workspace.mode === "scan") {
        // Looking at every file again would find nothing that is the agent's.
        await this.bind(leaf, this.#last.id);
        this.#last = { node: leaf, id: this.#last.id };
      } else {
        const captured = await this.capture(leaf);
        this.#last = { node: leaf, id: captured.state ?? captured.id };
      }
    }
    await prompt;
  }

  /** The model is about to be asked: after tools have run, for an agent that tells of the turn's end too late. */
  async step(event: AgentEvent): Promise<void> {
    // A message that the person sent meanwhile may stand after what the tools answered.
    const messages = event.messages ?? [];
    const since = messages.slice(messages.findLastIndex((message) => message.role === "assistant") + 1);
    const call = since.findLast((message) => message.toolCallId !== undefined)?.toolCallId;
    if (call === undefined || this.#steps.has(call)) return;
    const { id } = await this.capture(undefined);
    this.#steps.set(call, id);
  }

  /** All entries of the run are written: give the states of its steps to theirs. */
  async settle(ctx: Context): Promise<void> {
    try {
      await this.#settle(ctx);
    } finally {
      await this.#work(false);
    }
  }

  async #settle(ctx: Context): Promise<void> {
    let usedTools = true;
    if (this.#steps.size > 0) {
      for (const entry of branchOf(ctx.sessionManager)) {
        if (entry.message?.role !== "toolResult") continue;
        const id = this.#steps.get(entry.message.toolCallId ?? "");
        // A tool that nothing was captured after: the run was ended before.
        usedTools = id === undefined;
        if (id === undefined) continue;
        await this.bind(entry.id, id);
        this.#last = { node: entry.id, id };
      }
      this.#steps.clear();
    }
    await this.turn(ctx, usedTools);
  }

  /** The agent is changing files from now on, or no longer: what another session finds changed meanwhile is its doing. */
  async #work(working: boolean): Promise<void> {
    if (this.leader !== undefined || working === this.#works) return;
    this.#works = working;
    await this.#workspace.call("session", { session: this.session, pid: process.pid, working });
  }

  async #bindPrompt(ctx: Context): Promise<void> {
    const before = this.#before;
    if (!before) return;
    const prompt = firstPromptAfter(branchOf(ctx.sessionManager), before.leaf);
    if (!prompt) return;
    this.#before = undefined;
    await this.bind(prompt.id, before.id);
  }

  /** The files at `node` are those of `checkpoint`. */
  async bind(node: string, checkpoint: string): Promise<void> {
    await this.#workspace.call("bind", { session: this.session, node, checkpoint });
  }

  /** The state of an entry, or of its nearest ancestor that has one. */
  async find(ctx: Context, entry: string | undefined): Promise<string | undefined> {
    const nodes = lineOf(ctx.sessionManager, entry);
    if (nodes.length === 0) return undefined;
    const found = await this.#workspace.call<{ state: string | null }>("find", { session: this.session, nodes });
    return found.state ?? undefined;
  }

  /** The session goes. True if nobody else needs the workspace served. */
  async leave(): Promise<boolean> {
    return (await this.#workspace.call<{ last: boolean }>("leave", { session: this.session, pid: process.pid })).last;
  }
}

function firstPromptAfter(branch: Entry[], leaf: string | undefined): Entry | undefined {
  const start = leaf === undefined ? 0 : branch.findIndex((entry) => entry.id === leaf) + 1;
  if (leaf !== undefined && start === 0) return undefined;
  return branch.slice(start).find(isPrompt);
}
