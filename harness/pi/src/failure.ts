/** A failure that a person is told of: a code for programs, what failed, and what to do. */
import { en, type Words } from "./words/en.ts";

/** Each failure that the extension itself finds: its code and its words are in `words/`. */
export type Own = keyof Words["failures"];

const CODES: Record<Own, string> = {
  notInstalled: "not_installed",
  noAnswer: "failed",
  daemonGone: "daemon_gone",
  daemonDied: "daemon_died",
  daemonSilent: "daemon_silent",
  protocol: "protocol",
  notServed: "not_mounted",
};

export class Failure extends Error {
  readonly code: string;
  readonly hint: string;
  readonly #own: ((words: Words) => [string, string]) | undefined;

  constructor(code: string, message: string, hint = "", own?: (words: Words) => [string, string]) {
    super(message);
    this.code = code;
    this.hint = hint;
    this.#own = own;
  }

  /** One of the extension's own. */
  static own(name: Own, detail: string): Failure {
    const told = (words: Words): [string, string] => words.failures[name](detail);
    return new Failure(CODES[name], ...told(en), told);
  }

  /** From the `error` object of the protocol. */
  static from(body: unknown): Failure {
    const { code, message, hint } = (body ?? {}) as Record<string, unknown>;
    return new Failure(String(code ?? "failed"), String(message ?? "failed"), String(hint ?? ""));
  }

  /** Whatever was thrown, as a failure. */
  static of(error: unknown): Failure {
    if (error instanceof Failure) return error;
    return new Failure("internal", error instanceof Error ? error.message : String(error));
  }

  /** What a person is told. */
  in(words: Words): string {
    return words.failed(...(this.#own?.(words) ?? ([this.message, this.hint] as [string, string])));
  }
}
