/**
 * How long the agent has waited for plyfs: measured at every hook of ours, so that a promise is not just a promise.
 *
 * What a busy machine adds is not counted: a timer that is due while a hook waits tells how late everything is.
 */
import { HOOK_MS } from "./patience.ts";

export class Holdups {
  /** The longest that a hook has taken so far, milliseconds, and which it was. */
  longest = 0;
  hook = "";

  async timed<T>(hook: string, work: () => T | Promise<T>): Promise<T> {
    const began = performance.now();
    let late = 0;
    const timer = setTimeout(() => {
      late = Math.max(0, performance.now() - began - HOOK_MS);
    }, HOOK_MS);
    try {
      return await work();
    } finally {
      clearTimeout(timer);
      const held = performance.now() - began - late;
      if (held > this.longest) {
        this.longest = held;
        this.hook = hook;
      }
    }
  }
}
