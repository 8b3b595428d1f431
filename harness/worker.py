"""One thread, started before it is needed, that runs short calls in their order.

A short call waits for the core's lock, which a restore may hold: so it must not run in the trio thread, where it would
hold up every client. Against ``trio.to_thread`` this saves the thread's hand-over and limiter (docs/protocol.md has
the measurement). Does not know what it runs.

Concurrency: ``run`` is called in the trio thread, the calls run in the worker's.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar, cast

import outcome
import trio

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Worker:
    """The thread."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        while (job := self._queue.get()) is not None:
            job()

    async def run(self, call: Callable[[], T]) -> T:
        """The result of ``call``, run in the thread. Not cancellable: what has begun is finished."""
        task = trio.lowlevel.current_task()
        token = trio.lowlevel.current_trio_token()

        def job() -> None:
            token.run_sync_soon(trio.lowlevel.reschedule, task, outcome.capture(call))

        def abort(_: Any) -> trio.lowlevel.Abort:
            return trio.lowlevel.Abort.FAILED

        self._queue.put(job)
        return cast("T", await trio.lowlevel.wait_task_rescheduled(abort))

    def stop(self) -> None:
        """End the thread after what is queued."""
        self._queue.put(None)
