"""The working data: bytes written since the last checkpoint, in private files of the store, not hashed yet.

Owns the files below a workspace's working directory: per epoch one spool for everything small, and private files for
what grows big, whose offsets are the file's own. A file frozen by a checkpoint is never written again; it disappears
once nothing cites it. There may be any number of files, so only the last opened ones keep a descriptor.

Concurrency: ``place`` and ``freeze`` run under the core's lock; reading needs no lock; the sealer reads too.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections import OrderedDict
from typing import Final

from store.disk import punch_hole
from vfs.errors import FsError
from vfs.live.sources import Descriptor

SPOOL_LIMIT: Final = 128 * 1024
"""A write that ends beyond this offset of its file goes to a private file (bytes)."""


MOST_OPEN: Final = 512
"""Working files that have a descriptor at a time."""


class OpenFiles:
    """The descriptors of working files; what was opened first is closed first, when nobody is using it any more."""

    def __init__(self, most: int = MOST_OPEN) -> None:
        self._most = most
        self._order: OrderedDict[int, weakref.ref[WorkingFile]] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, file: WorkingFile) -> Descriptor:
        """A descriptor of ``file``, valid while the caller holds it. Raises FsError(EIO) if the file is gone."""
        with self._lock:
            descriptor = file.descriptor
            if descriptor is None:
                try:
                    descriptor = Descriptor(os.open(file.path, os.O_RDWR | os.O_CLOEXEC))
                except OSError as error:
                    number = errno.EIO if error.errno == errno.ENOENT else error.errno or errno.EIO
                    raise FsError(number, f"working file {file.number}: {error.strerror}") from error
                self._enter(file, descriptor)
            return descriptor

    def create(self, file: WorkingFile) -> None:
        """Make the file if it is not there, and open it. Raises OSError."""
        descriptor = Descriptor(os.open(file.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        with self._lock:
            self._enter(file, descriptor)

    def _enter(self, file: WorkingFile, descriptor: Descriptor) -> None:
        file.descriptor = descriptor
        self._order[file.number] = weakref.ref(file)
        while len(self._order) > self._most:
            other = self._order.popitem(last=False)[1]()
            if other is not None:
                other.descriptor = None

    def leave(self, number: int) -> None:
        """The file is no more. Takes no lock: the collector may call this anywhere."""
        self._order.pop(number, None)


class WorkingFile:
    """One file of working data. ``tail`` is where a spool goes on; ``frozen`` files are read only. ``descriptor`` is
    None while the file is closed; it is opened again when it is needed.
    """

    __slots__ = (
        "__weakref__",
        "_files",
        "descriptor",
        "frozen",
        "number",
        "path",
        "shared",
        "synced",
        "tail",
        "temporary",
    )

    def __init__(self, files: OpenFiles, path: bytes, number: int, shared: bool) -> None:
        self.descriptor: Descriptor | None = None
        self.temporary = False
        self.path = path
        self.number = number
        self.shared = shared
        self.frozen = False
        self.synced = True
        self._files = files
        files.create(self)
        self.tail = os.stat(path).st_size

    def __del__(self) -> None:
        self._files.leave(self.number)
        if self.temporary:
            try:
                os.unlink(self.path)
            except FileNotFoundError:
                pass

    def pread(self, length: int, offset: int) -> bytes:
        """Exactly ``length`` bytes at ``offset``. Raises FsError(EIO) if the file is shorter: it was damaged."""
        descriptor = self.descriptor or self._files.open(self)
        data = os.pread(descriptor.fd, length, offset)
        while len(data) < length:
            more = os.pread(descriptor.fd, length - len(data), offset + len(data))
            if not more:
                raise FsError(errno.EIO, f"working file {self.number} is too short")
            data += more
        return data

    def pwrite(self, data: bytes | memoryview, offset: int) -> None:
        """All of ``data`` at ``offset``. Raises FsError, ENOSPC in particular; then nothing may cite those bytes."""
        descriptor = self.descriptor or self._files.open(self)
        self.synced = False
        try:
            written = os.pwrite(descriptor.fd, data, offset)
            while written < len(data):
                written += os.pwrite(descriptor.fd, memoryview(data)[written:], offset + written)
        except OSError as error:
            raise FsError(error.errno or errno.EIO) from error

    def punch(self, offset: int, length: int) -> None:
        """Give back the space of a range that nothing cites; where that cannot be done it stays taken."""
        punch_hole((self.descriptor or self._files.open(self)).fd, offset, length)

    def sync(self) -> None:
        """fdatasync(2), if anything was written since the last one."""
        if not self.synced:
            descriptor = self.descriptor or self._files.open(self)
            self.synced = True
            try:
                os.fdatasync(descriptor.fd)
            except OSError as error:
                self.synced = False
                raise FsError(error.errno or errno.EIO) from error


class WorkingData:
    """The working files of one workspace. Numbers are never used twice."""

    def __init__(self, directory: bytes, next_number: int = 1) -> None:
        self.directory = directory
        self._next = next_number
        self._open: dict[int, WorkingFile] = {}
        self._files = OpenFiles()
        self.spool: WorkingFile | None = None
        self.unnamed = False
        """True if there are files whose names may not be on the disk yet."""

    @property
    def next_number(self) -> int:
        """The number that the next file gets."""
        return self._next

    def room(self) -> int:
        """How many bytes could be written now."""
        space = os.statvfs(self.directory)
        return space.f_bavail * space.f_frsize

    def create(self, shared: bool = False) -> WorkingFile:
        """A new, empty working file. Raises FsError."""
        number = self._next
        try:
            file = WorkingFile(self._files, self._path(number), number, shared)
        except OSError as error:
            raise FsError(error.errno or errno.EIO) from error
        self._next += 1
        self._open[number] = file
        self.unnamed = True
        return file

    def reopen(self, number: int) -> WorkingFile:
        """The file that a journal speaks of. Raises FsError(EIO) if it is gone."""
        file = self._open.get(number)
        if file is None:
            if not os.path.exists(self._path(number)):
                raise FsError(errno.EIO, f"working file {number} is missing")
            file = WorkingFile(self._files, self._path(number), number, shared=False)
            file.synced = False  # by whom it was written was killed, perhaps before a sync
            self._open[number] = file
            self._next = max(self._next, number + 1)
            self.unnamed = True
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
        for name in os.listdir(self.directory):
            if name.isdigit() and int(name) not in kept and int(name) not in self._open:
                os.unlink(os.path.join(self.directory, name))
                removed += 1
        return removed

    def _path(self, number: int) -> bytes:
        return os.path.join(self.directory, b"%d" % number)
