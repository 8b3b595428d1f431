"""The journal's records: one small MessagePack array for each change of the working layer, and the start of an epoch.

Owns their encoding (docs/format.md, "Journal"). Does not own what they do (``recovery`` replays them through the same
methods that made them). Values are plain tuples: this is the hottest write of the system.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import msgspec

from store.errors import FormatError
from store.refs import CheckpointId, Ino

JOURNAL_VERSION = 1


class Op:
    """The first element of a record, and what follows it. Plain numbers: an enumeration's members cost more to find
    and to encode than all the rest of a record.
    """

    KNOW: Final = 0
    """ino, parent ino (0: the link table), name: an inode of the tree that later records speak of."""
    MAKE: Final = 1
    """parent ino (0: none, an unnamed file), name, ino, mode, uid, gid, rdev, time, xattrs, symlink target or None"""
    LINK: Final = 2
    """ino, parent ino, name, time"""
    REMOVE: Final = 3
    """parent ino, name, time: unlink or rmdir"""
    RENAME: Final = 4
    """parent ino, name, new parent ino, new name, flags, time"""
    SET: Final = 5
    """ino, mode, uid, gid, atime, mtime, ctime; None leaves alone"""
    SIZE: Final = 6
    """ino, size, time"""
    WRITE: Final = 7
    """ino, offset, length, working file, offset there, time, mode after it"""
    XATTR: Final = 8
    """ino, name, value (None: removed), time"""
    HOLE: Final = 9
    """ino, offset, length, time"""
    COPY: Final = 10
    """ino, offset, ino of the target, offset there, length, time"""
    BARRIER: Final = 11
    """nothing: all before it, and the working data it cites, was on the disk when it was written"""


UNKNOWN_TIME = (1 << 64) - 1
"""In ``Shown``: the mtime that the entry turns out to have when it is looked up."""


class Shown(msgspec.Struct, array_like=True, frozen=True):
    """How an inode that a restore brought back or changed shows itself: its number, since when (nanoseconds, 0: it
    always did), and of which mtime of its entry that time takes the place (None: of none, as for directories).
    """

    ino: Ino
    since_ns: int = 0
    of_ns: int | None = None


class Start(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The first record of an epoch: the tree it starts from.

    ``head`` is the checkpoint below; ``graft`` the checkpoint whose ``.git`` directories stay in place of the head's
    (None: the head's own); ``closed`` the checkpoint that the epoch before ended in, None if it had no changes;
    ``picked``: these paths are as that checkpoint has them, whatever ``head`` has; if ``head`` is not sealed, it
    was made so, of what ``closed`` had.
    ``time_ns`` is when: what a restore brought back shows that time.
    """

    version: int
    epoch: int
    generation: int
    head: CheckpointId
    graft: CheckpointId | None
    closed: CheckpointId | None
    next_ino: int
    next_working: int
    picked: tuple[CheckpointId, tuple[bytes, ...]] | None = None
    time_ns: int = 0


_encoder = msgspec.msgpack.Encoder()
_records = msgspec.msgpack.Decoder(list[Any])
_starts = msgspec.msgpack.Decoder(Start)


def encode_record(record: tuple[Any, ...]) -> bytes:
    """The bytes of one record."""
    return _encoder.encode(record)


def decode_record(data: bytes) -> list[Any]:
    """The record whose bytes these are. Raises FormatError."""
    try:
        record = _records.decode(data)
    except msgspec.DecodeError as error:
        raise FormatError(f"a journal record that cannot be read: {error}") from error
    if not record or not isinstance(record[0], int) or not Op.KNOW <= record[0] <= Op.BARRIER:
        raise FormatError(f"a journal record of unknown kind {record[:1]}")
    return record


def encode_start(start: Start) -> bytes:
    """The bytes of an epoch's first record."""
    return _encoder.encode(start)


def decode_start(data: bytes) -> Start:
    """The epoch start whose bytes these are. Raises FormatError."""
    try:
        start = _starts.decode(data)
    except msgspec.DecodeError as error:
        raise FormatError(f"an epoch's start that cannot be read: {error}") from error
    if start.version != JOURNAL_VERSION:
        raise FormatError(
            f"a journal of format version {start.version}; this plyfs reads version {JOURNAL_VERSION}",
            hint="use the plyfs release that wrote it, or a newer one",
        )
    return start


class Recorder(Protocol):
    """Where records go before an operation is answered."""

    def __call__(self, record: tuple[Any, ...], frees: bool = False) -> None:
        """Append ``record``. Raises FsError (ENOSPC); then nothing of the operation may have happened.

        ``frees``: the operation gives space back, so it should be possible on a full disk too.
        """
        ...
