"""Doing many tasks, with several threads where that helps: a growing heap, or a list whose results come in order.

Owns the heap, the threads, and the choice. The first failure ends all, and is raised to whoever waits.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

LOOK_SECONDS = 0.02
"""After so long it is looked at how much of the time was waiting."""

MOSTLY_WAITING = 3
"""Threads help if the time that passed is more than so many times what the processor worked: then it is the disk that
is waited for. Else they wait for each other: 10,000 small files took 1.3 s with one and 1.7 s with two, and from a
cold cache on a fast disk 2.1 and 2.5 s.
"""


class Pace:
    """How much of the time in its ``with`` blocks this thread waited."""

    def __init__(self) -> None:
        self._passed = self._worked = 0.0
        self._began = self._began_work = 0.0

    def __enter__(self) -> None:
        self._began, self._began_work = time.perf_counter(), time.thread_time()

    def __exit__(self, *_: object) -> None:
        self._passed += time.perf_counter() - self._began
        self._worked += time.thread_time() - self._began_work

    def is_waiting(self) -> bool:
        """True if most of the last stretch was waiting; False, too, while it is too short to tell."""
        if self._passed < LOOK_SECONDS:
            return False
        waited = self._passed > MOSTLY_WAITING * self._worked
        self._passed = self._worked = 0.0
        return waited


def in_order(one: Callable[[T], R], tasks: Iterable[T], threads: int) -> Iterator[R]:
    """The results of ``one`` for each task, in order: by the calling thread, or by ``threads`` once it mostly waits.

    Raises what a task raises.
    """
    left = iter(tasks)
    pace = Pace()
    for task in left:
        with pace:
            result = one(task)
        yield result
        if threads > 1 and pace.is_waiting():
            with ThreadPoolExecutor(threads, "plyfs-read") as pool:
                yield from pool.map(one, left)


class Workers(Generic[T]):
    """``one`` does a task and returns those that it found."""

    def __init__(self, one: Callable[[T], Iterable[T]]) -> None:
        self._one = one
        self._tasks: deque[T] = deque()
        self._guard = threading.Condition()
        self._busy = 0
        self._failed: BaseException | None = None

    def run(self, tasks: Iterable[T], threads: int) -> None:
        """Do ``tasks`` and all that comes of them, by the calling thread, or by ``threads`` once it mostly waits.

        Raises what a task raises.
        """
        self._tasks.extend(tasks)
        pace = Pace()
        while self._tasks and not (threads > 1 and pace.is_waiting()):
            with pace:
                self._tasks.extend(self._one(self._tasks.pop()))
        if self._tasks:
            self._together(threads)

    def _together(self, threads: int) -> None:
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
