"""Packs: many small objects in one file, because a file of its own costs each more than its bytes.

Owns the file form (docs/format.md), writing a pack, and finding an object in those that are there. Does not own when
objects are put together, nor that their bytes are checked before they are trusted (``objects``), nor which packs are
worth their space (``sweep``).

A pack appears by rename, whole, under a name that was never used, and never changes. Its records are what counts; the
index at its end only saves reading them, and a pack whose index is damaged is read record by record.

Concurrency: ``Packs`` may be used by any thread while other processes add and remove packs; a ``PackWriter`` by any
thread too.
"""

from __future__ import annotations

import errno
import os
import re
import struct
import sys
import threading
from binascii import hexlify
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from blake3 import blake3

from store.disk import READ_FLAGS, Disk, no_space, read_at, read_descriptor, reserve_space
from store.lock import flock
from store.refs import REF_BYTES

PACKED_MAX = 256 * 1024
"""Longer objects (bytes), which only lists and pages can be, lie in files of their own."""

PACK_BYTES = 64 * 1024 * 1024
"""A pack that has grown so long is ended: it is copied when half of it is not needed any more."""

LOOSE_FIRST = 64
"""So many of what is put together become files of their own: each pack is one more place to look for every object."""

SPILL_BYTES = 1 << 20
"""So many bytes of a pack are held in memory before they are written. Their space on the disk is set aside before."""

MAGIC = b"plyfs pack 1\n\0\0\0"
_RECORD = struct.Struct(f"<{REF_BYTES}sI")
_INDEX = struct.Struct(f"<{REF_BYTES}sII")
_TRAILER = struct.Struct("<I32s16s")
_ROW = struct.Struct(f"<{REF_BYTES}sIII")
"""A row in memory: an object's name, where its bytes begin, how many they are, and the number of its pack."""
_NAME_BYTES = 16
_NAME = re.compile(rb"[0-9a-f]{32}")


class Place(NamedTuple):
    """Where the bytes of an object are: ``size`` bytes at ``offset`` of the file ``path``, or all from there on."""

    path: bytes
    offset: int
    size: int | None


def read_place(place: Place) -> bytes:
    """The bytes there, fewer if the file is shorter. Raises FileNotFoundError."""
    fd = os.open(place.path, READ_FLAGS)
    try:
        if place.size is None:
            return read_descriptor(fd, os.fstat(fd).st_size)
        return read_at(fd, place.size, place.offset)
    finally:
        os.close(fd)


