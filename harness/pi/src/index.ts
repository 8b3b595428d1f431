/**
 * plyfs for Pi and Oh My Pi: the files of a workspace follow the conversation.
 *
 * Wires the agent's events and commands to what does the work. Owns the order in which things happen in a session, that
 * no hook holds the agent up, and that every failure is told of once.
 */
import type { Agent, AgentEvent, CommandContext, Context } from "./agent.ts";
import { Badge } from "./badge.ts";
import { Failure } from "./failure.ts";
import { Holdups } from "./holdups.ts";
import { wordsFor, type Words } from "./language.ts";
import { follow, lead, leaderOf } from "./leader.ts";
import { leafOf } from "./nodes.ts";
import { Pace } from "./pace.ts";
import { ANSWER_MS, HOOK_MS, TOOL_MS, within } from "./patience.ts";
import { isReport, report } from "./report.ts";
import { States } from "./states.ts";
import { Travel } from "./travel.ts";
import { Workspace } from "./workspace.ts";

const POLL_MS = 3000;
const YOUNG_MS = 15_000;
/** After its tree has moved an agent draws the conversation anew, and wipes away what was said before. */
const REDRAW_MS = 150;
/** Something is not served, and that is all right. */
const QUIET = new Set(["not_mounted"]);
/** Something was not done, and that is all. */
const PASSING = new Set(["conflict", "nothing", "not_mounted"]);

interface Session {
  workspace: Workspace;
  states: States;
  travel: Travel;
  words: Words;
  ready: Promise<void>;
  timer: ReturnType<typeof setInterval> | undefined;
  /** The daemon has been asked for the badge's sake and has not answered. */
  isAsked: boolean;
  pace: Pace;
  over: boolean;
}

interface Command {
  about: string;
  run: (args: string, ctx: CommandContext) => Promise<void>;
}

class Extension {
  readonly #agent: Agent;
  #commands = this.#listed(wordsFor("auto"));
  readonly #badge = new Badge();
  readonly #holdups = new Holdups();
  #session: Session | undefined;
  #told = new Set<string>();
  #hasToldNames = false;
  /** What the last command was given: only that lets one move the conversation. */
  #commandContext: CommandContext | undefined;
  /** What the daemon has been asked for and has not done; in the order of asking. */
  #work: Promise<void> = Promise.resolve();
  /** It does not answer: nothing waits for it any more until it does. */
  #isLate = false;
  #gaveUp = false;
  /** The moves that a person has asked for: one after the other. */
  #moves: Promise<void> = Promise.resolve();

  constructor(agent: Agent) {
    this.#agent = agent;
    this.#on("session_start", (_, ctx) => this.#begin(ctx));
    this.#on("session_switch", (_, ctx) => this.#begin(ctx));
    this.#on("session_branch", (_, ctx) => this.#begin(ctx));
    this.#on("before_agent_start", (_, ctx) => this.#prompt(ctx));
    this.#on("context", (event, ctx) => this.#step(event, ctx));
    this.#on("turn_end", (event, ctx) => this.#turn(event, ctx));
    this.#on("agent_end", (_, ctx) => this.#hook(ctx, (session) => session.states.settle(ctx)));
    for (const name of ["user_bash", "user_python", "session_before_compact", "session_before_switch"]) {
      this.#on(name, (_, ctx) => this.#boundary(ctx));
    }
    for (const name of ["session_before_fork", "session_before_branch"]) {
      this.#on(name, (_, ctx) => this.#boundary(ctx));
    }
    // These are waited for: a tool that might write, the person's own wish, and the end.
    agent.on("tool_call", (_, ctx) => this.#tool(ctx));
    agent.on("input", (event, ctx) => this.#input(event, ctx));
    agent.on("session_before_tree", (event, ctx) => this.#beforeTree(event, ctx));
    agent.on("session_tree", (_, ctx) => this.#afterTree(ctx));
    agent.on("session_shutdown", (event, ctx) => this.#end(event, ctx));
    this.#register();
  }

  /** A hook that must not hold up the agent; it is measured whether it does. */
  #on(name: string, handler: (event: AgentEvent, ctx: Context) => Promise<unknown>): void {
    this.#agent.on(name, (event, ctx) => this.#holdups.timed(name, () => handler(event, ctx)));
  }

  #register(): void {
    for (const [name, { about, run }] of this.#commands) {
      this.#agent.registerCommand(name, {
        description: about,
        handler: (args, ctx) => this.#commanded(run, args, ctx),
      });
    }
  }

  async #commanded(run: Command["run"], args: string, ctx: CommandContext): Promise<void> {
    this.#commandContext = ctx;
    await this.#guarded(ctx, () => run(args, ctx), true);
    this.#session?.travel.tell(ctx);
  }

