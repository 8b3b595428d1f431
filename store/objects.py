"""The objects of a store: immutable bytes named by their BLAKE3, in ``objects/ab/<62 hex digits>`` or in packs.

Owns where they lie, that none is trusted before its bytes were checked, and when they are on the device. Does not own
what they mean (``format``), packs that are being made (``gathering``) and their form (``packs``), nor which objects are
needed (``sweep``).

An object appears by rename, whole; the mtime of its file is when it was put last. Putting writes nothing to the device
by itself: ``flush`` does, for all that was put since the last one. Whoever puts objects, and then writes down a
reference to them, does both inside ``sealing()``; a sweep deletes inside ``sweeping()``, so it never takes what is
about to be referred to.

Concurrency: any thread and any number of processes.
"""

from __future__ import annotations

import os
import sys
import threading
from binascii import hexlify
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import count
from typing import NamedTuple

from blake3 import blake3

from store.disk import LOCK_FLAGS, READ_FLAGS, Disk, read_at, write_at
from store.errors import DamagedError, MissingError
from store.gathering import Gathering, OpenPacks
from store.inventory import Inventory
from store.packs import PACKED_MAX, Packs, Place, read_place
from store.refs import BlobRef, NodeRef

OBJECT_MODE = 0o400

SYNC_AT_ONCE = sys.platform == "win32"
"""Windows flushes only what is open for writing, which no object is later; and it cannot flush a whole file system."""

FLUSH_EACH = 8
"""Up to this many files are flushed one by one; more of them cost less as one syncfs(2)."""

REMEMBERED = 1 << 16
"""How many objects a process remembers as checked (about 100 bytes each)."""


