"""From a file on the disk to its entry: read once, stored while it is read, and looked at again afterwards.

Owns the way of bytes into the store, in the same form that sealing a mount gives them (``vfs.live.seal``), so that
equal files are equal whichever way they were captured; and telling a file that was written to meanwhile. Does not own
what is read (``walker``) nor trying again (``capture``).

Concurrency: each file is read by one thread; the store may be used by all.
"""

from __future__ import annotations

import errno
import os
import stat
from itertools import islice
from typing import NamedTuple, Protocol, TypeAlias

from store.disk import read_at
from store.errors import StoreError
from store.format import (
    CHUNK_BYTES,
    INLINE_MAX,
    Attributes,
    Blob,
    BlobPiece,
    Chunked,
    ChunkList,
    Content,
    HolePiece,
    Inline,
    Piece,
    Regular,
    Special,
    Symlink,
    encode,
)
from store.refs import BlobRef, Ino, NodeRef
from vfs.scan.platform import Handle, Platform
from vfs.scan.statindex import Inode, kind, now_ns

HOLE_MIN = 4096
"""As in ``vfs.live.seal``: smaller holes (bytes) are stored as zeros."""

Xattrs: TypeAlias = tuple[tuple[bytes, bytes], ...]

SPECIAL = frozenset({stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK})


class Objects(Protocol):
    """The part of ``store.objects`` that reading needs."""

    def put_blob(self, data: bytes | memoryview) -> BlobRef: ...

    def put_node(self, data: bytes) -> NodeRef: ...


class Unstable(Exception):  # noqa: N818 - not an error yet: it is tried again
    """The file was changed, replaced or removed while it was read."""


class Unreadable(Exception):  # noqa: N818 - becomes a row in a list
    """The file cannot be read by this user, or is of a kind that cannot be captured."""


class Read(NamedTuple):
    """What was read: ``status`` was the same before and after, ``looked_ns`` is the clock before the last look."""

    entry: Inode
    status: os.stat_result
    looked_ns: int


