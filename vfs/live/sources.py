"""Where stored bytes come from: inline bytes, blobs, and files of the base or the attic, behind one small cache of
open descriptors.

Owns the descriptors. A source never gives wrong bytes: a blob is verified when it is first opened, a file of the
base is compared with the size and mtime under which it was cited. May be used by any thread.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from store.errors import StoreError
from store.format import Blob, BlobPiece, Chunked, ChunkList, Content, HolePiece, Inline, Origin, Original, decode
from store.objects import Opened
from store.refs import BlobRef, NodeRef
from vfs.errors import FsError
from vfs.live.extents import Extents, Run

MOST_PARTS = 1024
"""Pieces of data between holes for which a sparse file of the base is taken apart."""


class Descriptor:
    """An open file that closes itself when nobody uses it any more. What it is for begins at ``start`` in it."""

    __slots__ = ("fd", "start")

    def __init__(self, fd: int, start: int = 0) -> None:
        self.fd = fd
        self.start = start

    def __del__(self) -> None:
        os.close(self.fd)


class BlobFiles(Protocol):
    """The part of ``store.objects`` that sources need."""

    def open_blob(self, ref: BlobRef, size: int) -> Opened: ...

    def get_node(self, ref: NodeRef) -> bytes: ...


class OriginFiles(Protocol):
    """The part of ``vfs.trees.host`` that sources need."""

    def open_any(self, origin: Origin) -> int: ...


class BytesSource:
    """Bytes in memory."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def pread(self, length: int, offset: int) -> bytes:
        """See ``Source``."""
        return self._data[offset : offset + length]


class _FileSource:
    """What blobs and origins have in common: an exact pread through a cached descriptor."""

    __slots__ = ("_sources",)

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def _open(self) -> Descriptor:
        raise NotImplementedError

    def _name(self) -> str:
        raise NotImplementedError

    def pread(self, length: int, offset: int) -> bytes:
        """See ``Source``."""
        descriptor = self._sources.descriptor(self)
        offset += descriptor.start
        try:
            data = os.pread(descriptor.fd, length, offset)
            while len(data) < length:
                more = os.pread(descriptor.fd, length - len(data), offset + len(data))
                if not more:
                    raise FsError(errno.EIO, f"{self._name()} is shorter than it was")
                data += more
        except OSError as error:
            raise FsError(error.errno or errno.EIO) from error
        return data


class BlobSource(_FileSource):
    """A blob of ``size`` bytes."""

    __slots__ = ("ref", "size")

    def __init__(self, sources: Sources, ref: BlobRef, size: int) -> None:
        super().__init__(sources)
        self.ref = ref
        self.size = size

    def _open(self) -> Descriptor:
        try:
            return Descriptor(*self._sources.blobs.open_blob(self.ref, self.size))
        except StoreError as error:
            raise FsError(errno.EIO, str(error)) from error

    def _name(self) -> str:
        return f"blob {self.ref.hex()}"


class OriginSource(_FileSource):
    """A file of the base or the attic, valid while it has ``size`` and ``mtime_ns``."""

    __slots__ = ("mtime_ns", "origin", "size")

    def __init__(self, sources: Sources, origin: Origin, size: int, mtime_ns: int) -> None:
        super().__init__(sources)
        self.origin = origin
        self.size = size
        self.mtime_ns = mtime_ns

    def _open(self) -> Descriptor:
        descriptor = Descriptor(self._sources.origins.open_any(self.origin))
        now = os.fstat(descriptor.fd)
        if now.st_size != self.size or now.st_mtime_ns != self.mtime_ns or not stat.S_ISREG(now.st_mode):
            raise FsError(errno.EIO, f"{self._name()} was changed below the mount")
        return descriptor

    def _name(self) -> str:
        return f"base file {os.fsdecode(self.origin.path)}"


