/** A failure that a person is told of: a code for programs, what failed, and what to do. */
export class Failure extends Error {
  readonly code: string;
  readonly hint: string;

  constructor(code: string, message: string, hint = "") {
    super(message);
    this.code = code;
    this.hint = hint;
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
}
