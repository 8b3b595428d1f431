"""Giving back the space of working data that nothing needs any more: of files that were removed or cut short.

Owns what waits to be given back. Nothing is before the records that made it needless are durable: a power loss before
that brings the file back, and it must have its bytes. Guarded by the tree's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from vfs.live.extents import Run
from vfs.live.working import WorkingFile

SMALLEST = 4096
"""Shorter pieces (bytes) are not worth a system call; the next checkpoint's sealing frees them all."""

EAGER_BYTES = 1 << 20
"""With more than this waiting, the barrier after which it can be given back is asked for at once."""


class _Piece(NamedTuple):
    file: WorkingFile
    offset: int
    length: int
    record: int


class Reclaim:
    """What waits. ``on_much`` is called, once, when it has become much."""

    def __init__(self) -> None:
        self._waiting: list[_Piece] = []
        self._bytes = 0
        self.on_much: Callable[[], None] = lambda: None

    def give_up(self, runs: Iterable[Run], record: int) -> None:
        """The working data of ``runs`` is not needed once ``record`` records of this epoch are durable."""
        for run in runs:
            length = run.end - run.start
            source = run.source
            if type(source) is WorkingFile and not source.frozen and length >= SMALLEST:
                self._waiting.append(_Piece(source, run.start + run.delta, length, record))
                before = self._bytes
                self._bytes += length
                if before <= EAGER_BYTES < self._bytes:
                    self.on_much()

    def collect(self, durable: int) -> None:
        """The first ``durable`` records of this epoch are on the disk."""
        if not self._waiting:
            return
        left = []
        for piece in self._waiting:
            if piece.record > durable and not piece.file.frozen:
                left.append(piece)
            elif not piece.file.frozen:  # frozen ones belong to a checkpoint, which is about to be sealed
                piece.file.punch(piece.offset, piece.length)
        self._waiting = left
        self._bytes = sum(piece.length for piece in left)