class Opened(NamedTuple):
    """An open blob: a descriptor to be closed, and where in that file its first byte is."""

    fd: int
    start: int


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
        self._checked: OrderedDict[bytes, bool] = OrderedDict()
        """Objects whose bytes this process has checked or written; True once they are on the device."""
        self._seen: OrderedDict[bytes, int] = OrderedDict()
        """The change time of each object's file when its bytes were checked for reading."""
        self._unflushed: dict[bytes, bytes] = {}
        """Objects that are not known to be on the device, and the files that they are in."""
        self._packs = Packs(root + b"/packs")
        self.inventory = Inventory(root, self._packs)
        self._gathered = OpenPacks(disk, self._packs, self.inventory, self._new_name, SYNC_AT_ONCE)
        self._doubtful: set[bytes] = set()
        """Objects that a flush failed for: the kernel may take them for written, so they are written once more."""
        self._sweeps = b""

    def path(self, ref: bytes) -> bytes:
        """Where the object named ``ref`` lies if it has a file of its own."""
        digits = hexlify(ref)
        return self._prefix + digits[:2] + b"/" + digits[2:]

    def has(self, ref: bytes) -> bool:
        """True if it is there; its bytes are not looked at."""
        return ref in self._gathered or any(os.access(place.path, os.F_OK) for place in self._places(ref))

    def size(self, ref: bytes) -> int:
        """The length of an object in bytes, 0 if it is not there."""
        gathered = self._gathered.get(ref)
        if gathered is not None:
            return len(gathered)
        for path, _, size in self._places(ref):
            try:
                found = os.stat(path).st_size
            except FileNotFoundError:
                continue
            return found if size is None else size
        return 0

    def _places(self, ref: bytes) -> Iterator[Place]:
        """Where the object may lie. What follows the first few is for whoever did not find it there."""
        yield Place(self.path(ref), 0, None)
        known = self._packs.find(ref)
        yield from known
        if self._packs.refresh():  # another process placed packs, or removed some and put what they had elsewhere
            yield from (place for place in self._packs.find(ref) if place not in known)

    # Reading

    def get_node(self, ref: NodeRef) -> bytes:
        """The bytes of a page, chunk list or layer, checked each time. Raises MissingError or DamagedError."""
        return self._read(ref)

    def read_blob(self, ref: BlobRef, size: int) -> bytes:
        """The ``size`` bytes of a blob, checked each time. Raises MissingError or DamagedError."""
        data = self._read(ref)
        if len(data) != size:
            raise self._damaged(ref, len(data))
        return data

    def open_blob(self, ref: BlobRef, size: int) -> Opened:
        """A blob of ``size`` bytes, open for reading. Its bytes are checked the first time this process opens it, and
        again whenever its file has been touched since.

        Raises MissingError or DamagedError.
        """
        if ref in self._gathered:
            self._place_packs()
        damaged: DamagedError | None = None
        for place in self._places(ref):
            try:
                fd = os.open(place.path, READ_FLAGS)
            except FileNotFoundError:
                continue
            try:
                status = os.fstat(fd)
                found = status.st_size if place.size is None else place.size
                if found != size:
                    raise self._damaged(ref, found)
                if self._seen.get(ref) != status.st_ctime_ns:
                    if not _hashes_to(fd, ref, place):
                        raise self._damaged(ref, found)
                    self._see(ref, status.st_ctime_ns)
            except DamagedError as error:
                os.close(fd)
                damaged = error
            except BaseException:
                os.close(fd)
                raise
            else:
                return Opened(fd, place.offset)
        raise damaged or self._missing(ref)

    def check_blob(self, ref: BlobRef, size: int) -> None:
        """As ``open_blob``, without keeping it open. Raises MissingError or DamagedError."""
        seen = self._seen.get(ref)
        for path, _, length in self._places(ref) if seen is not None else ():
            try:
                status = os.stat(path)
            except FileNotFoundError:
                continue
            if status.st_ctime_ns == seen and (status.st_size if length is None else length) == size:
                return
        os.close(self.open_blob(ref, size).fd)

    def verify(self, ref: bytes) -> None:
        """Read the object and check its bytes. Raises MissingError or DamagedError."""
        self._read(ref)

    def _read(self, ref: bytes) -> bytes:
        """The bytes of the object, from where they are good."""
        gathered = self._gathered.get(ref)
        if gathered is not None:
            return gathered
        damaged: int | None = None
        for place in self._places(ref):
            try:
                data = read_place(place)
            except FileNotFoundError:
                continue
            if blake3(data).digest() == ref:
                return data
            damaged = len(data)
        raise self._missing(ref) if damaged is None else self._damaged(ref, damaged)

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

    def _put(self, ref: bytes, data: bytes | memoryview) -> bool:
        """Store an object; True if it was not there."""
        if self._is_there(ref, len(data)):
            return False
        self._write(ref, data)
        return True

    def _is_there(self, ref: bytes, size: int) -> bool:
        """True if the object is there and good, or is in a pack that is being made."""
        path = self.path(ref)
        if os.access(path, os.F_OK) and self._trust(ref, Place(path, 0, None), size):
            return True
        return ref in self._gathered or any(self._trust(ref, place, size) for place in self._packs.find(ref))

    def _write(self, ref: bytes, data: bytes | memoryview) -> None:
        temporary = self._new_name()
        try:
            self._disk.write_new(temporary, data, OBJECT_MODE, SYNC_AT_ONCE)
        except FileExistsError:  # left by a dead process that had our number
            self._disk.unlink(temporary)
            self._disk.write_new(temporary, data, OBJECT_MODE, SYNC_AT_ONCE)
        target = self.path(ref)
        try:
            self._rename(temporary, target)
        except Exception:
            self._disk.unlink(temporary)
            raise
        self._was_put(ref, target)

    def _rename(self, temporary: bytes, target: bytes) -> None:
        """Give a complete file its name among the objects: from then on it exists."""
        try:
            self._disk.rename(temporary, target)
        except FileNotFoundError:
            try:
                self._disk.mkdir(os.path.dirname(target))
            except FileExistsError:
                pass
            self._disk.rename(temporary, target)

    def _new_name(self) -> bytes:
        return self._temporary + b"%d-%d" % (os.getpid(), next(self._unique))

    def _was_put(self, ref: bytes, path: bytes) -> None:
        self._remember(ref, False)
        with self._guard:
            self._unflushed[ref] = path

    # Putting many

    @contextmanager
    def gathering(self) -> Iterator[Gathering]:
        """For putting many objects: all but the first go into packs. Afterwards it is as if they were put one by one.

        Until then a kill takes what was gathered, so nothing may be written down that refers to it. Raises NoSpaceError
        at the end; what was put is kept then, and ``flush`` tries again.
        """
        try:
            yield Gathering(self._put, self._gather)
        finally:
            self._place_packs()

    def _gather(self, ref: bytes, data: bytes | memoryview) -> None:
        if len(data) > PACKED_MAX:
            self._put(ref, data)
        elif not self._is_there(ref, len(data)) and self._gathered.add(ref, data):
            self._place_packs()

    def _place_packs(self) -> None:
        """Make objects of all that was gathered. Raises NoSpaceError, and may be called again."""

        def placed(refs: list[bytes], path: bytes) -> None:
            for ref in refs:
                self._was_put(ref, path)

        self._gathered.place(placed)

    def _trust(self, ref: bytes, place: Place, size: int) -> bool:
        """True if the object that is there is good; it is flushed with the others unless it is known to be durable.

        Its bytes are checked once in each process: a power failure can leave a file of the right name without them.
        """
        state = self._checked.get(ref)
        if state is None:
            try:
                fd = os.open(place.path, READ_FLAGS)
            except FileNotFoundError:
                return False
            try:
                found = os.fstat(fd).st_size if place.size is None else place.size
                if found != size or not _hashes_to(fd, ref, place):
                    return False
            finally:
                os.close(fd)
            self._remember(ref, False)
        try:
            self._disk.touch(place.path)  # a sweep can tell that somebody has just put it
        except FileNotFoundError:
            return False
        if not state:
            with self._guard:
                self._unflushed[ref] = place.path
        return True

    def _remember(self, ref: bytes, durable: bool) -> None:
        with self._guard:
            self._checked[ref] = durable
            if len(self._checked) > REMEMBERED:
                self._checked.popitem(last=False)

    def _see(self, ref: bytes, ctime_ns: int) -> None:
        with self._guard:
            self._seen[ref] = ctime_ns
            if len(self._seen) > REMEMBERED:
                self._seen.popitem(last=False)

    def flush(self) -> None:
        """Return when all objects put so far are on the device.

        Raises OSError, NoSpaceError or DamagedError; it may be asked for again then.
        """
        self._place_packs()
        with self._guard:
            waiting, self._unflushed = self._unflushed, {}
        try:
            for ref in sorted(waiting.keys() & self._doubtful):
                self._write(ref, self.get_node(NodeRef(ref)))
                waiting[ref] = self.path(ref)
            self._flush(waiting)
        except BaseException:
            with self._guard:
                self._unflushed = waiting | self._unflushed
                self._doubtful |= waiting.keys()
            raise
        self._doubtful -= waiting.keys()
        for ref in waiting:
            self._remember(ref, True)

    def _flush(self, waiting: dict[bytes, bytes]) -> None:
        paths = set(waiting.values())
        if not paths or SYNC_AT_ONCE:
            return
        if len(paths) > FLUSH_EACH:
            fd = os.open(self.root, READ_FLAGS)
            try:
                self._disk.syncfs(fd)
            finally:
                os.close(fd)
            return
        directories = {self.root}
        for path in paths:
            try:
                fd = os.open(path, READ_FLAGS)
            except FileNotFoundError:
                if self.inventory.is_pack(path):  # whoever took it apart has put elsewhere, and flushed, what is needed
                    continue
                raise MissingError(f"{os.fsdecode(path)} is gone from the store", hint="run `plyfs fsck`") from None
            try:
                self._disk.sync_file(fd)
            finally:
                os.close(fd)
            directories.add(os.path.dirname(path))
        for directory in sorted(directories, reverse=True):
            self._disk.sync_dir(directory)

    # Deleting

    def delete(self, ref: bytes) -> None:
        """Remove the file of an object, or nothing if it has none of its own."""
        with self._guard:
            self._checked.pop(ref, None)
            self._unflushed.pop(ref, None)
        try:
            self._disk.unlink(self.path(ref))
        except FileNotFoundError:
            pass

    def copy_out(self, path: bytes, refs: Collection[bytes]) -> None:
        """Put what is in a pack and named in ``refs`` once more, elsewhere, so that the pack can go.

        Raises DamagedError if one of them is good nowhere, NoSpaceError.
        """

        def copies() -> Iterator[tuple[bytes, bytes]]:
            for ref, place in self._packs.objects(path):
                if ref in refs:
                    data = read_place(place)
                    yield ref, data if blake3(data).digest() == ref else self._read(ref)

        self._gathered.add_all(copies())
        self.flush()

    def delete_pack(self, path: bytes) -> None:
        """Remove a pack with all that is in it; it is no error if it is gone."""
        gone = self._packs.objects(path)
        with self._guard:
            for ref, _ in gone:
                self._checked.pop(ref, None)
        try:
            self._disk.unlink(path)
        except FileNotFoundError:
            pass
        self._packs.refresh()

    # Sealing and sweeping exclude each other

    @contextmanager
    def sealing(self) -> Iterator[None]:
        """While this lasts no sweep deletes anything. Waits for a sweep that is deleting."""
        with self._locked(exclusive=False) as fd:
            sweeps = read_at(fd, 16, 0)
            with self._guard:
                has_swept = sweeps != self._sweeps
                if has_swept:  # what was known to exist may have been deleted and put again
                    self._sweeps = sweeps
                    self._checked.clear()
            if has_swept:
                self._packs.refresh()
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


def _hashes_to(fd: int, ref: bytes, place: Place) -> bool:
    """True if the bytes at ``place`` of the open file have the name ``ref``. The descriptor's place does not move."""
    hasher = blake3()
    offset = place.offset
    end = None if place.size is None else offset + place.size
    while data := read_at(fd, 1 << 20 if end is None else min(1 << 20, end - offset), offset):
        hasher.update(data)
        offset += len(data)
    return hasher.digest() == ref
