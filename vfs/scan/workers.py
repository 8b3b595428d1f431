"""Doing a growing heap of tasks with several threads, each of which may find more to do.

Owns the heap and the threads. The first failure ends all, and is raised to whoever waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Workers(Generic[T]):
    """``one`` does a task and returns those that it found."""

    def __init__(self, one: Callable[[T], Iterable[T]]) -> None:
        self._one = one
        self._tasks: deque[T] = deque()
        self._guard = threading.Condition()
        self._busy = 0
        self._failed: BaseException | None = None

    def run(self, tasks: Iterable[T], threads: int) -> None:
        """Do ``tasks`` and all that comes of them; with one thread, the caller's. Raises what a task raises."""
        self._tasks.extend(tasks)
        if threads <= 1:
            while self._tasks:
                self._tasks.extend(self._one(self._tasks.pop()))
            return
        crew = [threading.Thread(target=self._work, name="plyfs-walk", daemon=True) for _ in range(threads)]
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()
        if self._failed is not None:
            raise self._failed

    def _work(self) -> None:
        while True:
            with self._guard:
                while not self._tasks and self._busy and self._failed is None:
                    self._guard.wait()
                if not self._tasks or self._failed is not None:
                    self._guard.notify_all()
                    return
                task = self._tasks.pop()
                self._busy += 1
            try:
                more = self._one(task)
            except BaseException as error:
                with self._guard:
                    self._failed = error
                    self._busy -= 1
                    self._guard.notify_all()
                return
            with self._guard:
                self._tasks.extend(more)
                self._busy -= 1
                self._guard.notify_all()
