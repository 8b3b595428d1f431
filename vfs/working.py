"""The working data: bytes written since the last checkpoint, in private files of the store, not hashed yet.

Owns the files below a workspace's working directory: per epoch one spool for everything small, and private files for
what grows big, whose offsets are the file's own. A file frozen by a checkpoint is never written again; it disappears
once nothing cites it.

Concurrency: ``place`` and ``freeze`` run under the core's lock; reading needs no lock; the sealer reads too.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from store.disk import punch_hole
from vfs.errors import FsError

SPOOL_LIMIT: Final = 128 * 1024
"""A write that ends beyond this offset of its file goes to a private file (bytes)."""


class WorkingFile:
    """One file of working data. ``tail`` is where a spool goes on; ``frozen`` files are read only."""

    __slots__ = ("_fd", "_path", "frozen", "number", "shared", "synced", "tail", "temporary")

    def __init__(self, path: bytes, number: int, shared: bool) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.number = number
        self.shared = shared
        self.tail = os.fstat(self._fd).st_size
        self.frozen = False
        self.synced = True
        self.temporary = False

    def __del__(self) -> None:
        fd = getattr(self, "_fd", -1)
        if fd >= 0:
            os.close(fd)
        if getattr(self, "temporary", False):
            try:
                os.unlink(self._path)
            except FileNotFoundError:
                pass

    def fileno(self) -> int:
        """The descriptor, open while this object lives."""
        return self._fd

    def pread(self, length: int, offset: int) -> bytes:
        """Exactly ``length`` bytes at ``offset``. Raises FsError(EIO) if the file is shorter: it was damaged."""
        data = os.pread(self._fd, length, offset)
        while len(data) < length:
            more = os.pread(self._fd, length - len(data), offset + len(data))
            if not more:
                raise FsError(errno.EIO, f"working file {self.number} is too short")
            data += more
        return data

    def pwrite(self, data: bytes | memoryview, offset: int) -> None:
        """All of ``data`` at ``offset``. Raises FsError, ENOSPC in particular; then nothing may cite those bytes."""
        self.synced = False
        try:
            written = os.pwrite(self._fd, data, offset)
            while written < len(data):
                written += os.pwrite(self._fd, memoryview(data)[written:], offset + written)
        except OSError as error:
            raise FsError(error.errno or errno.EIO) from error

    def punch(self, offset: int, length: int) -> None:
        """Give back the space of a range that nothing cites; where that cannot be done it stays taken."""
        punch_hole(self._fd, offset, length)

    def sync(self) -> None:
        """fdatasync(2), if anything was written since the last one."""
        if not self.synced:
            self.synced = True
            try:
                os.fdatasync(self._fd)
            except OSError as error:
                self.synced = False
                raise FsError(error.errno or errno.EIO) from error


class WorkingData:
    """The working files of one workspace. Numbers are never used twice."""

    def __init__(self, directory: bytes, next_number: int = 1) -> None:
        self._directory = directory
        self._next = next_number
        self._open: dict[int, WorkingFile] = {}
        self.spool: WorkingFile | None = None

    @property
    def next_number(self) -> int:
        """The number that the next file gets."""
        return self._next

    def create(self, shared: bool = False) -> WorkingFile:
        """A new, empty working file. Raises FsError."""
        number = self._next
        try:
            file = WorkingFile(self._path(number), number, shared)
        except OSError as error:
            raise FsError(error.errno or errno.EIO) from error
        self._next += 1
        self._open[number] = file
        return file

    def reopen(self, number: int) -> WorkingFile:
        """The file that a journal speaks of. Raises FsError(EIO) if it is gone."""
        file = self._open.get(number)
        if file is None:
            if not os.path.exists(self._path(number)):
                raise FsError(errno.EIO, f"working file {number} is missing")
            file = WorkingFile(self._path(number), number, shared=False)
            self._open[number] = file
            self._next = max(self._next, number + 1)
        return file

    def spool_tail(self, length: int) -> tuple[WorkingFile, int]:
        """The spool and the offset where ``length`` bytes may be put."""
        spool = self.spool
        if spool is None:
            spool = self.spool = self.create(shared=True)
        return spool, spool.tail

    def freeze(self) -> None:
        """Let every file be read only; the next write gets a new one."""
        for file in self._open.values():
            file.frozen = True
        self._open.clear()
        self.spool = None

    def unfrozen(self) -> list[WorkingFile]:
        """The files that this epoch writes to."""
        return list(self._open.values())

    def release(self, number: int) -> None:
        """Forget a file whose content nothing cites any more."""
        file = self._open.pop(number, None)
        if file is not None:
            file.temporary = True

    def sweep(self, kept: set[int]) -> int:
        """Remove files left by earlier runs, but for those numbered in ``kept``; returns how many."""
        removed = 0
        for name in os.listdir(self._directory):
            if name.isdigit() and int(name) not in kept and int(name) not in self._open:
                os.unlink(os.path.join(self._directory, name))
                removed += 1
        return removed

    def _path(self, number: int) -> bytes:
        return os.path.join(self._directory, b"%d" % number)
