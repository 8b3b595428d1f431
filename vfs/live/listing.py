"""A directory's names in an order that stays: the offset of a name never changes while the kernel knows the directory.

Owns the order of one directory's names, made when it is first listed. A removed name leaves a gap, a new one goes to
the end, so a reader that comes back with an offset skips nothing that was there all the time and sees nothing twice.
Guarded by the core's lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from store.refs import Ino

FIRST_OFFSET = 2
"""Offsets 0 and 1 are before ``.`` and ``..``."""


class Row(NamedTuple):
    """One name; ``offset`` is where reading goes on after it; ``type`` is S_IFMT's bits shifted right by 12."""

    offset: int
    name: bytes
    ino: Ino
    type: int


class Listing:
    """The rows of one directory, ``.`` and ``..`` not among them."""

    __slots__ = ("_index", "_rows")

    def __init__(self, rows: Iterable[tuple[bytes, Ino, int]]) -> None:
        self._rows: list[Row | None] = [
            Row(position, name, ino, kind) for position, (name, ino, kind) in enumerate(rows, FIRST_OFFSET + 1)
        ]
        self._index = {row.name: position for position, row in enumerate(self._rows) if row is not None}

    def __len__(self) -> int:
        return len(self._index)

    def add(self, name: bytes, ino: Ino, kind: int) -> None:
        """A name that is new, or whose inode is."""
        position = self._index.get(name)
        if position is None:
            position = self._index[name] = len(self._rows)
            self._rows.append(None)
        self._rows[position] = Row(FIRST_OFFSET + position + 1, name, ino, kind)

    def remove(self, name: bytes) -> None:
        """A name that is no more."""
        position = self._index.pop(name, None)
        if position is not None:
            self._rows[position] = None

    def renumber(self, numbers: dict[Ino, Ino]) -> bool:
        """Some inodes show other numbers from now on, under the same names. True if any was listed here."""
        found = False
        for position, row in enumerate(self._rows):
            if row is not None and row.ino in numbers:
                self._rows[position] = row._replace(ino=numbers[row.ino])
                found = True
        return found

    def after(self, offset: int, most: int) -> list[Row]:
        """Up to ``most`` places of the list from ``offset`` on, gaps left out (so it may be fewer before the end)."""
        start = max(offset - FIRST_OFFSET, 0)
        rows = self._rows
        found: list[Row] = []
        while not found and start < len(rows):
            found = [row for row in rows[start : start + most] if row is not None]
            start += most
        return found
