"""The bytes of sealed files: where they lie, reading them, and copying them out with their holes.

Owns the way from a ``Content`` to bytes. Does not own the objects (``store.objects``), the directories that origins
speak of (``host``), nor content that is still being written (``extents``). Wrong bytes are never returned: blobs are
verified by the store, and an origin counts only while its file has the recorded size and modification time.

Concurrency: any thread may call; nothing is changed but a small cache of decoded chunk lists.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from store.disk import read_at, write_at
from store.entries import content_size
from store.errors import FormatError
from store.format import (
    Blob,
    BlobPiece,
    Chunked,
    ChunkList,
    Content,
    HolePiece,
    Inline,
    Original,
    OriginPiece,
    decode,
)
from vfs.errors import FsError
from vfs.trees.host import describe

if TYPE_CHECKING:
    from store.objects import Opened
    from store.refs import BlobRef, NodeRef
    from vfs.trees.host import Host

COPY_BYTES = 1 << 20
LISTS_KEPT = 64

Source: TypeAlias = Inline | Blob | OriginPiece | HolePiece
"""Where the bytes of a span lie: the whole of an ``Inline`` or ``Blob``, ``length`` bytes of an origin, or nowhere."""


class Span(NamedTuple):
    """``length`` bytes of a file from ``start`` on."""

    start: int
    length: int
    source: Source


class BlobStore(Protocol):
    """What contents need of ``store.objects``."""

    def get_node(self, ref: NodeRef) -> bytes:
        """The verified bytes of a node."""
        ...

    def read_blob(self, ref: BlobRef, size: int) -> bytes:
        """The verified bytes of a blob."""
        ...

    def open_blob(self, ref: BlobRef, size: int) -> Opened:
        """A blob whose bytes were verified, open for reading."""
        ...


class Contents:
    """Reads contents over one store and one host. Methods raise FsError, and DamagedError for what the store lost."""

    def __init__(self, objects: BlobStore, host: Host) -> None:
        self._objects = objects
        self._host = host
        self._lists: OrderedDict[NodeRef, ChunkList] = OrderedDict()

    def size(self, content: Content) -> int:
        """The length in bytes."""
        return content_size(content)

    def chunks(self, content: Chunked) -> ChunkList:
        """The pieces of ``content``, checked against its size."""
        found = self._lists.get(content.ref)
        if found is None:
            value = decode(self._objects.get_node(content.ref))
            if not isinstance(value, ChunkList):
                raise FormatError(f"object {content.ref.hex()} is not a chunk list")
            found = value
            self._lists[content.ref] = found
            while len(self._lists) > LISTS_KEPT:
                try:
                    self._lists.popitem(last=False)
                except KeyError:  # another thread emptied it first
                    break
        if sum(piece.length for piece in found.pieces) != content.size:
            raise FormatError(f"chunk list {content.ref.hex()} is not of {content.size} bytes")
        return found

    def spans(self, content: Content) -> list[Span]:
        """The spans of ``content`` in order, without gaps."""
        if isinstance(content, Inline):
            return [Span(0, len(content.data), content)] if content.data else []
        if isinstance(content, Blob):
            return [Span(0, content.size, content)] if content.size else []
        if isinstance(content, Original):
            if not content.size:
                return []
            piece = OriginPiece(content.size, content.origin, 0, content.size, content.mtime_ns)
            return [Span(0, content.size, piece)]
        spans = []
        start = 0
        for part in self.chunks(content).pieces:
            source = Blob(part.ref, part.length) if isinstance(part, BlobPiece) else part
            spans.append(Span(start, part.length, source))
            start += part.length
        return spans

    def read(self, content: Content, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``; fewer only at the end of the file."""
        end = min(offset + length, content_size(content))
        if offset >= end:
            return b""
        parts = []
        for span in self.spans(content):
            start, stop = max(offset, span.start), min(end, span.start + span.length)
            if start < stop:
                parts.append(self.read_source(span.source, start - span.start, stop - start))
            elif span.start >= end:
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_source(self, source: Source, offset: int, length: int) -> bytes:
        """``length`` bytes from ``offset`` of one span's source; they must be there."""
        if isinstance(source, Inline):
            return source.data[offset : offset + length]
        if isinstance(source, HolePiece):
            return bytes(length)
        if isinstance(source, Blob):
            if offset == 0 and length == source.size:
                return self._objects.read_blob(source.ref, source.size)
            fd, start = self._objects.open_blob(source.ref, source.size)
            try:
                return _read_all(fd, start + offset, length, source.ref.hex())
            finally:
                os.close(fd)
        fd = self.open_origin(source)
        try:
            data = _read_all(fd, source.offset + offset, length, describe(source.origin))
            check_origin(fd, source)
            return data
        finally:
            os.close(fd)

    def open_origin(self, source: OriginPiece | Original) -> int:
        """A descriptor of the file that ``source`` cites, which has the recorded size and time; EIO if it is gone or
        changed. Use ``check_origin`` after reading.
        """
        try:
            fd = self._host.open(source.origin)
        except FsError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise FsError(errno.EIO, f"{describe(source.origin)} is gone from below the mount") from error
            raise
        try:
            check_origin(fd, source)
        except FsError:
            os.close(fd)
            raise
        return fd

    def copy_to(self, content: Content, fd: int) -> None:
        """Make the empty file ``fd`` the content; holes stay holes."""
        try:
            os.ftruncate(fd, content_size(content))
            for span in self.spans(content):
                if isinstance(span.source, OriginPiece):
                    self._copy_origin(span.source, fd, span.start)
                elif isinstance(span.source, Blob):
                    source, start = self._objects.open_blob(span.source.ref, span.length)
                    try:
                        copy_range(source, start, fd, span.start, span.length)
                    finally:
                        os.close(source)
                elif isinstance(span.source, Inline):
                    _write_all(fd, span.source.data, span.start)
        except OSError as error:
            raise FsError(error.errno or errno.EIO) from error

    def _copy_origin(self, source: OriginPiece, fd: int, start: int) -> None:
        origin = self.open_origin(source)
        try:
            copy_data(origin, source.offset, fd, start, source.length)
            check_origin(origin, source)
        finally:
            os.close(origin)


