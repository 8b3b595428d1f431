"""Looking after a mount while it lasts: what was answered does not stay in memory only for long.

Owns one thread. Every few seconds it puts what was written since on the disk, as a disk file system does by itself, so
that a power loss costs seconds and not the whole working layer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from vfs.errors import FsError

BARRIER_SECONDS = 5.0


class Keeper:
    """Calls ``barrier`` at intervals until stopped; ``on_problem`` hears of failures."""

    def __init__(self, barrier: Callable[[], None], on_problem: Callable[[str], None]) -> None:
        self._barrier = barrier
        self._on_problem = on_problem
        self._stopping = False
        self._wanted = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plyfs-keep", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def hurry(self) -> None:
        """Do not wait for the next interval."""
        self._wanted.set()

    def stop(self) -> None:
        """End, after what is being done."""
        self._stopping = True
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._wanted.wait(BARRIER_SECONDS)
            self._wanted.clear()
            if self._stopping:
                return
            try:
                self._barrier()
            except FsError as error:
                self._on_problem(f"what was written lately is not on the disk yet: {error}")
