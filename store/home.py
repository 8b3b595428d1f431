"""One user's store: where everything lies, and which directory is which workspace.

Owns the layout on disk (docs/format.md) below the home, its version, and the records by which a workspace is found
again. A workspace is known by the identity of its directory, not by its path: one that was moved is found, and
another directory that was put in its place is another workspace.

Concurrency: any thread and any number of processes.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from functools import cached_property

import msgspec

from store.disk import (
    LOCK_FLAGS,
    PRIVATE_DIRECTORY,
    READ_FLAGS,
    Clock,
    Disk,
    Ids,
    RandomIds,
    SystemClock,
    make_directories,
    read_file,
)
from store.errors import DamagedError, FormatError, StoreError
from store.format import FORMAT_VERSION
from store.frames import frame, scan
from store.generations import Generations
from store.history import History
from store.lock import Lock, flock
from store.nodes import Pages
from store.objects import Objects
from store.refs import WorkspaceId, digest

_VERSION = re.compile(rb"plyfs store ([0-9]{1,9})\n")

LAYOUT = frozenset({b"version", b"version.new", b"objects", b"objects.lock", b"workspaces", b"home.lock", b"run"})
"""The names that a home may have."""

DIRECTORIES = (b"objects", b"objects/tmp", b"objects/packs", b"workspaces", b"run")
WORKSPACE_DIRECTORIES = (b"journal", b"working", b"attic")


class WorkspaceIdentity(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What tells a directory from every other one: its file system, its inode, and when that was born.

    ``birth_ns`` is 0 where the system cannot tell; an inode number given to a new directory is then not noticed.
    """

    fsid: int
    inode: int
    birth_ns: int

    @classmethod
    def of(cls, directory: bytes | str | int) -> WorkspaceIdentity:
        """The identity of a directory, given by path or descriptor. Raises OSError.

        What is below a mount can be asked for only by a descriptor opened before.
        """
        if sys.platform == "win32":  # directories cannot be opened, and NTFS never gives a number twice
            status = os.stat(directory)
            return cls(status.st_dev, status.st_ino, getattr(status, "st_birthtime_ns", 0))
        fd = directory if isinstance(directory, int) else os.open(directory, READ_FLAGS)
        try:
            stat = os.stat(fd)
            fsid = os.statvfs(fd).f_fsid or stat.st_dev
            return cls(fsid, stat.st_ino, _birth_ns(fd, stat))
        finally:
            if fd is not directory:
                os.close(fd)

    def id(self, number: int = 0) -> WorkspaceId:
        """What the workspace is called; ``number`` counts those that happen to be called the same."""
        seed = b"%d %d %d %d" % (self.fsid, self.inode, self.birth_ns, number)
        return WorkspaceId(digest(seed)[:8].hex())


class WorkspaceRecord(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="workspace"):
    """A workspace as the store knows it: ``path`` is where it was seen last, ``created_ns`` when it came first."""

    version: int
    id: WorkspaceId
    identity: WorkspaceIdentity
    path: bytes
    created_ns: int


_encode = msgspec.msgpack.Encoder().encode
_records = msgspec.msgpack.Decoder(WorkspaceRecord)


class WorkspaceStore:
    """What the store holds for one workspace, below ``path``."""

    def __init__(self, path: bytes, record: WorkspaceRecord, disk: Disk, clock: Clock, ids: Ids) -> None:
        self.id = record.id
        self.path = path
        self.record = record
        self.journal_dir = os.path.join(path, b"journal")
        self.working_dir = os.path.join(path, b"working")
        self.attic_dir = os.path.join(path, b"attic")
        self.disk = disk
        self._clock = clock
        self._ids = ids

    @cached_property
    def history(self) -> History:
        """Its checkpoints. Raises DamagedError or FormatError when first asked for."""
        return History(self.path, self.disk, self._clock, self._ids)

    @cached_property
    def generations(self) -> Generations:
        """The states of its base. Raises DamagedError or FormatError when first asked for."""
        return Generations(self.path, self.disk)

    def journal_path(self, epoch: int) -> bytes:
        """Where the journal of an epoch lies."""
        return os.path.join(self.journal_dir, b"%d" % epoch)

    def epochs(self) -> list[int]:
        """The epochs that have a journal, in order."""
        return sorted(int(name) for name in os.listdir(self.journal_dir) if name.isdigit())

    def under_way(self) -> list[bytes]:
        """Paths of files in directories beside those of the layout: records of what vfs has begun and not finished."""
        paths = []
        for name in sorted(set(os.listdir(self.path)) - set(WORKSPACE_DIRECTORIES)):
            for directory, _, files in os.walk(os.path.join(self.path, name)):
                paths += [os.path.join(directory, file) for file in files]
        return paths

    def citing(self) -> list[bytes]:
        """Paths of files that may cite objects and checkpoints: journals, and records of what is under way."""
        return [self.journal_path(epoch) for epoch in self.epochs()] + self.under_way()

    def new_lock(self) -> Lock:
        """The lock that the serving process holds, not taken yet."""
        return Lock(os.path.join(self.path, b"lock"))

    def lock(self) -> Lock:
        """Take the lock. Raises LockedError, naming the owner."""
        lock = self.new_lock()
        lock.acquire()
        return lock

    def close(self) -> None:
        """Give up open files."""
        for name in ("history", "generations"):
            if (part := self.__dict__.get(name)) is not None:
                part.close()


