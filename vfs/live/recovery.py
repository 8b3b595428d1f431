"""Bringing back the working layer from its journals after any end of the daemon.

Owns how records are made into changes again: by the same methods that made them the first time. Runs before anything
is served, so nothing here takes the tree's lock. Every journal that is still there is replayed in order; where one
ended in a checkpoint that was not sealed, the tree is frozen again for it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from store.disk import boot_id
from store.errors import DamagedError, StoreError
from store.head import Head
from store.journal import JournalContents, JournalWriter, read_journal
from store.refs import CheckpointId, Ino
from vfs.errors import FsError
from vfs.live.core import Core
from vfs.live.epochs import Epochs
from vfs.live.inode import ROOT, DirectoryInode, FileInode, Inode
from vfs.live.making import linked_inode
from vfs.live.records import Op, Start, decode_record, decode_start


class Journal(NamedTuple):
    """One epoch's journal as read: what it starts from, and the records that can be trusted."""

    start: Start
    contents: JournalContents
    records: list[list[Any]]
    cut: bool


class ClosedEpoch(NamedTuple):
    """An epoch that ended in checkpoint ``closed``."""

    number: int
    closed: CheckpointId


def read_journals(epochs: Epochs, head: Head, known: Callable[[CheckpointId], bool]) -> list[Journal]:
    """The journals up to the head's epoch, oldest first. Those after it were never answered for and are removed.

    After a power loss they may end early: at one that was cut, or that goes on from what was lost. ``known`` tells of
    checkpoints that were not. Raises DamagedError or FormatError.
    """
    numbers = epochs.on_disk()
    for number in numbers:
        if number > head.epoch:
            os.unlink(epochs.path(number))
    journals: list[Journal] = []
    for number in [number for number in numbers if number <= head.epoch]:
        journal = read_one(epochs.path(number))
        if journal is None or (journals and journals[-1].start.epoch != number - 1):
            break
        if not _starts(journal, known):
            if journal.contents.boot == boot_id():  # no power loss can have taken it
                raise DamagedError(
                    f"journal {os.fsdecode(epochs.path(number))} goes on from a checkpoint whose record is lost",
                    hint="`plyfs fsck --repair` sets the journal aside",
                )
            break
        journals.append(journal)
        if journal.cut:
            break
    return journals


def _starts(journal: Journal, known: Callable[[CheckpointId], bool]) -> bool:
    """True if all that a journal goes on from is there."""
    start = journal.start
    needed = [start.head, start.closed, start.graft, start.picked[0] if start.picked is not None else None]
    return all(id is None or known(id) for id in needed)


def remove_lost(epochs: Epochs, last: int) -> None:
    """Remove the journals after epoch ``last``: a power loss took what they went on from, so they promised nothing."""
    for number in epochs.on_disk():
        if number > last:
            os.unlink(epochs.path(number))


def cut_off(epochs: Epochs, journal: Journal) -> JournalContents:
    """Rewrite a journal to hold the records that count and no others; what comes after them would else bring back
    those that were given up.
    """
    path = epochs.path(journal.start.epoch)
    short = path + b".cut"
    if os.path.exists(short):
        os.unlink(short)
    writer = JournalWriter(short, epochs.disk, msgspec.structs.replace(journal.contents.header, boot=boot_id()))
    for payload in journal.contents.records[: len(journal.records)]:
        writer.append(payload)
    writer.sync()
    writer.close()
    epochs.disk.rename(short, path)
    return read_journal(path)


def read_one(path: bytes) -> Journal | None:
    """One journal, None if a power loss took even its beginning: then nothing in it had been promised.

    After a power loss only what was on the disk for certain is taken (docs/format.md, "Journal").
    """
    contents = read_journal(path)
    if not contents.header.boot:
        return None
    if not contents.header.extra:
        raise DamagedError(f"journal {os.fsdecode(path)} does not say what it starts from")
    start = decode_start(contents.header.extra)
    records = [decode_record(payload) for payload in contents.records]
    cut = False
    if contents.boot != boot_id():
        promised = max((record[1] for record in records if record[0] == Op.BARRIER), default=0)
        cut = promised < sum(1 for record in records if record[0] != Op.BARRIER) and any(
            record[0] != Op.BARRIER for record in records[promised:]
        )
        records = records[:promised]
    return Journal(start, contents, records, cut)


def first_free_ino(journals: list[Journal]) -> Ino:
    """A number beyond all that the journals speak of: those that a replay gives out must not be among them."""
    beyond = max(journal.start.next_ino for journal in journals)
    for journal in journals:
        for record in journal.records:
            if record[0] == Op.MAKE:
                beyond = max(beyond, record[3] + 1)
            elif record[0] == Op.KNOW:
                beyond = max(beyond, record[1] + 1)
    return Ino(beyond)


class _NamelessError(Exception):
    """A record of an inode that had lost its last name in an earlier epoch: it went with those who had it open."""


