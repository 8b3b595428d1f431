"""Telling watchers of a restore behind the caller's back: finding out who watches takes longer than the restore.

Owns one thread that lives only while there is something to tell; restores are told in their order.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

from vfs.channel import Channel, Invalidations, Touched

log = logging.getLogger(__name__)

GATHER_SECONDS = 0.02
"""How long a restore is left alone before the search for watchers begins, which would slow down its next steps."""

FINISH_SECONDS = 5.0
"""How long ``finish`` waits for watchers to be told."""


class Waker:
    """The queue of what watchers are still to be told."""

    def __init__(self) -> None:
        self._queue: deque[tuple[Channel, list[Touched] | Invalidations]] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def wake(self, channel: Channel, touched: list[Touched]) -> None:
        """Have ``channel`` tell watchers what was touched. Returns at once."""
        if touched:
            self._put(channel, touched)

    def invalidate(self, channel: Channel, invalidations: Invalidations) -> None:
        """Have the kernel forget something, from a thread that answers no requests. Returns at once."""
        self._put(channel, invalidations)

    def _put(self, channel: Channel, work: list[Touched] | Invalidations) -> None:
        with self._lock:
            self._queue.append((channel, work))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="plyfs-wake", daemon=True)
                self._thread.start()

    def finish(self) -> None:
        """Return when everybody has been told, or after ``FINISH_SECONDS``."""
        thread = self._thread
        if thread is not None:
            thread.join(FINISH_SECONDS)

    def _run(self) -> None:
        while True:
            time.sleep(GATHER_SECONDS)
            with self._lock:
                if not self._queue:
                    self._thread = None
                    return
                channel, work = self._queue.popleft()
            try:
                if isinstance(work, Invalidations):
                    channel.invalidate(work)
                else:
                    channel.wake(work)
            except Exception:  # whatever it is, the files are right; only those who watch may not know yet
                log.exception("the kernel or watchers were not told of a change")
