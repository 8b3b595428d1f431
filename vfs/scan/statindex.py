"""What the scanner knows of the workspace from the scan before: for each path a stat signature and its entry.

Owns the records, the rule that says when one can be trusted, and their file in the workspace's store. A record counts
while size, both times and inode are what they were, unless the file could have been written to after it was read
without its times showing that (the rule by which git calls an index entry racy). Does not own looking at the disk.

The file is a cache: without it everything is read again. Concurrency: one scan at a time.
"""

from __future__ import annotations

import os
import stat
import time
import zlib
from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec

from store.disk import Disk, read_file
from store.format import Attributes, Directory, Regular, Special, Symlink
from vfs.scan.ignorerules import NONE, Rules
from vfs.view import join

INDEX_VERSION = 1

RACY_NS = 25_000_000
"""Two changes within the kernel's clock tick (1 to 10 ms) can leave a file with the same times."""

COARSE_RACY_NS = 2_100_000_000
"""As long as that on file systems that keep whole seconds (FAT: two)."""

Inode: TypeAlias = Regular | Symlink | Special
Reason: TypeAlias = Literal["ignored", "too big", "unreadable", "another file system", "unsupported"]


class FileRecord(msgspec.Struct, array_like=True, gc=False):
    """What a path was when it was read. ``entry`` has what is recorded of it, which need not be what the disk can show:
    a restored file keeps its recorded time in there. ``racy``: it must be read again to be known.
    """

    ctime: int
    mtime: int
    ino: int
    size: int
    mode: int
    uid: int
    gid: int
    linked: bool
    racy: bool
    entry: Inode

    def unchanged(self, status: os.stat_result) -> bool:
        """True if the file is certainly what it was."""
        return (
            self.ctime == status.st_ctime_ns
            and self.mtime == status.st_mtime_ns
            and self.ino == status.st_ino
            and self.size == status.st_size
            and not self.racy
        )


class Left(msgspec.Struct, array_like=True, frozen=True):
    """A name that is there and is not captured."""

    reason: Reason
    directory: bool


class Ignore(msgspec.Struct, array_like=True, frozen=True):
    """A directory's ``.gitignore`` as it was read."""

    signature: tuple[int, int, int, int]
    racy: bool
    text: bytes


class DirectoryRecord:
    """A directory. ``entry`` is its entry in the tree, None while something below it has changed."""

    __slots__ = (
        "above",
        "attributes",
        "built",
        "ctime",
        "directories",
        "entry",
        "files",
        "git",
        "ignore",
        "ino",
        "inside",
        "left",
        "name",
        "parent",
        "path",
        "pending",
        "repo",
        "rules",
    )

    def __init__(self, path: bytes, name: str, parent: DirectoryRecord | None) -> None:
        self.path = path
        self.name = name
        self.parent = parent
        self.ino = 0
        self.ctime = 0
        self.attributes: Attributes | None = None
        self.entry: Directory | None = None
        self.built: Directory | None = None
        """The entry that was made last."""
        self.pending: set[str] = set()
        """Names that changed since ``built`` was made."""
        self.files: dict[str, FileRecord] = {}
        self.directories: dict[str, DirectoryRecord] = {}
        self.left: dict[str, Left] = {}
        self.ignore: Ignore | None = None
        self.above: Rules | None = None
        self.rules: Rules = NONE
        self.repo: object = None
        self.git = False
        self.inside = False
        """True below a directory that git ignores, for the sake of tracked files in there."""

    def touch(self, name: str) -> None:
        """Note that ``name`` is no longer what ``entry`` says."""
        self.pending.add(name)
        record: DirectoryRecord | None = self
        while record is not None and record.entry is not None:
            record.entry = None
            if record.parent is not None:
                record.parent.pending.add(record.name)
            record = record.parent

    def all(self) -> Iterator[DirectoryRecord]:
        """This directory and all below it, parents first."""
        waiting = [self]
        while waiting:
            record = waiting.pop()
            yield record
            waiting.extend(record.directories.values())

    def child(self, name: str) -> DirectoryRecord:
        """A new directory in this one."""
        made = DirectoryRecord(join(self.path, os.fsencode(name)), name, self)
        self.directories[name] = made
        return made


