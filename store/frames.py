"""Framed records at the end of a file: what journal, history and generations have in common.

A frame is a u32 length, a u32 CRC-32 of the payload (both little-endian) and the payload. Bit 31 of the length says
that the payload is a mark of the file's own layer rather than one of its records; its CRC starts from 1. No frame is
empty, so that a run of zeros, which a power failure can leave, is never taken for frames.

Owns the frame's bytes and the promise that a failed append leaves no part of itself. Does not own what payloads mean.

Concurrency: one thread appends at a time; ``sync`` may run beside it.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple
from zlib import crc32

import msgspec

from store.disk import FULL, Disk, no_space, read_file, reserve_space
from store.errors import DamagedError, FormatError, NoSpaceError, StoreError
from store.format import FORMAT_VERSION

MARK = 1 << 31
FRAME_MAX = 1 << 28
"""No payload is longer, so a length beyond it is damage."""

RESYNC_BYTES = 1 << 18
"""How far behind damage the next good frame is looked for; records are far shorter."""

_header = struct.Struct("<II")
_pack = _header.pack
_unpack_from: Callable[[bytes, int], tuple[int, int]] = _header.unpack_from
HEADER_BYTES = _header.size


class Frames(NamedTuple):
    """What a scan found: payloads with a flag for marks, and where the good bytes end.

    ``resumes`` is where good frames go on after damage at ``end``, None if nothing readable follows.
    """

    payloads: list[bytes]
    marks: list[tuple[int, bytes]]
    end: int
    resumes: int | None


def frame(payload: bytes, mark: bool = False) -> bytes:
    """The bytes of one frame."""
    assert 0 < len(payload) <= FRAME_MAX, "a frame is neither empty nor beyond FRAME_MAX"
    return _pack(len(payload) | (MARK if mark else 0), crc32(payload, int(mark))) + payload


def scan(data: bytes, offset: int = 0) -> Frames:
    """The frames of ``data`` from ``offset`` up to its end or the first damage.

    ``marks`` are given with the number of payloads before them.
    """
    payloads: list[bytes] = []
    marks: list[tuple[int, bytes]] = []
    size = len(data)
    while offset + HEADER_BYTES < size:
        length, check = _unpack_from(data, offset)
        start = offset + HEADER_BYTES
        end = start + (length & ~MARK)
        payload = data[start:end]
        if end > size or end == start or crc32(payload, length >> 31) != check:
            return Frames(payloads, marks, offset, _next_good(data, offset, end))
        if length & MARK:
            marks.append((len(payloads), payload))
        else:
            payloads.append(payload)
        offset = end
    return Frames(payloads, marks, offset, None)


def _next_good(data: bytes, damaged: int, claimed: int) -> int | None:
    """Where good frames go on after the one at ``damaged`` that claims to end at ``claimed``; None if nowhere.

    An append that was cut short leaves none. The length itself may be what is damaged, so every place is tried.
    """
    offset: int
    for offset in (claimed, *range(damaged + 1, min(len(data), damaged + RESYNC_BYTES))):
        if offset + HEADER_BYTES < len(data):
            length, check = _unpack_from(data, offset)
            start = offset + HEADER_BYTES
            end = start + (length & ~MARK)
            if start < end <= len(data) and crc32(data[start:end], length >> 31) == check:
                return offset
    return None


class FrameWriter:
    """Appends frames to an open file, which it owns from now on."""

    def __init__(self, fd: int, disk: Disk, path: bytes) -> None:
        self.fd = fd
        self.path = path
        self._disk = disk
        self._write: Callable[[int, bytes | memoryview], int] = disk.append
        self._torn_at: int | None = None
        self._failed: OSError | None = None

    def append(self, payload: bytes) -> None:
        """Add one record. Raises NoSpaceError or OSError, and then the file is as it was before."""
        data = _pack(len(payload), crc32(payload)) + payload
        try:
            written = self._write(self.fd, data)
        except OSError as error:
            raise self._typed(error) from error
        if written != len(data):
            self._finish(data, written)

    def append_mark(self, payload: bytes) -> None:
        """Add one mark; fails as ``append`` does."""
        data = frame(payload, mark=True)
        try:
            written = self._write(self.fd, data)
        except OSError as error:
            raise self._typed(error) from error
        if written != len(data):
            self._finish(data, written)

    def _finish(self, data: bytes, written: int) -> None:
        """Write the rest of a frame that was taken in part, or take back the part."""
        before = self.size() - written
        try:
            while written < len(data):
                written += self._write(self.fd, data[written:])
        except OSError as error:
            self._torn_at = before
            self._write = self._after_tear
            self._mend()
            raise self._typed(error) from error

    def _mend(self) -> None:
        """Cut away a part of a frame. As long as that fails nothing may be appended behind it."""
        if self._torn_at is not None:
            self._disk.truncate(self.fd, self._torn_at)
            self._torn_at = None
            self._write = self._disk.append

    def _after_tear(self, fd: int, data: bytes | memoryview) -> int:
        """Stands in for the disk's append while a torn frame could not be cut away."""
        self._mend()
        return self._disk.append(fd, data)

    def _typed(self, error: OSError) -> Exception:
        if error.errno in FULL:
            return no_space(error, f"add to {os.fsdecode(self.path)}")
        return error

    def size(self) -> int:
        """The file's length in bytes."""
        return os.fstat(self.fd).st_size

    def sync(self) -> None:
        """Return when all that was appended before is on the device.

        Raises OSError or NoSpaceError, and then ever again: the kernel forgets what it could not write, and the next
        fsync(2) would succeed without it (https://lwn.net/Articles/752063/).
        """
        if self._failed is not None:
            raise OSError(self._failed.errno, self._failed.strerror, self.path)
        if self._torn_at is not None:
            self._mend()
        try:
            self._disk.sync_file(self.fd)
        except OSError as error:
            self._failed = error
            raise
        except NoSpaceError:
            self._failed = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise

    def close(self) -> None:
        """Give the file up. Further calls fail."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._write = _closed


def _closed(fd: int, data: bytes | memoryview) -> int:
    raise StoreError("appending to a file that was closed")


class EventFile:
    """A file of events that is read whole and only ever added to: a header mark, then one record for each event.

    Reading changes nothing. The first append makes the file if it is missing, takes in what another process has
    added since, and cuts off a torn end.
    """

    def __init__(self, path: bytes, kind: str, disk: Disk) -> None:
        self.path = path
        self._header = msgspec.msgpack.encode((kind, FORMAT_VERSION))
        self._disk = disk
        self._writer: FrameWriter | None = None
        self._read = 0
        self._created = False
        self._doubtful = False
        self.torn = 0
        """How many bytes at the end are left out because an append was cut short there."""

    def load(self) -> list[bytes]:
        """The events added since the last call. Raises DamagedError or FormatError."""
        try:
            data = read_file(self.path)
        except FileNotFoundError:
            return []
        frames = scan(data, self._read)
        name = os.fsdecode(self.path)
        if len(data) < self._read:
            raise DamagedError(f"{name} has lost its end", hint="`plyfs fsck --repair` keeps what can be read of it")
        if self._read == 0 and frames.end and frames.marks[:1] != [(0, self._header)]:
            raise FormatError(
                f"{name} is not of format version {FORMAT_VERSION}",
                hint="use the plyfs release that wrote this store, or a newer one",
            )
        if frames.resumes is not None:
            raise DamagedError(
                f"{name} is damaged at byte {frames.end} of {len(data)}",
                hint="`plyfs fsck --repair` keeps what can be read of it",
            )
        self.torn = len(data) - frames.end
        self._read = frames.end
        return frames.payloads

    def prepare(self) -> list[bytes]:
        """Open for appending, once; returns the events that another process has added since ``load``."""
        if self._writer is not None:
            return []
        missed = self.load()
        if self._doubtful:
            # What the kernel still shows may never have reached the device, so it is written once more.
            self._disk.replace(self.path, read_file(self.path)[: self._read], sync=True)
            self._doubtful = False
            self.torn = 0
        if self._read == 0:
            self._disk.replace(self.path, frame(self._header, mark=True), sync=False)
            self._created = True
            self._read = HEADER_BYTES + len(self._header)
        writer = FrameWriter(self._disk.open_append(self.path), self._disk, self.path)
        if self.torn and self._read:
            self._disk.truncate(writer.fd, self._read)
        self.torn = 0
        self._writer = writer
        return missed

    def append(self, payload: bytes) -> None:
        """Add one event, after ``prepare``. Raises NoSpaceError, and then nothing was added."""
        assert self._writer is not None, "prepare() comes first"
        self._writer.append(payload)

    def rewrite(self, payloads: Iterable[bytes]) -> None:
        """Let the file hold just the events ``payloads``, by rename. Raises NoSpaceError, and then it is as it was."""
        self.close()
        data = frame(self._header, mark=True) + b"".join(map(frame, payloads))
        self._disk.replace(self.path, data, sync=False)
        self._read = len(data)
        self.torn = 0

    def reserve(self, length: int) -> bool:
        """Set space aside for the next ``length`` bytes, after ``prepare``. False if the disk is full."""
        assert self._writer is not None, "prepare() comes first"
        return reserve_space(self._writer.fd, self._writer.size(), length)

    def doubt(self) -> None:
        """After a ``sync`` that failed: the next append writes the whole file anew, durably."""
        self.close()
        self._doubtful = True

    def sync(self) -> None:
        """Return when all events added before are on the device. Raises OSError or NoSpaceError; then ``doubt``."""
        if self._writer is not None:
            self._writer.sync()
            if self._created:
                self._disk.sync_dir(os.path.dirname(self.path))
                self._created = False

    def close(self) -> None:
        """Give the file up; a later append opens it again."""
        if self._writer is not None:
            self._read = self._writer.size()
            self._writer.close()
            self._writer = None
