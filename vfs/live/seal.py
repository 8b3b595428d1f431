"""Sealing: turning what a checkpoint froze into blobs, pages and a layer, off the path of any caller.

Owns how content becomes blobs and chunk lists, and the order in which a layer comes to be: referents before
references. Runs in the sealer's thread; reads only frozen values, and takes no lock of the tree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from store.format import (
    CHUNK_BYTES,
    FORMAT_VERSION,
    INLINE_MAX,
    Blob,
    BlobPiece,
    Chunked,
    ChunkList,
    Content,
    Directory,
    HolePiece,
    Inline,
    Layer,
    LinkTarget,
    Original,
    OriginPiece,
    Piece,
    Regular,
    encode,
)
from store.nodes import FreshDirectory, FreshRegular, Page, Pages, settled
from store.refs import BlobRef, LayerRef, NodeRef
from vfs.live.extents import Extents, Run, read_runs
from vfs.live.pending import Pending
from vfs.live.sources import BlobSource, OriginSource
from vfs.live.tree import Root

HOLE_MIN = 4096
"""Holes smaller than this (bytes) are stored as zeros."""


class SealedObjects(Protocol):
    """Where sealing puts what it makes: the store of its pages, or what gathers for it."""

    def put_blob(self, data: bytes | memoryview) -> BlobRef: ...

    def put_node(self, data: bytes) -> NodeRef: ...


class LayerSealer:
    """Seals one root. ``settled_files`` collects the entries of the files whose content got its stored form."""

    def __init__(self, objects: SealedObjects, pages: Pages, pause: Callable[[], None] | None = None) -> None:
        self._objects = objects
        self._pages = pages
        self._pause = pause
        self.settled_files: list[FreshRegular] = []

    def seal(self, root: Root, parent: LayerRef | None) -> LayerRef:
        """Store ``root`` as a layer over ``parent``. Raises StoreError or FsError; then nothing refers to it."""
        links = None if root.links is None else self._seal_page(root.links)
        directory = self._seal_directory(root.directory)
        layer = Layer(FORMAT_VERSION, parent, root.generation, directory, links)
        return LayerRef(self._objects.put_node(encode(layer)))

    def _seal_directory(self, directory: Directory) -> Directory:
        entry = settled(directory)
        if not isinstance(entry, FreshDirectory):
            assert isinstance(entry, Directory)
            return entry
        page = self._pages.page_of(entry)
        ref = None if page is None else self._seal_page(page)
        sealed = Directory(entry.attributes, entry.origin, entry.subdirectories, ref)
        entry.fresh.sealed = sealed
        return sealed

    def _seal_page(self, page: Page) -> NodeRef:
        for entry in list(self._pages.fresh_entries(page)):
            if isinstance(entry, LinkTarget):
                entry = settled(entry.inode)
            if isinstance(entry, FreshDirectory):
                self._seal_directory(entry)
            elif isinstance(entry, FreshRegular) and entry.fresh.sealed is None:
                self._seal_file(entry)
        return self._pages.save(page, self._objects)

    def _seal_file(self, entry: FreshRegular) -> None:
        pending = entry.fresh.value
        assert isinstance(pending, Pending)
        if pending.content is None:
            pending.content = self.content(pending)
        entry.fresh.sealed = Regular(entry.attributes, pending.content)
        self.settled_files.append(entry)
        if self._pause is not None:
            self._pause()

    # --- content ---------------------------------------------------------------------------------------------------

    def content(self, pending: Pending) -> Content:
        """The stored form of ``pending``."""
        runs, size = pending.runs, pending.size
        if len(runs) == 1:
            whole = _whole_source(runs[0], size)
            if whole is not None:
                return whole
        if size <= INLINE_MAX:
            return Inline(read_runs(list(runs), 0, size))
        if size <= CHUNK_BYTES and _largest_hole(runs, size) < HOLE_MIN:
            return Blob(self._objects.put_blob(read_runs(list(runs), 0, size)), size)
        return self._chunked(Extents(runs), size)

    def _chunked(self, extents: Extents, size: int) -> Chunked:
        pieces: list[Piece] = []
        start = 0
        while start < size:
            data = extents.next_data(start)
            skipped = (size if data is None else data) // CHUNK_BYTES * CHUNK_BYTES
            if skipped > start:  # a hole over whole chunks, whatever its length
                _append(pieces, HolePiece(skipped - start))
                start = skipped
                continue
            end = min(start + CHUNK_BYTES, size)
            self._append_chunk(pieces, extents.slice(start, end), start, end)
            start = end
        return Chunked(self._objects.put_node(encode(ChunkList(tuple(pieces)))), size)

    def _append_chunk(self, pieces: list[Piece], runs: list[Run], start: int, end: int) -> None:
        at = start
        for group in _groups(runs):
            cited = all(_cited(run) for run in group)
            first, last = group[0].start, group[-1].end
            if not cited:  # zeros at the ends of a chunk are stored as such, if they are few
                first = start if first - start < HOLE_MIN else first
                last = end if end - last < HOLE_MIN else last
            if first > at:
                _append(pieces, HolePiece(first - at))
            if cited:
                self._append_cited(pieces, group)
            else:
                _append(pieces, BlobPiece(last - first, self._objects.put_blob(read_runs(group, first, last))))
            at = last
        if at < end:
            _append(pieces, HolePiece(end - at))

    def _append_cited(self, pieces: list[Piece], runs: list[Run]) -> None:
        """Pieces for runs that are stored already, and for what lies between them."""
        at = runs[0].start
        for run in runs:
            if run.start > at:
                _append(pieces, HolePiece(run.start - at))
            length = run.end - run.start
            if isinstance(run.source, OriginSource):
                source = run.source
                offset = run.start + run.delta
                _append(pieces, OriginPiece(length, source.origin, offset, source.size, source.mtime_ns))
            else:
                assert isinstance(run.source, BlobSource)
                _append(pieces, BlobPiece(length, run.source.ref))
            at = run.end


def _groups(runs: list[Run]) -> list[list[Run]]:
    """``runs`` parted where a hole that is worth keeping lies between them."""
    groups: list[list[Run]] = []
    for run in runs:
        if groups and run.start - groups[-1][-1].end < HOLE_MIN:
            groups[-1].append(run)
        else:
            groups.append([run])
    return groups


def _cited(run: Run) -> bool:
    """True if a run is stored already, in a form that a piece can cite."""
    return isinstance(run.source, OriginSource) or _whole_blob(run)


def _whole_blob(run: Run) -> bool:
    """True if a run is exactly one blob."""
    source = run.source
    return isinstance(source, BlobSource) and run.start + run.delta == 0 and run.end - run.start == source.size


def _whole_source(run: Run, size: int) -> Content | None:
    """The content of a file that is exactly one stored thing, None if it is not."""
    source = run.source
    if run.start or run.delta or run.end != size:
        return None
    if isinstance(source, OriginSource) and source.size == size:
        return Original(source.origin, size, source.mtime_ns)
    if isinstance(source, BlobSource) and source.size == size and size > INLINE_MAX:
        return Blob(source.ref, size)
    return None


def _largest_hole(runs: tuple[Run, ...] | list[Run], end: int, start: int = 0) -> int:
    """The longest stretch between ``start`` and ``end`` that no run covers, bytes."""
    largest = 0
    at = start
    for run in runs:
        largest = max(largest, run.start - at)
        at = run.end
    return max(largest, end - at)


def _append(pieces: list[Piece], piece: Piece) -> None:
    """Add a piece, joined with the one before where they are one."""
    last = pieces[-1] if pieces else None
    if isinstance(piece, HolePiece) and isinstance(last, HolePiece):
        pieces[-1] = HolePiece(last.length + piece.length)
    elif (
        isinstance(piece, OriginPiece)
        and isinstance(last, OriginPiece)
        and (last.origin, last.size, last.mtime_ns) == (piece.origin, piece.size, piece.mtime_ns)
        and last.offset + last.length == piece.offset
    ):
        pieces[-1] = OriginPiece(last.length + piece.length, last.origin, last.offset, last.size, last.mtime_ns)
    else:
        pieces.append(piece)


def settle(live: Extents, frozen: tuple[Run, ...], stored: Extents) -> Extents:
    """``live`` with everything that is still as it was ``frozen`` coming from ``stored``, its sealed form."""
    result = Extents()
    before = Extents(frozen)
    for run in live.freeze():
        at = run.start
        for old in before.slice(run.start, run.end):
            if old.source is not run.source or old.delta != run.delta:
                continue
            if at < old.start:
                result.put(at, old.start, run.source, run.delta)
            for part in stored.slice(old.start, old.end):
                result.put(part.start, part.end, part.source, part.delta)
            at = old.end
        if at < run.end:
            result.put(at, run.end, run.source, run.delta)
    return result