def record_of(status: os.stat_result, entry: Inode, looked_ns: int) -> FileRecord:
    """A record of a file that was read completely before ``looked_ns`` by the system's clock."""
    return FileRecord(
        status.st_ctime_ns,
        status.st_mtime_ns,
        status.st_ino,
        status.st_size,
        status.st_mode,
        status.st_uid,
        status.st_gid,
        status.st_nlink > 1,
        is_racy(status, looked_ns),
        entry,
    )


def is_racy(status: os.stat_result, looked_ns: int) -> bool:
    """True if a change after ``looked_ns`` could leave the times as they are: they are too young, or in the future."""
    coarse = not (status.st_ctime_ns % 1_000_000_000 or status.st_mtime_ns % 1_000_000_000)
    return status.st_ctime_ns >= looked_ns - (COARSE_RACY_NS if coarse else RACY_NS)


class _Directory(msgspec.Struct, array_like=True):
    path: bytes
    ino: int
    ctime: int
    attributes: Attributes
    entry: Directory | None
    files: list[tuple[bytes, FileRecord]]
    left: list[tuple[bytes, Left]]
    ignore: Ignore | None
    inside: bool


class _Saved(msgspec.Struct, array_like=True):
    version: int
    policy: bytes
    present: bytes
    next_ino: int
    directories: list[_Directory]


class StatIndex:
    """All records. ``next_ino`` numbers files that appear; ``present`` names the layer that the records made last."""

    def __init__(self) -> None:
        self.root = DirectoryRecord(b"", "", None)
        self.next_ino = 1 << 62
        self.present = b""
        self.rules_version = 0

    def find(self, path: bytes) -> tuple[DirectoryRecord, str] | None:
        """The record of the directory that ``path`` is in, and the last name; None if that directory is not known."""
        record = self.root
        *above, name = path.split(b"/")
        for part in above:
            inner = record.directories.get(os.fsdecode(part))
            if inner is None:
                return None
            record = inner
        return record, os.fsdecode(name)

    def file(self, path: bytes) -> FileRecord | None:
        """The record of the file at ``path``."""
        found = self.find(path)
        return None if found is None else found[0].files.get(found[1])

    def directory(self, path: bytes) -> DirectoryRecord | None:
        """The record of the directory at ``path``."""
        if not path:
            return self.root
        found = self.find(path)
        return None if found is None else found[0].directories.get(found[1])

    def fresh_ino(self) -> int:
        """A number that nothing has had."""
        self.next_ino += 1
        return self.next_ino - 1

    def save(self, path: bytes, policy: bytes, disk: Disk) -> None:
        """Write the records to ``path``; ``policy`` is what they depend on. Raises NoSpaceError."""
        rows = []
        for record in list(self.root.all()):
            if record.attributes is None:
                continue
            rows.append(
                _Directory(
                    record.path,
                    record.ino,
                    record.ctime,
                    record.attributes,
                    record.entry,
                    [(os.fsencode(name), file) for name, file in record.files.items()],
                    [(os.fsencode(name), left) for name, left in record.left.items()],
                    record.ignore,
                    record.inside,
                )
            )
        data = msgspec.msgpack.encode(_Saved(INDEX_VERSION, policy, self.present, self.next_ino, rows))
        disk.replace(path, zlib.crc32(data).to_bytes(4, "little") + data, sync=False)

    @classmethod
    def load(cls, path: bytes, policy: bytes) -> StatIndex | None:
        """The records at ``path``; None if there are none, or none that can be used."""
        try:
            data = read_file(path)
        except OSError:
            return None
        if len(data) < 4 or zlib.crc32(data[4:]).to_bytes(4, "little") != data[:4]:
            return None
        try:
            saved = msgspec.msgpack.decode(data[4:], type=_Saved)
        except msgspec.DecodeError:
            return None
        if saved.version != INDEX_VERSION or saved.policy != policy:
            return None
        index = cls()
        index.next_ino, index.present = saved.next_ino, saved.present
        for row in saved.directories:
            record = index.root
            if row.path:
                found = index.find(row.path)
                if found is None:
                    return None
                record = found[0].child(found[1])
            record.ino, record.ctime, record.attributes = row.ino, row.ctime, row.attributes
            record.entry = record.built = row.entry
            record.files = {os.fsdecode(name): file for name, file in row.files}
            record.left = {os.fsdecode(name): left for name, left in row.left}
            record.ignore, record.inside = row.ignore, row.inside
        return index


def kind(status: os.stat_result) -> int:
    """The file type."""
    return stat.S_IFMT(status.st_mode)


def now_ns() -> int:
    """The system's clock."""
    return time.time_ns()
