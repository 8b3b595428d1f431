"""Framed records at the end of a file: what journal, history and generations have in common.

A frame is a u32 length, a u32 CRC-32 of the payload (both little-endian) and the payload. Bit 31 of the length says
that the payload is a mark of the file's own layer rather than one of its records. No frame is empty, so that a run
of zeros, which a power failure can leave, is never taken for frames.

Owns the frame's bytes and the promise that a failed append leaves no part of itself. Does not own what payloads mean.

Concurrency: one thread appends at a time; ``sync`` may run beside it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import NamedTuple
from zlib import crc32

from store.disk import FULL, Disk, no_space
from store.errors import StoreError

MARK = 1 << 31
FRAME_MAX = 1 << 28
"""No payload is longer, so a length beyond it is damage."""

_header = struct.Struct("<II")
_pack = _header.pack
_unpack_from = _header.unpack_from
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
    return _pack(len(payload) | MARK if mark else len(payload), crc32(payload)) + payload


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
        if end > size or end == start or crc32(payload) != check:
            return Frames(payloads, marks, offset, _next_good(data, end))
        if length & MARK:
            marks.append((len(payloads), payload))
        else:
            payloads.append(payload)
        offset = end
    return Frames(payloads, marks, offset, None)


def _next_good(data: bytes, offset: int) -> int | None:
    """``offset``, if a whole good frame stands there."""
    if offset + HEADER_BYTES >= len(data):
        return None
    length, check = _unpack_from(data, offset)
    start = offset + HEADER_BYTES
    end = start + (length & ~MARK)
    good = start < end <= len(data) and crc32(data[start:end]) == check
    return offset if good else None


class FrameWriter:
    """Appends frames to an open file, which it owns from now on."""

    def __init__(self, fd: int, disk: Disk, path: bytes) -> None:
        self.fd = fd
        self.path = path
        self._disk = disk
        self._write: Callable[[int, bytes | memoryview], int] = disk.append
        self._torn_at: int | None = None

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
        """Return when all that was appended before is on the device."""
        if self._torn_at is not None:
            self._mend()
        self._disk.sync_file(self.fd)

    def close(self) -> None:
        """Give the file up. Further calls fail."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._write = _closed


def _closed(fd: int, data: bytes | memoryview) -> int:
    raise StoreError("appending to a file that was closed")