class Reader:
    """Reads files into ``objects``."""

    def __init__(self, platform: Platform, objects: Objects) -> None:
        self._platform = platform
        self._objects = objects

    def read(self, at: Handle, name: str, ino: Ino) -> Read:
        """The entry of ``name`` in the directory ``at``. Raises Unstable, Unreadable, StoreError or OSError."""
        try:
            status = self._platform.stat(at, name)
            if kind(status) == stat.S_IFREG:
                return self._regular(at, name, ino)
            if kind(status) == stat.S_IFLNK:
                looked = now_ns()
                entry: Inode = Symlink(
                    _attributes(status, ino, self._platform.xattrs(at, name)), self._platform.readlink(at, name)
                )
            elif kind(status) in SPECIAL:
                looked = now_ns()
                device = status.st_rdev if kind(status) in (stat.S_IFCHR, stat.S_IFBLK) else 0
                entry = Special(_attributes(status, ino, self._platform.xattrs(at, name)), kind(status), device)
            else:
                raise Unstable(name)
            if not same_file(status, self._platform.stat(at, name)):
                raise Unstable(name)
            return Read(entry, status, looked)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise Unstable(name) from error
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EIO):
                raise Unreadable(str(error)) from error
            if error.errno in (errno.ELOOP, errno.EINVAL, errno.ENXIO):
                raise Unstable(name) from error
            raise

    def _regular(self, at: Handle, name: str, ino: Ino) -> Read:
        fd, xattrs = self._open(at, name)
        try:
            before = self._platform.stat_open(fd)
            if kind(before) != stat.S_IFREG:
                raise Unstable(name)
            content = self.content(fd, before)
            looked = now_ns()
            after = self._platform.stat_open(fd)
            if not same_file(before, after):
                raise Unstable(name)
            attributes = _attributes(after, ino, self._platform.xattrs_open(fd) if xattrs is None else xattrs)
            if not same_file(after, self._platform.stat(at, name)):
                raise Unstable(name)
            return Read(Regular(attributes, content), after, looked)
        finally:
            os.close(fd)

    def _open(self, at: Handle, name: str) -> tuple[int, Xattrs | None]:
        """A descriptor; and, if the file's own mode had to be opened up for it, what can be read only then."""
        try:
            return self._platform.open_file(at, name), None
        except PermissionError:
            mode = self._platform.open_up(at, name)
            if mode is None:
                raise
        try:
            fd = self._platform.open_file(at, name)
            return fd, self._platform.xattrs_open(fd)
        finally:
            self._platform.close_again(at, name, mode)

    # --- content ---------------------------------------------------------------------------------------------------

    def content(self, fd: int, status: os.stat_result) -> Content:
        """The stored form of the open file. Raises Unstable if it is shorter than ``status`` says."""
        size = status.st_size
        sparse = getattr(status, "st_blocks", 1 << 60) * 512 < size
        if size <= CHUNK_BYTES and not (sparse and size >= HOLE_MIN):
            data = _exactly(fd, size, 0)
            return Inline(data) if size <= INLINE_MAX else Blob(self._objects.put_blob(data), size)
        runs = _data_runs(fd, size) if sparse else [(0, size)]
        if size <= CHUNK_BYTES and _largest_hole(runs, 0, size) < HOLE_MIN:
            return Blob(self._objects.put_blob(_exactly(fd, size, 0)), size)
        pieces: list[Piece] = []
        start = number = 0
        while start < size:
            while number < len(runs) and runs[number][1] <= start:
                number += 1
            # Chunks without data cost nothing, however many; the last may be too short to be a hole.
            reached = runs[number][0] if number < len(runs) else size - 1
            if reached >= start + CHUNK_BYTES:
                after = reached - reached % CHUNK_BYTES
                _add_hole(pieces, after - start)
                start = after
            end = min(start + CHUNK_BYTES, size)
            inner = []
            for a, b in islice(runs, number, None):
                if a >= end:
                    break
                inner.append((max(a, start), min(b, end)))
            self._chunk(fd, pieces, inner, start, end)
            start = end
        return Chunked(self._objects.put_node(encode(ChunkList(tuple(pieces)))), size)

    def _chunk(self, fd: int, pieces: list[Piece], runs: list[tuple[int, int]], start: int, end: int) -> None:
        if _largest_hole(runs, start, end) < HOLE_MIN:
            runs = [(start, end)]
        at = start
        for a, b in [*runs, (end, end)]:
            if a > at:
                _add_hole(pieces, a - at)
            if b > a:
                pieces.append(BlobPiece(b - a, self._objects.put_blob(_exactly(fd, b - a, a))))
            at = b


def _attributes(status: os.stat_result, ino: Ino, xattrs: Xattrs) -> Attributes:
    return Attributes(
        ino,
        stat.S_IMODE(status.st_mode),
        status.st_uid,
        status.st_gid,
        status.st_mtime_ns,
        status.st_ctime_ns,
        xattrs,
    )


def _add_hole(pieces: list[Piece], length: int) -> None:
    last = pieces[-1] if pieces else None
    if isinstance(last, HolePiece):
        pieces[-1] = HolePiece(last.length + length)
    else:
        pieces.append(HolePiece(length))


def same_file(a: os.stat_result, b: os.stat_result) -> bool:
    """True if nothing happened to a file between two looks."""
    return (a.st_ino, a.st_size, a.st_mtime_ns, a.st_ctime_ns, a.st_mode) == (
        b.st_ino,
        b.st_size,
        b.st_mtime_ns,
        b.st_ctime_ns,
        b.st_mode,
    )


def _exactly(fd: int, length: int, offset: int) -> bytes:
    if not length:
        return b""
    data = read_at(fd, length, offset)
    while len(data) < length:
        more = read_at(fd, length - len(data), offset + len(data))
        if not more:
            raise Unstable
        data += more
    return data


def _data_runs(fd: int, size: int) -> list[tuple[int, int]]:
    """(start, end) of what is no hole."""
    runs = []
    at = 0
    try:
        while at < size:
            try:
                start = os.lseek(fd, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    break
                raise
            at = min(size, os.lseek(fd, start, os.SEEK_HOLE))
            runs.append((start, at))
    except (OSError, AttributeError):  # holes cannot be asked for here
        return [(0, size)]
    return runs


def _largest_hole(runs: list[tuple[int, int]], start: int, end: int) -> int:
    largest = 0
    for a, b in runs:
        largest = max(largest, a - start)
        start = b
    return max(largest, end - start)


__all__ = ["Read", "Reader", "StoreError", "Unreadable", "Unstable", "same_file"]