class PackWriter:
    """A pack being made. What was added can be read from then on, here; it is an object once the pack is placed."""

    def __init__(self, disk: Disk, temporary: bytes, sync: bool) -> None:
        self._disk = disk
        self._temporary = temporary
        self._sync = sync
        self._guard = threading.Lock()
        self._places: dict[bytes, tuple[int, int]] = {}
        self._waiting = bytearray(MAGIC)
        self._written = 0
        self._reserved = 0
        self._fd: int | None = None
        self.is_ended = False
        """True when nothing can be added any more."""
        self._is_placed = False

    def __contains__(self, ref: bytes) -> bool:
        return ref in self._places

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self._written + len(self._waiting)

    def add(self, ref: bytes, data: bytes | memoryview) -> None:
        """Add an object. Raises NoSpaceError, and has not added it then; what was added can be written."""
        with self._guard:
            if ref in self._places:
                return
            self._reserve(len(data))
            offset = self.size + _RECORD.size
            self._places[ref] = offset, len(data)
            self._waiting += _RECORD.pack(ref, len(data))
            self._waiting += data
            if len(self._waiting) >= SPILL_BYTES:
                self._spill()

    def _reserve(self, length: int) -> None:
        """Set space aside for one more object of ``length`` bytes, and for the end of the pack."""
        rows = (len(self._places) + 1) * _INDEX.size
        needed = self.size + _RECORD.size + length + rows + _TRAILER.size
        if needed <= self._reserved:
            return
        fd = self._open()
        for end in (needed + SPILL_BYTES, needed):
            if reserve_space(fd, self._reserved, end - self._reserved):
                self._reserved = end
                return
        raise no_space(OSError(errno.ENOSPC, "", self._temporary), "write")

    def get(self, ref: bytes) -> bytes | None:
        """The bytes of an object that was added; None if it was not, or has been placed meanwhile."""
        place = self._places.get(ref)
        if place is None:  # most are not: they need not wait for what is being written
            return None
        offset, size = place
        with self._guard:
            if offset >= self._written:
                return self._waited(offset, size)
            if self._is_placed:
                return None
            if self._fd is not None:
                return read_at(self._fd, size, offset)
            return read_place(Place(self._temporary, offset, size))

    def _waited(self, offset: int, size: int) -> bytes:
        start = offset - self._written
        return bytes(self._waiting[start : start + size])

    def names(self) -> list[bytes]:
        """The objects in it."""
        return list(self._places)

    def place(self, directory: bytes) -> bytes:
        """End it: give it its name in ``directory``, and return its path. Raises NoSpaceError; may be tried again."""
        with self._guard:
            if not self.is_ended:
                self._end()
            target = directory + b"/" + hexlify(os.urandom(_NAME_BYTES))
            if sys.platform == "win32":  # what is open cannot be renamed there
                self._close()
            self._disk.rename(self._temporary, target)
            self._is_placed = True
            self._close()
            return target

    def _end(self) -> None:
        self._spill()
        fd = self._open()
        index = b"".join(sorted(_INDEX.pack(ref, *place) for ref, place in self._places.items()))
        end = index + _TRAILER.pack(len(self._places), blake3(index).digest(), MAGIC)
        try:
            self._disk.write_all(fd, end)
            self._disk.truncate(fd, self._written + len(end))  # gives back what was set aside and is not needed
            if self._sync:
                self._disk.sync_file(fd)
        except BaseException:
            self._cut(fd)
            raise
        self.is_ended = True

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def discard(self) -> None:
        """Give it up, with all that was added."""
        with self._guard:
            if self._fd is not None or self.is_ended:
                self._close()
                self._disk.unlink(self._temporary)

    def _open(self) -> int:
        if self._fd is None:
            try:
                self._fd = self._disk.create(self._temporary, 0o400)
            except FileExistsError:  # left by a dead process that had our number
                self._disk.unlink(self._temporary)
                self._fd = self._disk.create(self._temporary, 0o400)
            flock(self._fd, exclusive=True, wait=False)  # tells others, also in other containers, that it has a writer
        return self._fd

    def _spill(self) -> None:
        fd = self._open()
        os.lseek(fd, self._written, os.SEEK_SET)  # where there is no pread(2), reading has moved it
        try:
            self._disk.write_all(fd, bytes(self._waiting))
        except BaseException:
            self._cut(fd)
            raise
        self._written += len(self._waiting)
        self._waiting = bytearray()

    def _cut(self, fd: int) -> None:
        """Take away what was written beyond the records that are known to be there."""
        self._disk.truncate(fd, self._written)
        self._reserved = self._written