class Sources:
    """Makes sources of stored content and keeps the most recently used descriptors open. ``on_trouble`` hears why one
    cannot be read, in the thread that wanted to.
    """

    def __init__(self, blobs: BlobFiles, origins: OriginFiles, most_open: int = 512) -> None:
        self.blobs = blobs
        self.origins = origins
        self.on_trouble: Callable[[str], None] = lambda _: None
        self._most_open = most_open
        self._open: OrderedDict[_FileSource, Descriptor] = OrderedDict()
        self._lock = threading.Lock()

    def descriptor(self, source: _FileSource) -> Descriptor:
        """An open descriptor of ``source``, valid while the caller holds it. Raises FsError."""
        descriptor = self._open.get(source)
        if descriptor is None:
            descriptor = self._opened(source)
            with self._lock:
                self._open[source] = descriptor
                while len(self._open) > self._most_open:
                    self._open.popitem(last=False)
        return descriptor

    def _opened(self, source: _FileSource) -> Descriptor:
        try:
            return source._open()
        except FsError as error:
            self._trouble(error)
            raise

    def _trouble(self, error: FsError) -> None:
        """Whoever reads hears EIO and nothing else: let somebody be told why."""
        if error.errno == errno.EIO:
            self.on_trouble(str(error))

    def forget(self, source: _FileSource) -> None:
        """Close the descriptor of ``source``, if it is open and unused."""
        with self._lock:
            self._open.pop(source, None)

    def close(self) -> None:
        """Close everything that is not in use."""
        with self._lock:
            self._open.clear()

    def runs(self, content: Content) -> tuple[Run, ...]:
        """The runs of a file with ``content``. Raises FsError(EIO) if a chunk list is missing or damaged."""
        match content:
            case Inline(data):
                return (Run(0, len(data), BytesSource(data), 0),) if data else ()
            case Blob(ref, size):
                return (Run(0, size, BlobSource(self, ref, size), 0),)
            case Original(origin, size, mtime_ns):
                return (Run(0, size, OriginSource(self, origin, size, mtime_ns), 0),) if size else ()
            case Chunked(list_ref, _):
                return self._chunk_runs(list_ref)

    def data_runs(self, content: Original) -> tuple[Run, ...]:
        """As ``runs`` of a file of the base that has holes: its data alone, or all of it if that is in too many parts.

        Raises FsError(EIO) if the file is not what was cited.
        """
        source = OriginSource(self, content.origin, content.size, content.mtime_ns)
        whole = (Run(0, content.size, source, 0),)
        descriptor = self.descriptor(source)
        runs: list[Run] = []
        at = 0
        while at < content.size:
            try:
                start = os.lseek(descriptor.fd, at, os.SEEK_DATA)
                at = min(os.lseek(descriptor.fd, start, os.SEEK_HOLE), content.size)
            except OSError as error:
                if error.errno == errno.ENXIO:  # a hole up to the end
                    break
                return whole
            runs.append(Run(start, at, source, 0))
            if len(runs) > MOST_PARTS:
                return whole
        return tuple(runs)

    def _chunk_runs(self, ref: NodeRef) -> tuple[Run, ...]:
        try:
            chunks = decode(self.blobs.get_node(ref))
        except StoreError as error:
            lost = FsError(errno.EIO, str(error))
            self._trouble(lost)
            raise lost from error
        if not isinstance(chunks, ChunkList):
            raise FsError(errno.EIO, f"object {ref.hex()} is not a chunk list")
        runs: list[Run] = []
        at = 0
        files: dict[tuple[Origin, int, int], OriginSource] = {}
        for piece in chunks.pieces:
            end = at + piece.length
            if isinstance(piece, HolePiece):
                pass
            elif isinstance(piece, BlobPiece):
                runs.append(Run(at, end, BlobSource(self, piece.ref, piece.length), -at))
            else:
                key = (piece.origin, piece.size, piece.mtime_ns)
                source = files.get(key)
                if source is None:
                    source = files[key] = OriginSource(self, piece.origin, piece.size, piece.mtime_ns)
                runs.append(Run(at, end, source, piece.offset - at))
            at = end
        return tuple(runs)

    def extents(self, content: Content) -> Extents:
        """As ``runs``, to be changed."""
        return Extents(self.runs(content))
