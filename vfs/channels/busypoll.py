"""Waiting awake for the next request, for as long as that pays.

Owns the decision whether the serving thread sleeps in the kernel or looks again and again. Somebody who works in the
mount usually asks the next question within microseconds of an answer. Putting the thread to sleep and waking it costs
more than most answers (an idle processor has to be started by an interrupt, in a virtual machine by leaving it), which
the caller waits for: measured, staying awake makes a request cost the caller a third less. It is what KVM's halt
polling and busy polling of sockets do.

It must not cost others their processor: after a wait in vain the next ones are left out, twice as many each time it
goes on like that; so too when the scheduler took the processor away from the thread, which it does when somebody else
needs it. With one processor nobody could ask while we look, so there is no waiting awake at all; nor in a container
that may use less than two (cgroup v2, ``cpu.max``), where the wait would be taken from the caller's share.

Concurrency: one for each serving thread.
"""

from __future__ import annotations

import os
import resource
import select
import sys
import time
from pathlib import Path

CGROUP = Path("/proc/self/cgroup")
CGROUP_ROOT = Path("/sys/fs/cgroup")

WINDOW_NS = 50_000
"""How long to wait awake: some times what a caller takes between two requests that follow each other."""

LONGEST_REST = 256
"""After waits in vain, at most so many requests are waited for asleep before it is tried again."""

FIRST_REST = 16
"""So many requests a thread waits for asleep after it has taken the lead: whom it relieved may need the GIL."""

PATIENCE = 3
"""So many waits in vain for each one that was not are put up with."""

CHECKED_EVERY = 16
"""Requests between two questions whether the scheduler took the processor away."""

CROWDED_REST = 4096
"""So many requests are waited for asleep when it did."""


def processors() -> float:
    """How many processors this process may use at a time, by affinity and by the quota of its control group."""
    count = float(len(os.sched_getaffinity(0)))
    try:
        group = next(line[3:] for line in CGROUP.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return count
    for directory in {CGROUP_ROOT, CGROUP_ROOT / group.lstrip("/")}:
        try:
            quota, period = (directory / "cpu.max").read_text().split()
            count = min(count, int(quota) / int(period))
        except (OSError, ValueError):  # no such file in the topmost group; "max" for no limit
            continue
    return count


class BusyPoll:
    """Waits for ``fd`` to become readable, or leaves that to the read."""

    __slots__ = ("_checked", "_credit", "_poll", "_possible", "_rest", "_resting", "_switches")

    def __init__(self, fd: int) -> None:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        self._poll = poll.poll
        self._possible = processors() >= 2
        self._rest = 1
        self.begin()

    def begin(self) -> None:
        """The calling thread takes the lead."""
        self._credit = PATIENCE
        self._checked = CHECKED_EVERY
        self._resting = FIRST_REST if self._possible else sys.maxsize
        self._switches = _taken_away()

    def wait(self) -> None:
        """Return when there is something to read, or when it is better to go to sleep."""
        if self._resting:
            self._resting -= 1
            return
        poll, clock = self._poll, time.monotonic_ns
        end = clock() + WINDOW_NS
        while not poll(0):
            if clock() > end:
                self._in_vain()
                return
        if self._credit < PATIENCE:
            self._credit += 1
            if self._credit == PATIENCE:
                self._rest = 1
        self._checked -= 1
        if not self._checked:
            self._look_at_scheduler()

    def _in_vain(self) -> None:
        self._credit -= 1
        if self._credit <= 0:
            self._resting = self._rest
            self._rest = min(2 * self._rest, LONGEST_REST)
            self._credit = 1

    def _look_at_scheduler(self) -> None:
        self._checked = CHECKED_EVERY
        switches = _taken_away()
        if switches != self._switches:
            self._resting = CROWDED_REST
        self._switches = switches


def _taken_away() -> int:
    """How often the calling thread has lost its processor without wanting to."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
