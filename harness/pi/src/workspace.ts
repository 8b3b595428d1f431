/**
 * The workspace that an agent works in: served or not, by which daemon, and every call to that.
 *
 * Owns the connection and the coming and going of the mount. Tells `onChange` whenever something that people see is
 * different. Does not know sessions' trees.
 */
import { runAfterUs, run } from "./command.ts";
import { Connection, type DaemonEvent } from "./connection.ts";
import { Failure } from "./failure.ts";
import { languageFor } from "./language.ts";
import { find, isAlive, isLeaving, type Served } from "./registry.ts";
import { SILENT_MS, within } from "./patience.ts";
import { DEFAULTS, type Settings } from "./settings.ts";

export type Life = "off" | "absent" | "starting" | "serving" | "dead";

const PROTOCOL = 1;
const NOT_SERVED = new Set(["not_mounted", "not_a_workspace"]);
const SETTLE_MS = 10_000;
const GOING_MS = 2000;

export class Workspace {
  life: Life = "absent";
  mode = "";
  settings: Settings = DEFAULTS;
  unsaved = 0;
  problems: string[] = [];
  failure: Failure | undefined;
  /** This process had the workspace served. */
  owns = false;
  /** It is scanned because that was asked for, not because it could not be mounted. */
  scansByChoice = false;
  onChange: () => void = () => {};
  onEvent: (event: DaemonEvent) => void = () => {};
  /** Somebody has unmounted it. */
  onGone: () => void = () => {};
  readonly cwd: string;
  #connection: Connection | undefined;
  #served: Served | undefined;

  constructor(cwd: string) {
    this.cwd = cwd;
  }

  get root(): string {
    return this.#served?.mountpoint ?? this.cwd;
  }

  get isServing(): boolean {
    return this.life === "serving" && this.#connection?.isOver === false;
  }

  /** Connect to whatever serves the directory; false if nothing does. */
  async attach(): Promise<boolean> {
    if (this.isServing) return true;
    const served = find(this.cwd);
    if (!served || isLeaving(served)) {
      if (this.life === "serving" || this.life === "dead") this.#become("absent");
      return false;
    }
    try {
      await this.#connect(served);
    } catch (error) {
      const failure = Failure.of(error);
      this.failure = failure.code === "daemon_gone" ? Failure.own("daemonDied", this.cwd) : failure;
      this.#become("dead");
      return false;
    }
    return true;
  }

