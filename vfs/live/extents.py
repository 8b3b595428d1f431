"""A file's content as runs over sources: which bytes come from where, holes being what no run covers.

Owns the map of one file. Does not own the sources (``sources``, ``working``) nor the file's size. Not thread-safe:
guarded by the core's lock; ``slice`` and ``freeze`` give immutable values that may be used without it.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple, Protocol


class Source(Protocol):
    """Bytes that never change below what cites them."""

    def pread(self, length: int, offset: int) -> bytes:
        """Exactly ``length`` bytes at ``offset``; raises FsError rather than give fewer or wrong ones."""
        ...


class Run(NamedTuple):
    """Bytes ``start`` to ``end`` of the file are bytes ``start + delta`` and on of ``source``."""

    start: int
    end: int
    source: Source
    delta: int


class Extents:
    """Runs in order, not overlapping. ``covered`` is how many bytes they cover."""

    __slots__ = ("_runs", "_starts", "covered")

    def __init__(self, runs: tuple[Run, ...] = ()) -> None:
        self._runs = list(runs)
        self._starts = [run.start for run in runs]
        self.covered = sum(run.end - run.start for run in runs)

    def __len__(self) -> int:
        return len(self._runs)

    def freeze(self) -> tuple[Run, ...]:
        """All runs, as a value."""
        return tuple(self._runs)

    def at(self, offset: int) -> Run | None:
        """The run that covers ``offset``, None in a hole."""
        index = bisect_right(self._starts, offset) - 1
        if index < 0:
            return None
        run = self._runs[index]
        return run if offset < run.end else None

    def next_data(self, offset: int) -> int | None:
        """The first byte from ``offset`` on that a run covers, None if there is none."""
        index = bisect_right(self._starts, offset) - 1
        if index >= 0 and offset < self._runs[index].end:
            return offset
        index += 1
        return self._starts[index] if index < len(self._starts) else None

    def slice(self, start: int, end: int) -> list[Run]:
        """The runs between ``start`` and ``end``, cut to that range."""
        runs = self._runs
        index = bisect_right(self._starts, start) - 1
        if index >= 0:
            run = runs[index]
            if start < run.end:
                if end <= run.end:  # the common case: one run has it all
                    return [Run(start, end, run.source, run.delta)]
            else:
                index += 1
        else:
            index = 0
        found = []
        while index < len(runs) and runs[index].start < end:
            run = runs[index]
            found.append(Run(max(start, run.start), min(end, run.end), run.source, run.delta))
            index += 1
        return found

    def put(self, start: int, end: int, source: Source, delta: int) -> None:
        """Let ``start`` to ``end`` come from ``source``, whatever was there."""
        runs = self._runs
        index = bisect_right(self._starts, start) - 1
        if 0 <= index == len(runs) - 1:  # appending to the last run, or writing within it, is what mostly happens
            last = runs[index]
            if last.source is source and last.delta == delta and start <= last.end:
                if end > last.end:
                    self.covered += end - last.end
                    runs[index] = Run(last.start, end, source, delta)
                return
        self.cut(start, end)
        index = bisect_right(self._starts, start)
        self.covered += end - start
        if index > 0:
            before = runs[index - 1]
            if before.end == start and before.source is source and before.delta == delta:
                start = before.start
                index -= 1
                del runs[index], self._starts[index]
        if index < len(runs):
            after = runs[index]
            if after.start == end and after.source is source and after.delta == delta:
                end = after.end
                del runs[index], self._starts[index]
        runs.insert(index, Run(start, end, source, delta))
        self._starts.insert(index, start)

    def cut(self, start: int, end: int) -> None:
        """Make ``start`` to ``end`` a hole."""
        if start >= end:
            return
        runs = self._runs
        first = bisect_right(self._starts, start) - 1
        if first < 0 or runs[first].end <= start:
            first += 1
        last = first
        kept = []
        while last < len(runs) and runs[last].start < end:
            run = runs[last]
            if run.start < start:
                kept.append(Run(run.start, start, run.source, run.delta))
            if run.end > end:
                kept.append(Run(end, run.end, run.source, run.delta))
            self.covered -= min(run.end, end) - max(run.start, start)
            last += 1
        if last > first:
            runs[first:last] = kept
            self._starts[first:last] = [run.start for run in kept]

    def truncate(self, size: int) -> None:
        """Drop everything from ``size`` on."""
        if self._runs and self._runs[-1].end > size:
            self.cut(size, self._runs[-1].end)


def read_runs(runs: list[Run], start: int, end: int) -> bytes:
    """The bytes ``start`` to ``end`` of a file whose ``runs`` there these are; zeros between them. May block."""
    if len(runs) == 1:
        run = runs[0]
        if run.start == start and run.end == end:
            return run.source.pread(end - start, start + run.delta)
    parts = []
    at = start
    for run in runs:
        if run.start > at:
            parts.append(bytes(run.start - at))
        parts.append(run.source.pread(run.end - run.start, run.start + run.delta))
        at = run.end
    if at < end:
        parts.append(bytes(end - at))
    return b"".join(parts)