  /** Who types /undo twice types the second behind the text that the first has brought back. */
  async #input(event: AgentEvent, ctx: Context): Promise<unknown> {
    const meant = event.source === "interactive" ? this.#session?.travel.meant(event.text ?? "") : undefined;
    const command = this.#commands.get(meant?.[0] ?? "");
    const commandContext = this.#commandContext;
    if (!meant || !command || !commandContext || !ctx.hasUI) return undefined;
    setTimeout(() => void this.#commanded(command.run, meant[1], commandContext));
    return { action: "handled", handled: true };
  }

  #listed(words: Words): Map<string, Command> {
    return new Map<string, Command>([
      ["undo", { about: words.undoAbout, run: this.#move((travel, args, ctx) => travel.undo(args, ctx)) }],
      ["redo", { about: words.redoAbout, run: this.#move((travel, args, ctx) => travel.redo(args, ctx)) }],
      ["drift", { about: words.driftAbout, run: async (_, ctx) => (await this.#served(ctx)).travel.drift(ctx) }],
      ["restore", { about: words.restoreAbout, run: this.#move((travel, args, ctx) => travel.restore(args, ctx)) }],
      ["plyfs", { about: words.plyfsAbout, run: (args, ctx) => this.#plyfs(args.trim(), ctx) }],
    ]);
  }

  /** A command that moves something: it begins when the one before has ended. */
  #move(go: (travel: Travel, args: string, ctx: CommandContext) => Promise<void>): Command["run"] {
    return (args, ctx) => {
      const mine = this.#moves.then(async () => go((await this.#served(ctx)).travel, args, ctx));
      this.#moves = mine.catch(() => {});
      return mine;
    };
  }

  /**
   * Another extension may have commands of the same names: Pi then renames both, Oh My Pi hides one. Tell what ours are
   * called, once.
   */
  #tellNames(session: Session, ctx: Context): void {
    const callable = this.#agent.getCommands();
    const taken: string[] = [];
    const ours: string[] = [];
    for (const [name, { about }] of this.#commands) {
      const called = callable.find((one) => one.description === about)?.name;
      if (called === name || name === "plyfs") continue;
      taken.push(`/${name}`);
      ours.push(called === undefined ? `/plyfs ${name}` : `/${called}`);
    }
    if (taken.length === 0 || this.#hasToldNames) return;
    this.#hasToldNames = true;
    ctx.ui.notify(session.words.clash(taken.join(", "), ours.join(", ")), "warning");
  }

  // The session's life

  #begin(ctx: Context): Promise<unknown> {
    const old = this.#session;
    if (old) {
      // Oh My Pi goes on in the same process with another session.
      old.over = true;
      void old.states.leave().then(
        () => this.#close(old),
        () => this.#close(old),
      );
    }
    const workspace = new Workspace(ctx.cwd);
    const id = ctx.sessionManager.getSessionId();
    const leader = leaderOf(ctx, id);
    if (leader === undefined) lead(id);
    const states = new States(workspace, id, leader);
    const words = wordsFor("auto");
    const session: Session = {
      workspace,
      states,
      words,
      travel: new Travel(this.#agent, workspace, states, words),
      ready: Promise.resolve(),
      timer: undefined,
      isAsked: false,
      pace: new Pace(),
      over: false,
    };
    workspace.onChange = () => this.#show(session, ctx);
    const began = Date.now();
    workspace.onGone = () => {
      // It was being unmounted for the sake of a session before this one. Else it is somebody's wish.
      if (session.over || workspace.owns || Date.now() - began > YOUNG_MS) return;
      this.#work = session.ready = this.#guarded(ctx, () => this.#start(session, ctx));
    };
    this.#session = session;
    session.ready = this.#guarded(ctx, () => this.#start(session, ctx));
    this.#work = session.ready;
    return within(HOOK_MS, session.ready);
  }

  async #start(session: Session, ctx: Context): Promise<void> {
    const { workspace } = session;
    clearInterval(session.timer);
    try {
      await workspace.settled();
      if (!(await workspace.attach()) && !(await this.#mount(session, ctx))) {
        this.#show(session, ctx);
        return;
      }
    } catch (error) {
      const failure = Failure.of(error);
      if (failure.code === "config") workspace.turnOff(failure);
      else workspace.failure = failure;
      this.#show(session, ctx);
      throw failure;
    }
    session.words = wordsFor(workspace.settings.language);
    session.travel = new Travel(this.#agent, workspace, session.states, session.words);
    if (session.over) return;
    if (session.words !== wordsFor("auto")) {
      // What is set was not known when the agent asked for commands.
      this.#commands = this.#listed(session.words);
      this.#register();
    }
    await session.states.open(ctx);
    this.#show(session, ctx);
    this.#tellNames(session, ctx);
    if (workspace.mode === "scan" && workspace.owns) {
      const words = session.words;
      ctx.ui.notify(workspace.scansByChoice ? words.scansAsSet : words.scanning, "warning");
    }
    clearInterval(session.timer);
    if (ctx.hasUI) session.timer = setInterval(() => this.#poll(session, ctx), POLL_MS);
    session.timer?.unref?.();
    // A person may take long to answer; nothing waits for that.
    void this.#guarded(ctx, () => session.travel.reopen(ctx));
  }

  async #mount(session: Session, ctx: Context): Promise<boolean> {
    const { workspace } = session;
    // A sub-agent works where its leader does, or in a copy that is thrown away.
    if (session.states.leader !== undefined) return false;
    await workspace.reload();
    const words = wordsFor(workspace.settings.language);
    session.words = words;
    if (workspace.settings.mount === "off") return false;
    if (workspace.settings.mount === "ask") {
      if (!ctx.hasUI || !(await ctx.ui.confirm(words.mountAsk, words.mountWhy))) return false;
    }
    await workspace.mount();
    return true;
  }

  async #end(event: AgentEvent, ctx: Context): Promise<void> {
    const session = this.#session;
    this.#session = undefined;
    if (!session) return;
    follow(session.states.session);
    const isQuit = event.reason === undefined || event.reason === "quit";
    const leaving = async (): Promise<void> => {
      await session.ready;
      if (!session.workspace.isServing) return;
      await session.states.settle(ctx);
      if ((await session.states.leave()) && isQuit) session.workspace.unmountAfterUs();
    };
    await within(HOOK_MS * 6, leaving());
    this.#close(session);
  }

  #close(session: Session): void {
    session.over = true;
    clearInterval(session.timer);
    session.workspace.onChange = () => {};
    session.workspace.onGone = () => {};
    session.workspace.close();
  }

  // Hooks: none holds the agent up, none throws

  #hook(ctx: Context, work: (session: Session) => Promise<unknown>, waits = true): Promise<unknown> {
    const session = this.#session;
    if (!session) return Promise.resolve();
    const before = this.#work;
    const all = this.#guarded(ctx, async () => {
      await before;
      if (session.over || !(await this.#isServed(session, ctx))) return;
      await work(session);
    });
    this.#work = all;
    return waits ? this.#patiently(all) : Promise.resolve();
  }

  /** Wait for `work`, but not long, and not at all for a daemon that has been too slow and still is. */
  async #patiently(work: Promise<void>): Promise<boolean> {
    void work.then(() => {
      this.#isLate = false;
    });
    if (this.#isLate) return false;
    const done = await within(HOOK_MS, work);
    if (!done) this.#isLate = true;
    return done;
  }

  /** Served now, perhaps again since somebody has mended what had died. */
  async #isServed(session: Session, ctx: Context): Promise<boolean> {
    const { workspace } = session;
    if (workspace.isServing) return true;
    if (workspace.life === "off" || !(await workspace.attach())) return false;
    this.#told.clear();
    await session.states.open(ctx);
    return true;
  }

  async #prompt(ctx: Context): Promise<void> {
    const leaf = leafOf(ctx);
    // Whoever asks a model waits for longer than this takes; tools wait for it.
    await this.#hook(ctx, (session) => session.states.prompt(ctx, leaf), false);
  }

  /** No tool may write while the workspace is being mounted, or a checkpoint is still to be taken. */
  async #tool(ctx: Context): Promise<void> {
    if (this.#gaveUp) return;
    if (await within(TOOL_MS, this.#work)) {
      if (this.#session?.states.owesPrompt) await this.#hook(ctx, (session) => session.states.sent(ctx));
      return;
    }
    this.#gaveUp = true;
    void this.#work.then(() => {
      this.#gaveUp = false;
    });
    const silent = Failure.own("daemonSilent", ctx.cwd);
    await this.#guarded(ctx, () => Promise.reject(silent));
  }

  async #turn(event: AgentEvent, ctx: Context): Promise<void> {
    // Without the entry's id this is the agent that does not wait for us, and whose leaf is not right yet.
    if (event.messageEntryId === undefined) return;
    const usedTools = (event.toolResultEntryIds?.length ?? 0) > 0;
    // After tools the model is asked once more; after the last turn a person may go on at once.
    await this.#hook(ctx, (session) => session.states.turn(ctx, usedTools), !usedTools);
  }

  async #step(event: AgentEvent, ctx: Context): Promise<void> {
    if (isPi(ctx)) return;
    await this.#hook(ctx, (session) => session.states.step(event));
  }

  async #boundary(ctx: Context): Promise<void> {
    await this.#hook(ctx, (session) => session.states.boundary(ctx));
  }

  async #beforeTree(event: AgentEvent, ctx: Context): Promise<unknown> {
    const session = this.#session;
    const target = event.preparation?.targetId;
    if (!session || target === undefined) return undefined;
    let answer: unknown;
    // Here a person is asked; how long that takes is theirs to say.
    await this.#guarded(ctx, async () => {
      await this.#work;
      if (await this.#isServed(session, ctx)) answer = await session.travel.beforeTree(ctx, target);
    });
    return answer;
  }