  async #connect(served: Served): Promise<void> {
    const connection = await Connection.open(served.socket);
    try {
      await this.#greet(connection, served.token);
    } catch (error) {
      connection.close();
      throw error;
    }
    this.#connection = connection;
    this.#served = served;
    this.mode = served.mode;
    this.failure = undefined;
    this.#enter();
    this.#become("serving");
  }

  async #greet(connection: Connection, token: string | null): Promise<void> {
    connection.onEvent = (event) => this.#hear(event);
    connection.onEnd = () => this.#lost();
    const hello = await connection.call<{ protocol: number }>("hello", token ? { token } : {});
    if (hello.protocol !== PROTOCOL) throw Failure.own("protocol", String(hello.protocol));
    const { agents } = await connection.call<{ agents: Settings }>("settings");
    this.settings = agents;
    await connection.call("hello", { language: this.#language });
    await connection.call("subscribe");
  }

  get #language(): "en" | "zh-CN" {
    return languageFor(this.settings.language);
  }

  /** Read the settings anew. Raises `config` if they are wrong. */
  async reload(): Promise<void> {
    if (this.isServing) {
      this.settings = (await this.call<{ agents: Settings }>("settings")).agents;
      await this.call("hello", { language: this.#language });
    } else {
      const { settings } = await this.#run<{ settings: { agents: Settings; mount: { mode: string } } }>("config");
      this.settings = settings.agents;
      this.scansByChoice = settings.mount.mode === "scan";
    }
  }

  #run<T>(command: string): Promise<T> {
    return run<T>([command, "-C", this.cwd], this.#language);
  }

  /** Have the directory served. Raises Failure. */
  async mount(): Promise<void> {
    this.#become("starting");
    try {
      await this.#run("mount");
      this.owns = true;
    } catch (error) {
      const failure = Failure.of(error);
      if (failure.code !== "locked") {
        this.failure = failure;
        this.#become("absent");
        throw failure;
      }
      // Another agent was faster.
    }
    if (!(await this.attach())) {
      throw this.failure ?? Failure.own("notServed", this.cwd);
    }
  }

  /** Have what a crash left behind mended; true if it is served then. Raises Failure. */
  async mend(): Promise<boolean> {
    this.close();
    try {
      await this.#run("status");
    } catch (error) {
      if (!NOT_SERVED.has(Failure.of(error).code)) throw error;
    }
    if (this.life !== "dead") this.#become("absent");
    this.failure = undefined;
    return this.attach();
  }

  /** A checkpoint could be taken: whatever had failed, it is over. */
  well(): void {
    this.unsaved = 0;
    this.failure = undefined;
    this.onChange();
  }

  /** Does the daemon answer at all, whatever else it has to do? */
  async answers(): Promise<boolean> {
    const served = find(this.cwd);
    if (!served) return false;
    let connection: Connection | undefined;
    const asked = Connection.open(served.socket).then((opened) => {
      connection = opened;
      return opened.call("hello", served.token ? { token: served.token } : {});
    });
    let isWell = false;
    await within(
      SILENT_MS,
      asked.then(() => {
        isWell = true;
      }),
    );
    connection?.close();
    return isWell;
  }

  /** Leave the directory as the settings say, once this process has ended. */
  unmountAfterUs(): void {
    const how = this.settings.on_exit;
    if (how !== "leave") runAfterUs(["unmount", `--${how}`, "-C", this.root]);
  }

  async call<T>(method: string, params: Record<string, unknown> = {}): Promise<T> {
    if (!this.#connection) throw Failure.own("notServed", this.cwd);
    return this.#connection.call<T>(method, params);
  }

  close(): void {
    this.#connection?.close();
    this.#connection = undefined;
  }

  turnOff(failure?: Failure): void {
    this.failure = failure;
    this.close();
    this.#become("off");
  }

  /** This process still stands in the directory below the mount, or in one that has gone: the path leads out of it. */
  #enter(): void {
    try {
      process.chdir(this.cwd);
    } catch {
      // A thread that may not; whatever is started gets its directory by path.
    }
  }

  #hear(event: DaemonEvent): void {
    if (event.event === "health") {
      this.problems = (event.data.problems as string[] | undefined) ?? [];
      this.onChange();
    }
    this.onEvent(event);
  }

  #lost(): void {
    this.#connection = undefined;
    if (this.life !== "serving") return;
    // What this process still stands in may be a mount that nobody sees any more.
    this.#enter();
    void this.#explain();
  }

  /** Why has the connection ended: is the daemon dead, or does it go because somebody wanted that? */
  async #explain(): Promise<void> {
    const gone = this.#served?.pid;
    const deadline = Date.now() + GOING_MS;
    for (;;) {
      if (this.isServing || this.life !== "serving") return;
      const served = find(this.cwd);
      if (!served || served.pid !== gone || isLeaving(served)) {
        this.#become("absent");
        this.onGone();
        return;
      }
      if (!isAlive(served.pid) || Date.now() > deadline) {
        this.failure = Failure.own("daemonDied", this.cwd);
        this.#become("dead");
        return;
      }
      // It has ended the connection before it said so to everybody.
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  /** Return when no daemon is about to go, as the one of a session that has just ended may be. */
  async settled(): Promise<void> {
    const deadline = Date.now() + SETTLE_MS;
    while (find(this.cwd)?.state === "stopping" && Date.now() < deadline) {
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }

  #become(life: Life): void {
    if (life !== this.life) {
      this.life = life;
      this.onChange();
    }
  }
}
