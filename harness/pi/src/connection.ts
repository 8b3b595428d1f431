/**
 * A connection to a workspace's daemon: requests and their answers, and the events in between, one JSON line each.
 *
 * Calls are answered in their order. The connection keeps no process alive, except while an answer is awaited.
 */
import { createConnection, type Socket } from "node:net";
import { Failure } from "./failure.ts";

export interface DaemonEvent {
  event: string;
  data: Record<string, unknown>;
}

interface Waiting {
  resolve: (result: never) => void;
  reject: (failure: Failure) => void;
}

export class Connection {
  onEvent: (event: DaemonEvent) => void = () => {};
  onEnd: () => void = () => {};
  readonly #socket: Socket;
  readonly #path: string;
  #waiting = new Map<number, Waiting>();
  #lastId = 0;
  #chunks: Buffer[] = [];
  #over = false;

  private constructor(socket: Socket, path: string) {
    this.#socket = socket;
    this.#path = path;
    socket.on("data", (data: Buffer) => this.#take(data));
    socket.on("error", () => this.#end());
    socket.on("close", () => this.#end());
    socket.unref();
  }

  /** To a socket's path, or to `127.0.0.1:PORT`. Raises `daemon_gone` if nothing listens there. */
  static open(path: string): Promise<Connection> {
    return new Promise((resolve, reject) => {
      const port = /^127\.0\.0\.1:(\d+)$/.exec(path)?.[1];
      const socket = port === undefined ? createConnection(path) : createConnection(Number(port), "127.0.0.1");
      const refuse = (): void => {
        reject(Failure.own("daemonGone", path));
      };
      socket.once("error", refuse);
      socket.once("connect", () => {
        socket.removeListener("error", refuse);
        resolve(new Connection(socket, path));
      });
    });
  }

  get isOver(): boolean {
    return this.#over;
  }

  call<T>(method: string, params: Record<string, unknown> = {}): Promise<T> {
    if (this.#over) return Promise.reject(this.#died());
    const id = ++this.#lastId;
    return new Promise<T>((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      this.#socket.ref();
      this.#socket.write(`${JSON.stringify({ id, method, params })}\n`);
    });
  }

  close(): void {
    this.onEnd = () => {};
    this.#socket.destroy();
    this.#end();
  }

  #take(data: Buffer): void {
    let start = 0;
    for (let end = data.indexOf(10); end >= 0; end = data.indexOf(10, start)) {
      this.#chunks.push(data.subarray(start, end));
      const line = Buffer.concat(this.#chunks).toString("utf8");
      this.#chunks = [];
      start = end + 1;
      this.#hear(line);
    }
    if (start < data.length) this.#chunks.push(data.subarray(start));
  }

  #hear(line: string): void {
    let told: { id?: number; result?: unknown; error?: unknown; event?: string };
    try {
      told = JSON.parse(line);
    } catch {
      this.#socket.destroy();
      return;
    }
    if (told.event !== undefined) {
      this.onEvent(told as unknown as DaemonEvent);
      return;
    }
    const waiting = this.#waiting.get(told.id ?? -1);
    if (!waiting) return;
    this.#waiting.delete(told.id as number);
    if (this.#waiting.size === 0) this.#socket.unref();
    if (told.error !== undefined) waiting.reject(Failure.from(told.error));
    else waiting.resolve(told.result as never);
  }

  #died(): Failure {
    return Failure.own("daemonDied", this.#path);
  }

  #end(): void {
    if (this.#over) return;
    this.#over = true;
    const failure = this.#died();
    for (const one of this.#waiting.values()) one.reject(failure);
    this.#waiting.clear();
    this.onEnd();
  }
}
