"""The objects of a store: immutable files named by the BLAKE3 of their bytes, in ``objects/ab/<62 hex digits>``.

Owns where they lie, that none is trusted before its bytes were checked, and when they are on the device. Does not own
what they mean (``format``) nor which of them are needed (``sweep``).

An object appears by rename or link, whole; its mtime is when it was put last. Putting writes nothing to the device by
itself: ``flush`` does, for all that was put since the last one. Whoever puts objects, and then writes down a reference
to them, does both inside ``sealing()``; a sweep deletes inside ``sweeping()``, so it never takes what is about to be
referred to.

Concurrency: any thread and any number of processes.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from binascii import hexlify
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import NamedTuple

from blake3 import blake3

from store.disk import LOCK_FLAGS, READ_FLAGS, Disk, read_at, read_descriptor, write_at
from store.errors import DamagedError, MissingError
from store.refs import BlobRef, NodeRef

OBJECT_MODE = 0o400

SYNC_AT_ONCE = sys.platform == "win32"
"""Windows flushes only what is open for writing, which no object is later; and it cannot flush a whole file system."""

FLUSH_EACH = 8
"""Up to this many objects are flushed one by one; more of them cost less as one syncfs(2)."""

REMEMBERED = 1 << 16
"""How many objects a process remembers as checked (about 100 bytes each)."""

_FANOUT = re.compile(rb"[0-9a-f]{2}")
_REST = re.compile(rb"[0-9a-f]{62}")


class Found(NamedTuple):
    """An object as a walk over the store finds it: its name, its length in bytes, and when it was put last (ns)."""

    ref: bytes
    size: int
    put_ns: int


class Objects:
    """The objects below ``root``, which exists; ``lock`` is the path of the file that sealing and sweeping lock."""

    def __init__(self, root: bytes, lock: bytes, disk: Disk) -> None:
        self.root = root
        self._prefix = root + b"/"
        self._temporary = root + b"/tmp/"
        self._lock_path = lock
        self._disk = disk
        self._unique = count()
        self._guard = threading.Lock()
        self._checked: dict[bytes, bool] = {}
        """Objects whose bytes this process has checked or written; True once they are on the device."""
        self._seen: dict[bytes, int] = {}
        """The change time of each object's file when its bytes were checked for reading."""
        self._unflushed: set[bytes] = set()
        self._doubtful: set[bytes] = set()
        """Objects that a flush failed for: the kernel may take them for written, so they are written once more."""
        self._sweeps = b""

    def path(self, ref: bytes) -> bytes:
        """Where the object named ``ref`` lies."""
        digits = hexlify(ref)
        return self._prefix + digits[:2] + b"/" + digits[2:]

    def has(self, ref: bytes) -> bool:
        """True if there is a file of that name; its bytes are not looked at."""
        return os.access(self.path(ref), os.F_OK)

    def size(self, ref: bytes) -> int:
        """The length of an object in bytes, 0 if it is not there."""
        try:
            return os.stat(self.path(ref)).st_size
        except FileNotFoundError:
            return 0

    def put_ns(self, ref: bytes) -> int:
        """When an object was put last, also if it was there already (nanoseconds since 1970); 0 if it is not there."""
        try:
            return os.stat(self.path(ref)).st_mtime_ns
        except FileNotFoundError:
            return 0

    # Reading

    def get_node(self, ref: NodeRef) -> bytes:
        """The bytes of a page, chunk list or layer, checked each time. Raises MissingError or DamagedError."""
        data = self._read(ref)
        if blake3(data).digest() != ref:
            raise self._damaged(ref, len(data))
        return data

    def read_blob(self, ref: BlobRef, size: int) -> bytes:
        """The ``size`` bytes of a blob, checked each time. Raises MissingError or DamagedError."""
        data = self._read(ref)
        if len(data) != size or blake3(data).digest() != ref:
            raise self._damaged(ref, len(data))
        return data

    def open_blob(self, ref: BlobRef, size: int) -> int:
        """A descriptor for reading a blob of ``size`` bytes, which are checked the first time this process opens it,
        and again whenever its file has been touched since.

        Raises MissingError or DamagedError.
        """
        try:
            fd = os.open(self.path(ref), READ_FLAGS)
        except FileNotFoundError:
            raise self._missing(ref) from None
        try:
            status = os.fstat(fd)
            if status.st_size != size:
                raise self._damaged(ref, status.st_size)
            if self._seen.get(ref) != status.st_ctime_ns:
                if not _hashes_to(fd, ref):
                    raise self._damaged(ref, status.st_size)
                self._see(ref, status.st_ctime_ns)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def check_blob(self, ref: BlobRef, size: int) -> None:
        """As ``open_blob``, without keeping it open. Raises MissingError or DamagedError."""
        try:
            status = os.stat(self.path(ref))
        except FileNotFoundError:
            raise self._missing(ref) from None
        if status.st_size != size or self._seen.get(ref) != status.st_ctime_ns:
            os.close(self.open_blob(ref, size))

    def bytes_used(self) -> int:
        """How many bytes the objects hold, as far as their sizes tell."""
        return sum(found.size for found in self.walk())

    def verify(self, ref: bytes) -> None:
        """Read the object and check its bytes. Raises MissingError or DamagedError."""
        try:
            fd = os.open(self.path(ref), READ_FLAGS)
        except FileNotFoundError:
            raise self._missing(ref) from None
        try:
            if not _hashes_to(fd, ref):
                raise self._damaged(ref, os.fstat(fd).st_size)
        finally:
            os.close(fd)

    def _read(self, ref: bytes) -> bytes:
        try:
            fd = os.open(self.path(ref), READ_FLAGS)
        except FileNotFoundError:
            raise self._missing(ref) from None
        try:
            return read_descriptor(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)

    def _missing(self, ref: bytes) -> MissingError:
        return MissingError(f"object {ref.hex()} is not in the store", hint="`plyfs fsck` lists what needs it")

    def _damaged(self, ref: bytes, size: int) -> DamagedError:
        return DamagedError(
            f"object {ref.hex()} is damaged: its {size} bytes are not what its name says",
            hint="`plyfs fsck` lists what needs it",
        )

    # Writing

    def put_blob(self, data: bytes | memoryview) -> BlobRef:
        """Store a piece of content and return its name. Raises NoSpaceError."""
        ref = blake3(data).digest()
        self._put(ref, data)
        return BlobRef(ref)

    def put_node(self, data: bytes) -> NodeRef:
        """Store a page, chunk list or layer and return its name. Raises NoSpaceError."""
        ref = blake3(data).digest()
        self._put(ref, data)
        return NodeRef(ref)

    def _put(self, ref: bytes, data: bytes | memoryview) -> None:
        path = self.path(ref)
        if os.access(path, os.F_OK) and self._trust(ref, path, len(data)):
            return
        self._write(ref, data)

    def _write(self, ref: bytes, data: bytes | memoryview) -> None:
        temporary = self._temporary + b"%d-%d" % (os.getpid(), next(self._unique))
        try:
            self._disk.write_new(temporary, data, OBJECT_MODE, SYNC_AT_ONCE)
        except FileExistsError:  # left by a dead process that had our number
            self._disk.unlink(temporary)
            self._disk.write_new(temporary, data, OBJECT_MODE, SYNC_AT_ONCE)
        self._place(temporary, self.path(ref), ref)

    def adopt(self, path: bytes, ref: BlobRef, keep: bool = False) -> None:
        """Make the file at ``path``, whose bytes the caller knows to be those of ``ref``, the object of that name.

        The file is moved, or unlinked if the object is there already; with ``keep`` it stays under its own name too
        (a hard link), for a caller whose journal still speaks of it. It must not be written to again.
        """
        target = self.path(ref)
        if os.access(target, os.F_OK) and self._trust(ref, target, os.stat(path).st_size):
            if not keep:
                self._disk.unlink(path)
            return
        self._disk.chmod(path, OBJECT_MODE)
        self._disk.touch(path)
        if not keep:
            self._place(path, target, ref)
            return
        temporary = self._temporary + b"%d-%d" % (os.getpid(), next(self._unique))
        try:
            self._disk.link(path, temporary)
        except FileExistsError:
            self._disk.unlink(temporary)
            self._disk.link(path, temporary)
        self._place(temporary, target, ref)

    def _place(self, path: bytes, target: bytes, ref: bytes) -> None:
        """Give a complete file its name among the objects: from then on it exists."""
        try:
            self._disk.rename(path, target)
        except FileNotFoundError:
            try:
                self._disk.mkdir(os.path.dirname(target))
            except FileExistsError:
                pass
            self._disk.rename(path, target)
        self._remember(ref, False)
        with self._guard:
            self._unflushed.add(ref)

    def _trust(self, ref: bytes, path: bytes, size: int) -> bool:
        """True if the object that is there is good; it is flushed with the others unless it is known to be durable.

        Its bytes are checked once in each process: a power failure can leave a file of the right name without them.
        """
        state = self._checked.get(ref)
        if state is None:
            try:
                fd = os.open(path, READ_FLAGS)
            except FileNotFoundError:
                return False
            try:
                if os.fstat(fd).st_size != size or not _hashes_to(fd, ref):
                    return False
            finally:
                os.close(fd)
            self._remember(ref, False)
        try:
            self._disk.touch(path)  # a sweep can tell that somebody has just put it
        except FileNotFoundError:
            return False
        if not state:
            with self._guard:
                self._unflushed.add(ref)
        return True

    def _remember(self, ref: bytes, durable: bool) -> None:
        with self._guard:
            self._checked[ref] = durable
            if len(self._checked) > REMEMBERED:
                del self._checked[next(iter(self._checked))]

    def _see(self, ref: bytes, ctime_ns: int) -> None:
        with self._guard:
            self._seen[ref] = ctime_ns
            if len(self._seen) > REMEMBERED:
                del self._seen[next(iter(self._seen))]

    def flush(self) -> None:
        """Return when all objects put or adopted so far are on the device.

        Raises OSError, NoSpaceError or DamagedError; it may be asked for again then.
        """
        with self._guard:
            waiting, self._unflushed = self._unflushed, set()
        try:
            for ref in sorted(waiting & self._doubtful):
                self._write(ref, self.get_node(NodeRef(ref)))
            self._flush(waiting)
        except BaseException:
            with self._guard:
                self._unflushed |= waiting
                self._doubtful |= waiting
            raise
        self._doubtful -= waiting
        for ref in waiting:
            self._remember(ref, True)

    def _flush(self, waiting: set[bytes]) -> None:
        if not waiting or SYNC_AT_ONCE:
            return
        if len(waiting) > FLUSH_EACH:
            fd = os.open(self.root, READ_FLAGS)
            try:
                self._disk.syncfs(fd)
            finally:
                os.close(fd)
            return
        directories = {self.root}
        for ref in waiting:
            path = self.path(ref)
            try:
                fd = os.open(path, READ_FLAGS)
            except FileNotFoundError:
                raise self._missing(ref) from None
            try:
                self._disk.sync_file(fd)
            finally:
                os.close(fd)
            directories.add(os.path.dirname(path))
        for directory in sorted(directories, reverse=True):
            self._disk.sync_dir(directory)

    # Walking and deleting

    def iterate(self) -> Iterator[bytes]:
        """The name of every object that is there, in no particular order."""
        return (found.ref for found in self.walk())

    def walk(self) -> Iterator[Found]:
        """Every object that is there, in no particular order. What comes or goes meanwhile may be missed or gone."""
        for directory in self._fanout():
            with os.scandir(self._prefix + directory) as rows:
                for row in rows:
                    if _REST.fullmatch(row.name):
                        try:
                            status = row.stat(follow_symlinks=False)
                        except FileNotFoundError:
                            continue
                        ref = bytes.fromhex((directory + row.name).decode())
                        yield Found(ref, status.st_size, status.st_mtime_ns)

    def _fanout(self) -> list[bytes]:
        return sorted(name for name in os.listdir(self.root) if _FANOUT.fullmatch(name))

    def temporaries(self) -> list[bytes]:
        """Paths of files that were being written, by a living process or a dead one."""
        return [self._temporary + name for name in os.listdir(self._temporary)]

    def strays(self) -> list[bytes]:
        """Paths among the objects that are no objects."""
        known = {b"tmp", *self._fanout()}
        found = [self._prefix + name for name in os.listdir(self.root) if name not in known]
        for directory in self._fanout():
            for name in os.listdir(self._prefix + directory):
                if not _REST.fullmatch(name):
                    found.append(self._prefix + directory + b"/" + name)
        return found

    def delete(self, ref: bytes) -> None:
        """Remove an object; it is no error if it is gone."""
        with self._guard:
            self._checked.pop(ref, None)
            self._unflushed.discard(ref)
        try:
            self._disk.unlink(self.path(ref))
        except FileNotFoundError:
            pass

    # Sealing and sweeping exclude each other

    @contextmanager
    def sealing(self) -> Iterator[None]:
        """While this lasts no sweep deletes anything. Waits for a sweep that is deleting."""
        with self._locked(exclusive=False) as fd:
            sweeps = read_at(fd, 16, 0)
            with self._guard:
                if sweeps != self._sweeps:  # what was known to exist may have been deleted and put again
                    self._sweeps = sweeps
                    self._checked.clear()
            yield

    @contextmanager
    def sweeping(self) -> Iterator[None]:
        """While this lasts nobody seals. Waits for those who do."""
        with self._locked(exclusive=True) as fd:
            try:
                yield
            finally:
                write_at(fd, os.urandom(16), 0)

    @contextmanager
    def _locked(self, exclusive: bool) -> Iterator[int]:
        from store.lock import flock

        fd = os.open(self._lock_path, LOCK_FLAGS, 0o600)
        try:
            flock(fd, exclusive=exclusive, wait=True)
            yield fd
        finally:
            os.close(fd)


def _hashes_to(fd: int, ref: bytes) -> bool:
    """True if the file's bytes, from the start, have the name ``ref``. The descriptor's place does not move."""
    hasher = blake3()
    offset = 0
    while data := read_at(fd, 1 << 20, offset):
        hasher.update(data)
        offset += len(data)
    return hasher.digest() == ref