class Home:
    """The store below ``root``. Use ``open``."""

    def __init__(self, root: bytes, disk: Disk, clock: Clock, ids: Ids) -> None:
        self.root = root
        self.disk = disk
        self.runtime = os.path.join(root, b"run")
        self.workspaces_dir = os.path.join(root, b"workspaces")
        self.objects = Objects(os.path.join(root, b"objects"), os.path.join(root, b"objects.lock"), disk)
        self.pages = Pages(self.objects)
        self.clock = clock
        self._ids = ids

    @classmethod
    def open(
        cls,
        root: bytes | str | None = None,
        disk: Disk | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> Home:
        """The store at ``root`` (default: where the environment says), made if it is not there.

        Raises FormatError if it is of another version or something else, OSError or NoSpaceError.
        """
        home = cls(
            os.path.abspath(os.fsencode(default_root() if root is None else root)),
            disk or Disk(),
            clock or SystemClock(),
            ids or RandomIds(),
        )
        if not home._is_of_this_version():
            home._create()
        for name in DIRECTORIES:
            make_directories(home.disk, os.path.join(home.root, name))
        return home

    def _is_of_this_version(self) -> bool:
        """False if there is nothing yet, or only what a creation that was interrupted left."""
        path = os.path.join(self.root, b"version")
        try:
            data = read_file(path)
        except FileNotFoundError:
            return False
        if not data.strip(b"\0"):  # made just before a power failure
            return False
        found = _VERSION.fullmatch(data)
        if found is None:
            raise FormatError(
                f"{os.fsdecode(path)} is not the version of a plyfs store",
                hint="choose another directory with PLYFS_HOME",
            )
        if int(found[1]) != FORMAT_VERSION:
            raise FormatError(
                f"the store {os.fsdecode(self.root)} is of format version {int(found[1])}; "
                f"this plyfs reads version {FORMAT_VERSION}",
                hint="use the plyfs release that wrote it, a newer one, or another directory with PLYFS_HOME",
            )
        return True

    def _create(self) -> None:
        make_directories(self.disk, self.root)
        foreign = sorted(set(os.listdir(self.root)) - LAYOUT)
        if foreign:
            raise FormatError(
                f"{os.fsdecode(self.root)} is not a plyfs store: it has {os.fsdecode(foreign[0])!r} in it",
                hint="choose an empty or new directory with PLYFS_HOME",
            )
        if sys.platform != "win32" and os.stat(self.root).st_mode & 0o077:
            self.disk.chmod(self.root, PRIVATE_DIRECTORY)
        for name in DIRECTORIES:
            make_directories(self.disk, os.path.join(self.root, name))
        # The version comes last: with it the rest is known to be there.
        self.disk.replace(os.path.join(self.root, b"version"), b"plyfs store %d\n" % FORMAT_VERSION, sync=True)

    # Workspaces

    def workspace(self, identity: WorkspaceIdentity, path: bytes) -> WorkspaceStore:
        """What the store has for the directory of that identity, now at ``path``; begun if it has nothing.

        Raises NoSpaceError or DamagedError.
        """
        fd = os.open(os.path.join(self.root, b"home.lock"), LOCK_FLAGS, 0o600)
        try:
            flock(fd, exclusive=True, wait=True)
            record = self._search(identity, path)
            if record is None:
                record = self._begin(identity, path)
            elif (record.identity, record.path) != (identity, path):
                record = msgspec.structs.replace(record, identity=identity, path=path)
                self._write(record)
        finally:
            os.close(fd)
        return self._store(record)

    def find(self, identity: WorkspaceIdentity, path: bytes) -> WorkspaceStore | None:
        """As ``workspace``, but nothing is begun and nothing written."""
        record = self._search(identity, path)
        return None if record is None else self._store(record)

    def by_id(self, id: WorkspaceId) -> WorkspaceStore:
        """The workspace of that name. Raises StoreError if there is none."""
        for record in self.workspaces():
            if record.id == id:
                return self._store(record)
        raise StoreError(f"the store {os.fsdecode(self.root)} has no workspace {id}")

    def workspaces(self) -> list[WorkspaceRecord]:
        """Every workspace, oldest first. One whose record is damaged is left out; ``fsck`` tells."""
        records = []
        for name in os.listdir(self.workspaces_dir):
            try:
                records.append(self.read_record(WorkspaceId(os.fsdecode(name))))
            except (DamagedError, FileNotFoundError, NotADirectoryError):
                continue
        return sorted(records, key=lambda record: (record.created_ns, record.id))

    def unreadable(self) -> list[str]:
        """Names of workspaces that have a history while their record is damaged or missing."""
        names = []
        for name in os.listdir(self.workspaces_dir):
            try:
                self.read_record(WorkspaceId(os.fsdecode(name)))
            except (DamagedError, FileNotFoundError, NotADirectoryError):
                if os.path.exists(os.path.join(self.workspaces_dir, name, b"history")):
                    names.append(os.fsdecode(name))
        return sorted(names)

    def read_record(self, id: WorkspaceId) -> WorkspaceRecord:
        """A workspace's record. Raises DamagedError or FileNotFoundError."""
        path = os.path.join(self.workspaces_dir, os.fsencode(id), b"record")
        frames = scan(read_file(path))
        if len(frames.payloads) != 1:
            raise DamagedError(f"{os.fsdecode(path)} is damaged")
        try:
            record = _records.decode(frames.payloads[0])
        except msgspec.DecodeError as error:
            raise FormatError(f"{os.fsdecode(path)} is not of format version {FORMAT_VERSION}: {error}") from error
        if record.id != id or record.version != FORMAT_VERSION:
            raise FormatError(f"{os.fsdecode(path)} is not the record of {id} in format version {FORMAT_VERSION}")
        return record

    def _store(self, record: WorkspaceRecord) -> WorkspaceStore:
        path = os.path.join(self.workspaces_dir, os.fsencode(record.id))
        return WorkspaceStore(path, record, self.disk, self.clock, self._ids)

    def _search(self, identity: WorkspaceIdentity, path: bytes) -> WorkspaceRecord | None:
        records = self.workspaces()
        for record in records:
            if record.identity == identity:
                return record
        # Some systems number their file systems anew at each boot, and some sandboxes hide birth times: what is left
        # is enough only together with the path.
        for record in records:
            known = record.identity
            if record.path == path and known.inode == identity.inode:
                same_birth = known.birth_ns == identity.birth_ns != 0
                if same_birth or (known.fsid == identity.fsid and 0 in (known.birth_ns, identity.birth_ns)):
                    return record
        return None

    def _begin(self, identity: WorkspaceIdentity, path: bytes) -> WorkspaceRecord:
        taken = set(os.listdir(self.workspaces_dir))
        number = 0
        while True:
            id = identity.id(number)
            if os.fsencode(id) not in taken or not self._has_good_record(id):
                break  # one whose record is lost has its name from this very directory: it is that workspace
            number += 1
        record = WorkspaceRecord(FORMAT_VERSION, id, identity, path, self.clock.time_ns())
        for name in WORKSPACE_DIRECTORIES:
            make_directories(self.disk, os.path.join(self.workspaces_dir, os.fsencode(id), name))
        self._write(record)
        self.disk.sync_dir(self.workspaces_dir)
        return record

    def _has_good_record(self, id: WorkspaceId) -> bool:
        try:
            self.read_record(id)
        except FormatError:
            return True
        except (DamagedError, FileNotFoundError):
            return False
        return True

    def _write(self, record: WorkspaceRecord) -> None:
        path = os.path.join(self.workspaces_dir, os.fsencode(record.id), b"record")
        self.disk.replace(path, frame(_encode(record)), sync=True)


def default_root() -> str:
    """``PLYFS_HOME``, else plyfs' folder among the user's application states."""
    root = os.environ.get("PLYFS_HOME")
    if root:
        return root
    import platformdirs

    return platformdirs.user_state_dir("plyfs", appauthor=False)


def _birth_ns(fd: int, stat: os.stat_result) -> int:
    """When the inode was made, in nanoseconds since 1970; 0 if the system does not tell."""
    if sys.platform == "linux":
        return _statx_birth_ns()(fd)
    seconds: float = getattr(stat, "st_birthtime", 0.0)
    exact: int = getattr(stat, "st_birthtime_ns", int(seconds * 1_000_000_000))
    return exact


def _statx_birth_ns() -> Callable[[int], int]:
    """statx(2) asked for the birth time of a descriptor. Python's os.stat does not give it on Linux."""
    import ctypes

    at_empty_path, statx_btime = 0x1000, 0x800
    mask_offset, btime_offset = 0, 80  # struct statx in linux/stat.h
    try:
        statx = ctypes.CDLL(None, use_errno=True).statx
    except (OSError, AttributeError):
        return lambda fd: 0

    def birth_ns(fd: int) -> int:
        buffer = ctypes.create_string_buffer(256)
        if statx(fd, b"", at_empty_path, statx_btime, buffer):
            return 0
        raw = buffer.raw
        if not int.from_bytes(raw[mask_offset : mask_offset + 4], sys.byteorder) & statx_btime:
            return 0
        seconds = int.from_bytes(raw[btime_offset : btime_offset + 8], sys.byteorder, signed=True)
        return seconds * 1_000_000_000 + int.from_bytes(raw[btime_offset + 8 : btime_offset + 12], sys.byteorder)

    return birth_ns
