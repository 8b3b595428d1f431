/** How often a scanned workspace is scanned for the badge's sake: seldom, and while the agent has nothing to do. */
import type { Context } from "./agent.ts";

/** One part in so many of the time. */
const SHARE = 50;

export class Pace {
  #next = 0;

  isDue(ctx: Context): boolean {
    return Date.now() >= this.#next && ctx.isIdle();
  }

  /** A scan that began then (ms since 1970) has just ended. */
  scanned(began: number): void {
    this.#next = began + (Date.now() - began) * SHARE;
  }
}