class Packs:
    """The packs in ``directory``."""

    def __init__(self, directory: bytes) -> None:
        self.directory = directory
        self._guard = threading.Lock()
        self._names: set[bytes] | None = None
        self._known: tuple[list[bytes], tuple[bytes, ...]] = [], ()
        """The packs by number, and tables of rows sorted by name: each is at least twice as long as the next, so that
        there are few."""

    def find(self, ref: bytes) -> list[Place]:
        """Where the object lies in packs that are known here; another process may have removed them, or made more."""
        if self._names is None:
            self.refresh()
        paths, tables = self._known
        found = []
        for table in tables:
            at = bisect_left(range(len(table) // _ROW.size), ref, key=partial(_name_in, table)) * _ROW.size
            while table.startswith(ref, at):
                _, offset, size, number = _ROW.unpack_from(table, at)
                found.append(Place(paths[number], offset, size))
                at += _ROW.size
        return found

    def refresh(self) -> bool:
        """Look which packs are there now; True if they are not those that were known."""
        with self._guard:
            names = set(self._there())
            if names == self._names:
                return False
            if self._names is None or self._names - names:
                self._names, self._known = set(), ([], ())
            new = [self._rows_of(self.directory + b"/" + name) for name in sorted(names - self._names)]
            if new:
                paths, tables = self._known
                self._known = paths, _balanced((*tables, _merged(new)))
            self._names = names
            return True

    def add(self, path: bytes) -> None:
        """Know of a pack that was just placed."""
        with self._guard:
            if self._names is not None and os.path.basename(path) not in self._names:
                rows = self._rows_of(path)
                paths, tables = self._known
                self._known = paths, _balanced((*tables, rows))
                self._names.add(os.path.basename(path))

    def _rows_of(self, path: bytes) -> bytes:
        """The table of one pack, which gets the next number."""
        paths, _ = self._known
        number = struct.pack("<I", len(paths))
        rows, _ = _rows(path)
        paths.append(path)
        return number.join([*rows, b""])

    def paths(self) -> list[bytes]:
        """The files that are there, in order, whether or not they can be read."""
        return [self.directory + b"/" + name for name in self._there()]

    def _there(self) -> list[bytes]:
        return sorted(filter(_NAME.fullmatch, os.listdir(self.directory)))

    def objects(self, path: bytes) -> list[tuple[bytes, Place]]:
        """What a pack holds: names and places, in the order of names."""
        return [(ref, Place(path, offset, size)) for ref, offset, size in map(_INDEX.unpack, _rows(path)[0])]

    def damaged(self) -> dict[bytes, int]:
        """Packs whose index cannot be used, and how many objects can be read in each all the same."""
        found = {}
        for path in self.paths():
            rows, is_good = _rows(path)
            if not is_good:
                found[path] = len(rows)
        return found


def _name_in(table: bytes, row: int) -> bytes:
    return table[row * _ROW.size : row * _ROW.size + REF_BYTES]


def _balanced(tables: tuple[bytes, ...]) -> tuple[bytes, ...]:
    while len(tables) > 1 and len(tables[-2]) < 2 * len(tables[-1]):
        tables = (*tables[:-2], _merged(tables[-2:]))
    return tables


def _merged(tables: Sequence[bytes]) -> bytes:
    if len(tables) == 1:
        return tables[0]
    rows = [table[at : at + _ROW.size] for table in tables for at in range(0, len(table), _ROW.size)]
    rows.sort()
    return b"".join(rows)


def _rows(path: bytes) -> tuple[list[bytes], bool]:
    """The rows of a pack's index, and whether that is good; what the records tell if it is not."""
    try:
        fd = os.open(path, READ_FLAGS)
    except FileNotFoundError:
        return [], True
    try:
        size = os.fstat(fd).st_size
        index = _read_index(fd, size)
        if index is None:
            return sorted(_read_records(fd, size)), False
    finally:
        os.close(fd)
    return [index[at : at + _INDEX.size] for at in range(0, len(index), _INDEX.size)], True


def _read_index(fd: int, size: int) -> bytes | None:
    """The index of a pack of ``size`` bytes; None if it is damaged."""
    if size < len(MAGIC) + _TRAILER.size:
        return None
    count, digest, magic = _TRAILER.unpack(read_at(fd, _TRAILER.size, size - _TRAILER.size))
    length = count * _INDEX.size
    start = size - _TRAILER.size - length
    if magic != MAGIC or start < len(MAGIC):
        return None
    index = read_at(fd, length, start)
    return index if blake3(index).digest() == digest else None


def _read_records(fd: int, size: int) -> Iterator[bytes]:
    """Index rows of the records that are whole."""
    at = len(MAGIC)
    while at + _RECORD.size <= size:
        ref, length = _RECORD.unpack(read_at(fd, _RECORD.size, at))
        at += _RECORD.size
        data = read_at(fd, length, at) if length <= PACKED_MAX else b""
        if len(data) == length and blake3(data).digest() == ref:
            yield _INDEX.pack(ref, at, length)
        at += length
