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
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import msgspec

from store.disk import Disk, read_file
from store.format import Attributes, Directory, Regular, Special, Symlink
from store.frames import frame, scan
from vfs.scan.glances import columns
from vfs.scan.ignorerules import NONE, Rules
from vfs.trees.racy import is_racy
from vfs.trees.view import join

INDEX_VERSION = 1

COMPACT_BYTES = 1 << 20
"""The file is written anew when what was appended is longer than its first frame and this."""

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


class Files(dict[str, FileRecord]):
    """The files of a directory by name. Records are replaced, never changed in what the disk shows of them."""

    __slots__ = ("_shown",)

    def __init__(self, files: Iterable[tuple[str, FileRecord]] = ()) -> None:
        super().__init__(files)
        self._shown: tuple[bytes, bytes] | None = None

    def shown(self) -> tuple[bytes, bytes] | None:
        """Their names, with slashes between them, and what ``glance`` shows of them if none has changed. None if one
        must be read again to be known.

        Two values are in two places of memory; thousands of records and names would lie all over it.
        """
        if self._shown is None and not any(file.racy for file in self.values()):
            rows = ((file.ino, file.size, file.ctime, file.mtime) for file in self.values())
            self._shown = os.fsencode("/".join(self)), columns(rows)
        return self._shown

    def __setitem__(self, name: str, file: FileRecord) -> None:
        self._shown = None
        super().__setitem__(name, file)

    def take(self, name: str) -> FileRecord | None:
        """Remove a file's record and return it; None if there is none."""
        self._shown = None
        return super().pop(name, None)

    # Whatever else changes a dict would leave ``_shown`` as it is.
    __delitem__ = __ior__ = pop = popitem = clear = update = setdefault = None  # type: ignore[assignment]


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
        "listed_again",
        "name",
        "parent",
        "path",
        "pending",
        "racy",
        "repo",
        "rules",
        "unsaved",
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
        self.files = Files()
        self.directories: dict[str, DirectoryRecord] = {}
        self.left: dict[str, Left] = {}
        self.ignore: Ignore | None = None
        self.above: Rules | None = None
        self.rules: Rules = NONE
        self.repo: object = None
        self.git = False
        self.racy = True
        self.listed_again = True
        """False if, its times being what they were, all its names are too, and none asks to be looked at again."""
        self.unsaved = True
        self.inside = False
        """True below a directory that git ignores, for the sake of tracked files in there."""

    def touch(self, name: str) -> None:
        """Note that ``name`` is no longer what ``entry`` says."""
        self.pending.add(name)
        self.unsaved = True
        record: DirectoryRecord | None = self
        while record is not None and record.entry is not None:
            record.entry = None
            record.unsaved = True
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


class _Directory(msgspec.Struct, array_like=True):
    path: bytes
    ino: int
    ctime: int
    attributes: Attributes
    entry: Directory | None
    files: list[tuple[bytes, FileRecord]]
    directories: list[bytes]
    left: list[tuple[bytes, Left]]
    ignore: Ignore | None
    inside: bool


class _Saved(msgspec.Struct, array_like=True):
    """One frame of the file: the directories that changed, all of them in the first."""

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
        self._file_bytes = 0
        self._whole_bytes = 0
        self._saved_present = b""

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
        """Bring the file at ``path`` up to date; ``policy`` is what the records depend on. Raises NoSpaceError."""
        rows = [_row(record) for record in self.root.all() if record.unsaved and record.attributes is not None]
        if not rows and self._saved_present == self.present:
            return
        whole = self._file_bytes == 0 or self._file_bytes > 2 * self._whole_bytes + COMPACT_BYTES
        if whole:
            rows = [_row(record) for record in self.root.all() if record.attributes is not None]
        data = frame(msgspec.msgpack.encode(_Saved(INDEX_VERSION, policy, self.present, self.next_ino, rows)))
        if whole:
            disk.replace(path, data, sync=False)
            self._file_bytes = self._whole_bytes = len(data)
        else:
            fd = disk.open_append(path)
            try:
                disk.write_all(fd, data)
            finally:
                os.close(fd)
            self._file_bytes += len(data)
        self._saved_present = self.present
        for record in self.root.all():
            record.unsaved = False

    @classmethod
    def load(cls, path: bytes, policy: bytes) -> StatIndex | None:
        """The records at ``path``; None if there are none, or none that can be used."""
        try:
            data = read_file(path)
        except OSError:
            return None
        frames = scan(data)
        index = cls()
        try:
            for number, payload in enumerate(frames.payloads):
                saved = msgspec.msgpack.decode(payload, type=_Saved)
                if saved.version != INDEX_VERSION or saved.policy != policy:
                    return None
                index.next_ino, index.present = saved.next_ino, saved.present
                for row in saved.directories:
                    index._take(row)
                if number == 0:
                    index._whole_bytes = len(payload)
        except (msgspec.DecodeError, KeyError):
            return None
        if not frames.payloads:
            return None
        # What a crash tore off is as if it had not been written, and the next save writes all of it anew.
        index._file_bytes = len(data) if frames.end == len(data) else 0
        index._saved_present = index.present
        for record in index.root.all():
            record.unsaved = False
            if record.attributes is None:
                return None
        return index

    def _take(self, row: _Directory) -> None:
        record = self.root
        for part in row.path.split(b"/") if row.path else ():
            record = record.directories[os.fsdecode(part)]
        record.ino, record.ctime, record.attributes = row.ino, row.ctime, row.attributes
        record.entry = record.built = row.entry
        record.files = Files((os.fsdecode(name), file) for name, file in row.files)
        record.left = {os.fsdecode(name): left for name, left in row.left}
        record.ignore, record.inside = row.ignore, row.inside
        known, record.directories = record.directories, {}
        for raw in row.directories:
            name = os.fsdecode(raw)
            if name in known:
                record.directories[name] = known[name]
            else:
                record.child(name)


def _row(record: DirectoryRecord) -> _Directory:
    assert record.attributes is not None
    return _Directory(
        record.path,
        record.ino,
        record.ctime,
        record.attributes,
        record.entry,
        [(os.fsencode(name), file) for name, file in record.files.items()],
        [os.fsencode(name) for name in record.directories],
        [(os.fsencode(name), left) for name, left in record.left.items()],
        record.ignore,
        record.inside,
    )


def kind(status: os.stat_result) -> int:
    """The file type."""
    return stat.S_IFMT(status.st_mode)


def now_ns() -> int:
    """The system's clock."""
    return time.time_ns()
