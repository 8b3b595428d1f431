/** How long plyfs may hold up an agent, and waiting no longer than that. */

/** Before a prompt is sent, or a turn goes on: less than the 200 ms that a person would notice. */
export const HOOK_MS = 150;

/** Before a tool runs, which might write what a checkpoint under way should not have. */
export const TOOL_MS = 30_000;

/** Without an answer for so long, the daemon is asked on another connection whether it lives (docs/protocol.md). */
export const ANSWER_MS = 5000;

/** And is given up if that is not answered either. */
export const SILENT_MS = 10_000;

/** True if `work` has ended within `ms`, well or badly; it goes on if not. */
export async function within(ms: number, work: Promise<unknown>): Promise<boolean> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<boolean>((resolve) => {
    timer = setTimeout(() => resolve(false), ms);
  });
  const done = work.then(
    () => true,
    () => true,
  );
  try {
    return await Promise.race([done, late]);
  } finally {
    clearTimeout(timer);
  }
}
