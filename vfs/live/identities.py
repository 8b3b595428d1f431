"""How restored inodes show themselves, kept beside the journals so that the next mount shows them so too.

Owns the file ``shown`` in a workspace's journal directory: the numbers and times under which inodes that a restore
brought back or changed are seen, which the tree itself does not hold. Each restore adds a record of what it changed,
for the epoch that it begins; so does a mount that ends with its changes kept. Losing the file loses no content: those
files then show the times of their checkpoints, and numbers of their own.

Concurrency: under the tree's lock, or before and after a tree is served.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import msgspec

from store.disk import Disk
from store.errors import DamagedError, FormatError, NoSpaceError
from store.format import Origin
from store.frames import EventFile
from store.refs import Ino
from vfs.live.records import Shown
from vfs.live.tree import Tree

VERSION = 1
NAME = b"shown"

ROWS_AT_LEAST = 1024
"""The file is written anew when it has twice as many rows as after the last time, and this many more."""


class Record(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="identities"):
    """What a restore changed, as shown from ``epoch`` on; everything, if it is ``whole``.

    ``shown`` by the tree's number of each inode, ``origins`` where the base has some of them; ``reborn`` the
    directories that came back, with when (ns). Before that, ``gone`` numbers are forgotten.
    """

    version: int
    epoch: int
    whole: bool
    shown: tuple[tuple[Ino, Shown], ...]
    origins: tuple[tuple[Ino, Origin], ...]
    reborn: tuple[tuple[Ino, int], ...]
    gone: tuple[Ino, ...] = ()

    def rows(self) -> int:
        """How much it says."""
        return 1 + len(self.shown) + len(self.origins) + len(self.reborn) + len(self.gone)


class IdentityFile:
    """The file of one workspace."""

    def __init__(self, directory: bytes, disk: Disk) -> None:
        self._path = os.path.join(directory, NAME)
        self._disk = disk
        self._file = EventFile(self._path, "identities", disk)
        self._continues = False
        """True if the tree is what the file says but for the changes that were noted since."""
        self._rows = 0
        self._limit = ROWS_AT_LEAST

    def save(self, tree: Tree, oldest: int) -> None:
        """Add what ``tree`` shows in its epoch. ``oldest`` is the oldest epoch that could be replayed; what was shown
        before the one ahead of it is dropped now and then. A full disk is no failure.
        """
        record = _everything(tree) if not self._continues else _changed(tree)
        for noted in (tree.shown.changed, tree.shown_origins.changed, tree.reborn.changed, tree.unshown):
            noted.clear()
        try:
            self._file.prepare()
            self._file.append(msgspec.msgpack.encode(record))
            self._rows += record.rows()
            if self._rows > self._limit:
                self._compact(oldest)
        except (NoSpaceError, DamagedError, FormatError):
            self.clear()
            return
        self._continues = True

    def load(self, tree: Tree, before: int = 0, exactly: int = -1) -> None:
        """Let ``tree`` show what was kept for the last epoch ``before`` one, or for ``exactly`` one."""
        records = [record for record in self._records() if record.epoch < before or record.epoch <= exactly]
        if not records or (exactly >= 0 and records[-1].epoch != exactly):
            return
        whole = _folded(records)
        tree.shown.replace(whole.shown)
        tree.shown_origins.replace(whole.origins)
        tree.reborn.replace(whole.reborn)
        tree.next_ino = max([tree.next_ino, *(shown.ino + 1 for _, shown in whole.shown)])

    def clear(self, after: int = -1) -> None:
        """Forget what was shown ``after`` an epoch: what is served next has nothing to do with it."""
        kept = [record for record in self._records() if record.epoch <= after]
        self._continues = False
        if kept:
            try:
                self._rewrite(kept)
                return
            except NoSpaceError:
                pass
        self._file.close()
        self._file = EventFile(self._path, "identities", self._disk)
        self._rows = 0
        try:
            self._disk.unlink(self._path)
        except FileNotFoundError:
            pass

    def close(self) -> None:
        """Give the file up; what is in it stays."""
        self._file.close()

    def _records(self) -> list[Record]:
        """All that the file holds; nothing if it is damaged or of another version."""
        try:
            payloads = EventFile(self._path, "identities", self._disk).load()
            records = [msgspec.msgpack.decode(data, type=Record) for data in payloads]
        except (DamagedError, FormatError, msgspec.DecodeError):
            return []
        return records if all(record.version == VERSION for record in records) else []

    def _compact(self, oldest: int) -> None:
        """Take together what no replay could ask for one by one."""
        records = self._records()
        past = [record for record in records if record.epoch < oldest]
        if past:
            records = [_folded(past), *records[len(past) :]]
        self._rewrite(records)

    def _rewrite(self, records: list[Record]) -> None:
        self._file.rewrite(map(msgspec.msgpack.encode, records))
        self._rows = sum(record.rows() for record in records)
        self._limit = 2 * self._rows + ROWS_AT_LEAST


def _everything(tree: Tree) -> Record:
    return Record(
        VERSION,
        tree.epoch,
        True,
        tuple(tree.shown.items()),
        tuple(tree.shown_origins.items()),
        tuple(tree.reborn.items()),
    )


def _changed(tree: Tree) -> Record:
    return Record(
        VERSION,
        tree.epoch,
        False,
        tuple((key, tree.shown[key]) for key in tree.shown.changed if key in tree.shown),
        tuple((key, tree.shown_origins[key]) for key in tree.shown_origins.changed if key in tree.shown_origins),
        tuple((key, tree.reborn[key]) for key in tree.reborn.changed if key in tree.reborn),
        tuple(tree.unshown),
    )


def _folded(records: Iterable[Record]) -> Record:
    """All of ``records`` in one, for the epoch of the last."""
    shown: dict[Ino, Shown] = {}
    origins: dict[Ino, Origin] = {}
    reborn: dict[Ino, int] = {}
    epoch = 0
    for record in records:
        epoch = record.epoch
        tables: tuple[dict[Ino, Shown], dict[Ino, Origin], dict[Ino, int]] = (shown, origins, reborn)
        for table in tables:
            if record.whole:
                table.clear()
            for key in record.gone:
                table.pop(key, None)
        shown.update(record.shown)
        origins.update(record.origins)
        reborn.update(record.reborn)
    return Record(VERSION, epoch, True, tuple(shown.items()), tuple(origins.items()), tuple(reborn.items()))