def check_origin(fd: int, source: OriginPiece | Original) -> None:
    """Raise FsError(EIO) unless the open file ``fd`` still is what ``source`` recorded."""
    status = os.fstat(fd)
    if status.st_size != source.size or status.st_mtime_ns != source.mtime_ns:
        raise FsError(errno.EIO, f"{describe(source.origin)} was changed below the mount; what it held is lost")


def copy_data(source: int, offset: int, target: int, start: int, length: int) -> None:
    """Copy ``length`` bytes between files, skipping the source's holes. The target must read as zeros there."""
    end = offset + length
    while offset < end:
        try:
            data = os.lseek(source, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                return
            copy_range(source, offset, target, start, end - offset)  # holes cannot be asked for here
            return
        if data >= end:
            return
        hole = min(end, os.lseek(source, data, os.SEEK_HOLE))
        copy_range(source, data, target, start + data - offset, hole - data)
        start += hole - offset
        offset = hole


def copy_range(source: int, offset: int, target: int, start: int, length: int) -> None:
    """Copy exactly ``length`` bytes between files, in the kernel where it can. EIO if the source is shorter."""
    in_kernel = hasattr(os, "copy_file_range")  # Linux
    while length:
        if in_kernel:
            try:
                count = os.copy_file_range(source, target, min(length, 1 << 30), offset, start)
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
                    raise
                count = 0
            if count == 0:  # also what some file systems answer instead of an error
                in_kernel = False
                continue
        else:
            data = read_at(source, min(length, COPY_BYTES), offset)
            if not data:
                raise OSError(errno.EIO, "the source is shorter than it was")
            _write_all(target, data, start)
            count = len(data)
        offset += count
        start += count
        length -= count


def _read_all(fd: int, offset: int, length: int, what: str) -> bytes:
    data = read_at(fd, length, offset)
    while len(data) < length:
        more = read_at(fd, length - len(data), offset + len(data))
        if not more:
            raise FsError(errno.EIO, f"{what} is shorter than it was")
        data += more
    return data


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = write_at(fd, view, offset)
        view = view[count:]
        offset += count