class Replay:
    """Makes the records of journals into changes of ``core``. ``problems`` tells what could not be."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._tree = core.tree
        self._aliases: dict[Ino, Inode] = {}
        self._gone: dict[Ino, tuple[Ino, bytes]] = {}
        self._known: set[Ino] = set()
        self.problems: list[str] = []

    def run(self, records: list[list[Any]]) -> None:
        """Replay one epoch's records."""
        self._aliases.clear()
        self._gone.clear()
        self._known = {ROOT}
        core = self._core
        self._tree.replaying = True
        core.epochs.muted = True
        try:
            for record in records:
                self._one(record)
        finally:
            core.epochs.muted = False
            self._tree.replaying = False
        for inode in list(self._tree.inodes.values()):
            if not inode.nlink:
                self._tree.inodes.pop(inode.ino, None)

    def _one(self, record: list[Any]) -> None:
        try:
            self._apply(record)
        except _NamelessError:
            pass
        except (FsError, StoreError) as error:
            self.problems.append(f"a change was lost: {error}")

    def _inode(self, ino: int) -> Inode:
        if ino not in self._known:
            raise _NamelessError
        inode = self._aliases.get(Ino(ino)) or self._tree.inodes.get(Ino(ino))
        if inode is None:
            raise FsError(errno.ESTALE, f"inode {ino} is not there any more")
        return inode

    def _directory(self, ino: int) -> DirectoryInode:
        """The directory that records call ``ino``."""
        inode = self._inode(ino) if Ino(ino) not in self._gone else self._stand_in(Ino(ino), stat.S_IFDIR | 0o755)
        if not isinstance(inode, DirectoryInode):
            raise FsError(errno.ENOTDIR, f"inode {ino} is not a directory any more")
        return inode

    def _file(self, ino: int) -> FileInode:
        inode = self._inode(ino) if Ino(ino) not in self._gone else self._stand_in(Ino(ino), stat.S_IFREG | 0o644)
        if not isinstance(inode, FileInode):
            raise FsError(errno.EINVAL, f"inode {ino} is not a file any more")
        return inode

    def _stand_in(self, ino: Ino, mode: int) -> Inode:
        """A new inode in place of one of the base that has gone meanwhile, so that what was put there is kept."""
        parent, name = self._gone.pop(ino)
        directory = self._directory(parent)
        made = self._core.names.apply_make(
            directory, name, self._tree.new_ino(), mode, os.getuid(), os.getgid(), 0, self._core.now(), {}, None, None
        )
        self.problems.append(f"{os.fsdecode(name)} has gone from the base; what was changed there stands in a new one")
        self._aliases[ino] = made
        return made

    def _child(self, parent: int, name: bytes) -> tuple[DirectoryInode, Inode]:
        directory = self._directory(parent)
        inode = self._tree.lookup(directory.ino, name)
        if inode is None:
            raise FsError(errno.ENOENT, f"{os.fsdecode(name)} is not there any more")
        return directory, inode

    def _apply(self, record: list[Any]) -> None:
        core = self._core
        match record:
            case [Op.KNOW, ino, parent, name]:
                self._know(Ino(ino), parent, name)
            case [Op.MAKE, parent, name, ino, mode, uid, gid, rdev, now, xattrs, target]:
                directory = self._directory(parent) if parent else None
                if directory is not None:
                    self._tree.lookup(directory.ino, name)
                self._known.add(Ino(ino))
                core.names.apply_make(directory, name, Ino(ino), mode, uid, gid, rdev, now, xattrs, target, None)
            case [Op.LINK, ino, parent, name, now]:
                core.names.apply_link(self._inode(ino), self._directory(parent), name, None, now)
            case [Op.REMOVE, parent, name, now]:
                directory, inode = self._child(parent, name)
                core.names.apply_remove(directory, name, inode, None, now)
            case [Op.RENAME, parent, name, new_parent, new_name, flags, now]:
                directory, _ = self._child(parent, name)
                new_directory = self._directory(new_parent)
                self._tree.lookup(new_directory.ino, new_name)
                core.names.apply_rename(directory, name, new_directory, new_name, flags, now, None, None)
            case [Op.SET, ino, mode, uid, gid, atime, mtime, ctime]:
                core.attributes.apply_set(self._inode(ino), mode, uid, gid, atime, mtime, ctime)
            case [Op.XATTR, ino, name, value, now]:
                core.attributes.apply_xattr(self._inode(ino), name, value, now)
            case [Op.SIZE, ino, size, now]:
                core.files.apply_size(self._file(ino), size, now)
            case [Op.WRITE, ino, offset, length, number, at, now, mode]:
                file = core.working.reopen(number)
                core.files.apply_write(self._file(ino), offset, length, file, at, now, mode)
            case [Op.HOLE, ino, offset, length, now]:
                core.files.apply_hole(self._file(ino), offset, length, now)
            case [Op.COPY, ino, offset, target_ino, target_offset, length, now]:
                core.files.apply_copy(self._file(ino), offset, self._file(target_ino), target_offset, length, now)
            case [Op.BARRIER, *_]:
                pass
            case _:
                raise DamagedError(f"a journal record of unknown form {record[:3]}")

    def _know(self, ino: Ino, parent: int, name: bytes) -> None:
        self._known.add(ino)
        if not parent:
            inode: Inode | None = linked_inode(self._tree, ino)
        else:
            inode = self._tree.lookup(self._directory(parent).ino, name)
        if inode is None:
            self._gone[ino] = (Ino(parent), name)
        elif inode.ino != ino:
            self._aliases[ino] = inode
        else:
            self._aliases.pop(ino, None)


def spool_after_replay(core: Core) -> None:
    """Working files found again are never appended to: the next write gets a new one."""
    core.working.spool = None
