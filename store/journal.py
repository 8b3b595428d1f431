"""The journal of one epoch: what was answered since the last checkpoint or restore, in order.

Owns the file ``journal/<epoch>``: a header, the records of ``vfs`` (bytes whose meaning is not known here), and two
kinds of marks of its own: how far the file is known to be on the device, and in which run of the kernel it was taken
up again. A record is in the file, in one write(2), before its operation is answered: killing the process loses nothing.

Records name objects as MessagePack binaries of 32 bytes; the sweep finds them by that (docs/format.md).

Concurrency: one thread appends at a time; ``sync`` may run beside it.
"""

from __future__ import annotations

import os

import msgspec

from store.disk import Disk, boot_id, read_file, reserve_space
from store.errors import DamagedError, FormatError
from store.format import FORMAT_VERSION
from store.frames import Frames, FrameWriter, frame, scan
from store.refs import CheckpointId


class JournalHeader(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="journal"):
    """First mark of a journal. ``head`` is the checkpoint that the records go on from, ``next_ino`` the counter of
    inode numbers at that moment, ``extra`` whatever ``vfs`` needs beside.
    """

    version: int
    boot: str
    epoch: int
    head: CheckpointId | None = None
    generation: int = 0
    next_ino: int = 0
    extra: bytes = b""


class Synced(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="synced"):
    """The first ``length`` bytes of the file are on the device."""

    length: int


class Resumed(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="resumed"):
    """From here on the file was written in the kernel run ``boot``."""

    boot: str


_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[JournalHeader | Synced | Resumed] = msgspec.msgpack.Decoder(
    JournalHeader | Synced | Resumed
)


def journal_header(
    epoch: int,
    head: CheckpointId | None = None,
    generation: int = 0,
    next_ino: int = 0,
    extra: bytes = b"",
) -> JournalHeader:
    """The header of a journal that begins now."""
    return JournalHeader(FORMAT_VERSION, boot_id(), epoch, head, generation, next_ino, extra)


class JournalContents(msgspec.Struct, frozen=True):
    """A journal as read. ``torn_at`` is the length of what can be trusted if bytes had to be left out, else None;
    ``dropped`` counts those bytes. ``boot`` is the run of the kernel in which the last records were written.
    """

    header: JournalHeader
    records: list[bytes]
    size: int
    torn_at: int | None = None
    dropped: int = 0
    boot: str = ""


class JournalWriter:
    """A journal being written. ``append(payload)`` adds one record in one write(2).

    Raises NoSpaceError, leaving no part of the record behind.
    """

    __slots__ = ("_frames", "append", "close", "path", "size")

    def __init__(self, path: bytes, disk: Disk, header: JournalHeader) -> None:
        """Begin a new journal. Raises FileExistsError."""
        # No rename: a journal means nothing before the head names its epoch, and then its header is whole.
        disk.write_new(path, frame(_encode(header), mark=True))
        self._take(path, disk)

    def _take(self, path: bytes, disk: Disk) -> None:
        self.path = path
        self._frames = FrameWriter(disk.open_append(path), disk, path)
        # Bound once: this is on the way of every operation that changes the tree.
        self.append = self._frames.append
        self.size = self._frames.size
        self.close = self._frames.close

    @classmethod
    def resume(cls, path: bytes, disk: Disk, contents: JournalContents) -> JournalWriter:
        """Go on with a journal that was just read; what could not be trusted is cut off first."""
        writer = cls.__new__(cls)
        writer._take(path, disk)
        if contents.torn_at is not None:
            disk.truncate(writer._frames.fd, contents.torn_at)
        if contents.torn_at == 0:
            writer._frames.append_mark(_encode(contents.header))
        writer._frames.append_mark(_encode(Resumed(boot_id())))
        return writer

    def reserve(self, length: int) -> bool:
        """Set space aside for the next ``length`` bytes of records. False if the disk is full."""
        return reserve_space(self._frames.fd, self._frames.size(), length)

    def sync(self) -> None:
        """Return when all records appended before are on the device."""
        length = self._frames.size()
        self._frames.sync()
        self._frames.append_mark(_encode(Synced(length)))


def read_journal(path: bytes) -> JournalContents:
    """The journal at ``path``.

    A torn end is left out and told: it is a record whose operation was not answered or, after a power failure, one
    that nobody had asked to be durable. If not even the header is there, its ``boot`` is empty and its other fields
    are defaults. Raises DamagedError if records are lost that were known to be on the device,
    or that no power failure can explain; FormatError for another version; FileNotFoundError.
    """
    data = read_file(path)
    frames = scan(data)
    where = os.fsdecode(path)
    marks = [(count, _mark(payload, where)) for count, payload in frames.marks]
    if not marks or not isinstance(marks[0][1], JournalHeader) or marks[0][0]:
        if frames.end == 0 and frames.resumes is None:
            name = os.path.basename(path)
            epoch = int(name) if name.isdigit() else 0
            return JournalContents(JournalHeader(FORMAT_VERSION, "", epoch), [], 0, 0, len(data))
        if frames.end == 0:
            raise DamagedError(
                f"the header of journal {where} is damaged", hint="`plyfs fsck --repair` sets the journal aside"
            )
        raise FormatError(f"{where} is not a journal")
    header = marks[0][1]
    assert isinstance(header, JournalHeader)
    if header.version != FORMAT_VERSION:
        raise FormatError(
            f"journal {where} is of format version {header.version}; this plyfs reads version {FORMAT_VERSION}",
            hint="use the plyfs release that wrote this store, or a newer one",
        )
    last_boot = next((mark.boot for _, mark in reversed(marks) if isinstance(mark, Resumed)), header.boot)
    if frames.end == len(data):
        return JournalContents(header, frames.payloads, len(data), boot=last_boot)
    later = [] if frames.resumes is None else _following(data, frames.resumes, where)
    kept = [mark for _, mark in marks] + later
    promised = max((mark.length for mark in kept if isinstance(mark, Synced)), default=0)
    boot = next((mark.boot for mark in reversed(kept) if isinstance(mark, Resumed)), header.boot)
    if frames.end < promised or (frames.resumes is not None and boot == boot_id()):
        raise DamagedError(
            f"journal {where} is damaged at byte {frames.end} of {len(data)}, in the middle of its records",
            hint="`plyfs fsck --repair` keeps the records before that place and sets the journal aside",
        )
    return JournalContents(header, frames.payloads, frames.end, frames.end, len(data) - frames.end, last_boot)


def _following(data: bytes, offset: int, where: str) -> list[JournalHeader | Synced | Resumed]:
    """The marks in good frames after damage."""
    frames: Frames = scan(data, offset)
    return [_mark(payload, where) for _, payload in frames.marks]


def _mark(payload: bytes, where: str) -> JournalHeader | Synced | Resumed:
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise FormatError(f"{where} has a mark that is not of format version {FORMAT_VERSION}: {error}") from error