  async #afterTree(ctx: Context): Promise<void> {
    const session = this.#session;
    if (!session) return;
    await this.#guarded(ctx, () => session.travel.afterTree(ctx));
    setTimeout(() => void this.#guarded(ctx, async () => session.travel.tell(ctx)), REDRAW_MS).unref?.();
  }

  // Commands

  async #served(ctx: Context): Promise<Session> {
    const session = this.#session;
    if (!session) throw Failure.own("notServed", ctx.cwd);
    const { workspace } = session;
    const ready = async (): Promise<void> => {
      await this.#work;
      if (!(await this.#isServed(session, ctx))) throw workspace.failure ?? Failure.own("notServed", ctx.cwd);
      await workspace.call("hello");
    };
    const answer = ready();
    if (!(await within(ANSWER_MS, answer))) {
      ctx.ui.notify(session.words.slow, "warning");
      if (!(await workspace.answers())) {
        void answer.catch(() => {});
        throw Failure.own("daemonSilent", ctx.cwd);
      }
    }
    await answer;
    return session;
  }

  async #plyfs(args: string, ctx: CommandContext): Promise<void> {
    const session = this.#session;
    if (!session) return;
    const { workspace } = session;
    const [name, rest] = args.split(/\s+(.*)/s) as [string, string | undefined];
    if (name !== "plyfs" && this.#commands.has(name)) {
      await this.#commands.get(name)?.run(rest ?? "", ctx);
      return;
    }
    if (args === "doctor") {
      // What could not be served when the session began may be served now.
      if (await workspace.mend()) await session.states.open(ctx);
      else await this.#start(session, ctx);
      if (!workspace.isServing) throw workspace.failure ?? Failure.own("notServed", ctx.cwd);
      this.#told.clear();
      this.#show(session, ctx);
      ctx.ui.notify(session.words.mended, "info");
      return;
    }
    if (!isReport(args)) {
      ctx.ui.notify(session.words.notAnArgument(args, session.words.plyfsAbout), "warning");
      return;
    }
    await this.#served(ctx);
    const [text, level] = await report(args, workspace, session.states.session, session.words, this.#holdups);
    ctx.ui.notify(text, level);
  }

  // What people see

  #poll(session: Session, ctx: Context): void {
    if (session.isAsked || session.over) return;
    session.isAsked = true;
    const done = (): void => {
      session.isAsked = false;
    };
    this.#look(session, ctx).then(done, done);
  }

  /** Bring the badge up to date; scanning for its sake now and then, while the agent has nothing to do. */
  async #look(session: Session, ctx: Context): Promise<void> {
    const { workspace } = session;
    if (!workspace.isServing) {
      // Somebody may have mended or mounted it in a shell.
      await this.#isServed(session, ctx);
      return;
    }
    const began = Date.now();
    const scans = workspace.mode === "scan";
    const looks = !scans || session.pace.isDue(ctx);
    const answer = workspace.call<{ changes?: unknown[] }>(looks ? "diff" : "hello");
    answer.catch(() => {});
    if (!(await within(ANSWER_MS, answer)) && !(await workspace.answers())) {
      await this.#guarded(ctx, () => Promise.reject(Failure.own("daemonSilent", ctx.cwd)));
    }
    const { changes } = await answer;
    if (scans && looks) session.pace.scanned(began);
    const isBack = workspace.failure?.code === "daemon_silent";
    if (isBack) workspace.failure = undefined;
    if (!isBack && (changes === undefined || workspace.unsaved === changes.length)) return;
    workspace.unsaved = changes?.length ?? workspace.unsaved;
    workspace.onChange();
  }

  #show(session: Session, ctx: Context): void {
    if (session.over) return;
    const { failure, life } = session.workspace;
    if (life === "serving" && !failure) this.#told.clear();
    if (life === "dead" && failure) this.#tell(failure, ctx);
    try {
      this.#badge.show(ctx, session.workspace, session.words);
    } catch {
      // The agent has moved on to another session; that one has a badge of its own.
    }
  }

  /** Do something; a failure is told of, once for each kind until all is well again; always if a person has asked. */
  async #guarded(ctx: Context, work: () => Promise<void>, isAsked = false): Promise<void> {
    try {
      await work();
    } catch (error) {
      const failure = Failure.of(error);
      const session = this.#session;
      // What a person asks for in vain they are told; that nothing can be recorded any more is for the badge.
      if (session && !isAsked && !PASSING.has(failure.code)) {
        session.workspace.failure ??= failure;
        this.#show(session, ctx);
      }
      this.#tell(failure, ctx, isAsked);
    }
  }

  #tell(failure: Failure, ctx: Context, isAsked = false): void {
    if (!isAsked && (QUIET.has(failure.code) || this.#told.has(failure.code))) return;
    if (failure.code !== "conflict") this.#told.add(failure.code);
    const text = failure.in(this.#session?.words ?? wordsFor("auto"));
    // A run that prints shows nobody what it notifies of. A sub-agent has its leader's screen.
    if (!ctx.hasUI && this.#session?.states.leader === undefined) process.stderr.write(`${text}\n`);
    try {
      ctx.ui.notify(text, "error");
    } catch {
      // The agent has moved on to another session.
    }
  }
}

/** Pi waits for the handlers of a turn's end and gives them the entry's id; Oh My Pi does neither. */
function isPi(ctx: Context): boolean {
  return "buildContextEntries" in ctx.sessionManager;
}

export default function plyfs(agent: Agent): void {
  new Extension(agent);
}
