"""What of a layer cannot be read any more, by path, and whether its counts are right.

Owns the walk that compares a layer with the objects and attic folders that are there. Does not own finding out which
objects are damaged (``check`` reads them all), nor the base, which is another program's to change.

Concurrency: one thread, inside ``Objects.sealing()`` so that nothing is swept meanwhile.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import NamedTuple

from store import attic
from store.errors import DamagedError
from store.format import (
    SLOT_BITS,
    Blob,
    BlobPiece,
    BranchPage,
    Chunked,
    ChunkList,
    Content,
    Directory,
    Entry,
    Layer,
    LeafPage,
    Linked,
    LinkTarget,
    Origin,
    Original,
    OriginPiece,
    Regular,
    decode,
)
from store.nodes import LEAF_MAX, MAX_DEPTH, name_hash
from store.objects import Objects
from store.refs import Ino, LayerRef, NodeRef

FIRST_NEW_INO = 1 << 62
"""Inode numbers from here on are plyfs' own: all names of such an inode are entries of the tree."""


class Loss(NamedTuple):
    """A path, relative to the workspace, and what is wrong there. ``b""`` is the root or the layer itself."""

    path: bytes
    reason: str


class _Place(NamedTuple):
    """A page and where it stands: how many slots of its names' hashes are used up, and what they were."""

    ref: NodeRef
    depth: int
    slots: int


class _Below(NamedTuple):
    """What is known of a page and all below it; ``links`` are the inodes that ``Linked`` entries name."""

    losses: tuple[Loss, ...]
    links: tuple[Ino, ...]
    entries: int
    directories: int


_NOTHING = _Below((), (), 0, 0)


class Losses:
    """Looks for losses in the layers of one workspace whose attic is at ``attic_dir``.

    ``bad`` maps objects that were found damaged to what is wrong with them.
    """

    def __init__(self, objects: Objects, bad: dict[bytes, str], attic_dir: bytes) -> None:
        self._objects = objects
        self._bad = bad
        self._attic_dir = attic_dir
        self._pages: dict[_Place, _Below] = {}
        self._values: dict[NodeRef, LeafPage | BranchPage | str] = {}

    def of(self, ref: LayerRef, generation: int) -> list[Loss]:
        """The losses of a layer, which should speak of ``generation``."""
        try:
            layer = decode(self._objects.get_node(NodeRef(ref)))
        except DamagedError as error:
            return [Loss(b"", error.message)]
        if not isinstance(layer, Layer):
            return [Loss(b"", f"object {ref.hex()} is not a layer")]
        losses = []
        if layer.generation != generation:
            losses.append(Loss(b"", f"the layer speaks of generation {layer.generation}, not {generation}"))
        losses += self._at_origin(b"", layer.root.origin, None)
        below = self._directory(layer.root)
        losses += below.losses
        losses += self._links(layer, below)
        return losses

    def _links(self, layer: Layer, tree: _Below) -> Iterator[Loss]:
        """Losses in the link table, and of names that it does not have."""
        rows: dict[Ino, LinkTarget] = {}
        if layer.links is not None:
            for name, entry in self._table(layer.links):
                if isinstance(entry, LinkTarget):
                    rows[Ino(int.from_bytes(name, "big"))] = entry
            for loss in self._page(_Place(layer.links, 0, 0)).losses:
                yield Loss(b"", f"hard-linked file (inode {int.from_bytes(loss.path, 'big')}): {loss.reason}")
        names: dict[Ino, int] = {}
        for ino in tree.links:
            names[ino] = names.get(ino, 0) + 1
        for ino, count in names.items():
            row = rows.get(ino)
            if row is None:
                yield Loss(b"", f"hard-linked file (inode {ino}) is not in the link table")
            elif ino >= FIRST_NEW_INO and row.links != count:
                yield Loss(b"", f"hard-linked file (inode {ino}) has {count} names, not {row.links}")

    def _table(self, ref: NodeRef) -> Iterator[tuple[bytes, Entry]]:
        waiting = [ref]
        while waiting:
            value = self._value(waiting.pop())
            if isinstance(value, LeafPage):
                yield from value.entries
            elif isinstance(value, BranchPage):
                waiting += [child.ref for child in value.children]

    # Pages

    def _value(self, ref: NodeRef) -> LeafPage | BranchPage | str:
        """A page, or what is wrong with it."""
        try:
            value = decode(self._objects.get_node(ref))
        except DamagedError as error:
            return error.message
        return value if isinstance(value, LeafPage | BranchPage) else f"object {ref.hex()} is not a page"

    def _directory(self, directory: Directory) -> _Below:
        return _NOTHING if directory.node is None else self._page(_Place(directory.node, 0, 0))

    def _page(self, place: _Place) -> _Below:
        """What is known of a page, from what is known of those below it. Trees may be deeper than a call stack."""
        waiting = [place]
        while waiting:
            current = waiting[-1]
            if current in self._pages:
                waiting.pop()
                continue
            value = self._values.get(current.ref)
            if value is None:
                value = self._values[current.ref] = self._value(current.ref)
            first = [below for below in _pages_below(current, value) if below not in self._pages]
            if first:
                waiting += first
                continue
            self._pages[current] = self._summary(current, value)
            self._values.pop(current.ref, None)
            waiting.pop()
        return self._pages[place]

    def _summary(self, place: _Place, value: LeafPage | BranchPage | str) -> _Below:
        if isinstance(value, str):
            return _Below((Loss(b"", f"the list of changes in this directory is lost: {value}"),), (), 0, 0)
        if isinstance(value, BranchPage):
            return self._branch(place, value)
        losses: list[Loss] = []
        links: list[Ino] = []
        directories = 0
        if len(value.entries) > LEAF_MAX and place.depth < MAX_DEPTH:
            losses.append(Loss(b"", f"page {place.ref.hex()} is not canonical: {len(value.entries)} entries in a leaf"))
        mask = (1 << (place.depth * SLOT_BITS)) - 1
        for name, entry in value.entries:
            if name_hash(name) & mask != place.slots:
                losses.append(Loss(name, f"stands in page {place.ref.hex()}, where it is never looked for"))
            if isinstance(entry, Linked):
                links.append(entry.ino)
            elif isinstance(entry, Directory):
                directories += 1
                below = self._directory(entry)
                losses += (Loss(name + b"/" + loss.path if loss.path else name, loss.reason) for loss in below.losses)
                links += below.links
                losses += self._at_origin(name, entry.origin, None)
                readable = all(loss.path for loss in below.losses)
                if readable and entry.origin is None and below.directories != entry.subdirectories:
                    losses.append(
                        Loss(name, f"has {below.directories} subdirectories, not {entry.subdirectories} as recorded")
                    )
            else:
                losses += self._file(name, entry)
        return _Below(tuple(losses), tuple(links), len(value.entries), directories)

    def _branch(self, place: _Place, value: BranchPage) -> _Below:
        losses: list[Loss] = []
        links: list[Ino] = []
        count = directories = 0
        for child, below_place in zip(value.children, _pages_below(place, value), strict=True):
            below = self._pages[below_place]
            losses += below.losses
            links += below.links
            count += below.entries
            directories += below.directories
            if below.entries != child.count and not below.losses:
                losses.append(Loss(b"", f"page {child.ref.hex()} has {below.entries} entries, not {child.count}"))
        if sum(child.count for child in value.children) <= LEAF_MAX:
            losses.append(Loss(b"", f"page {place.ref.hex()} is not canonical: few entries in a branch"))
        return _Below(tuple(losses), tuple(links), count, directories)

    # Files

    def _file(self, name: bytes, entry: Entry) -> Iterator[Loss]:
        if isinstance(entry, LinkTarget):
            entry = entry.inode
        if isinstance(entry, Regular):
            for reason in self._content(entry.content):
                yield Loss(name, reason)

    def _content(self, content: Content) -> Iterator[str]:
        match content:
            case Blob():
                yield from self._blob(content.ref, content.size)
            case Original():
                yield from (
                    loss.reason for loss in self._at_origin(b"", content.origin, (content.size, content.mtime_ns))
                )
            case Chunked():
                yield from self._chunks(content)

    def _chunks(self, content: Chunked) -> Iterator[str]:
        try:
            value = decode(self._objects.get_node(content.ref))
        except DamagedError as error:
            yield f"its list of chunks is lost: {error.message}"
            return
        if not isinstance(value, ChunkList):
            yield f"object {content.ref.hex()} is not a list of chunks"
            return
        offset = 0
        for piece in value.pieces:
            if isinstance(piece, BlobPiece):
                for reason in self._blob(piece.ref, piece.length):
                    yield f"bytes {offset} to {offset + piece.length}: {reason}"
            elif isinstance(piece, OriginPiece):
                for loss in self._at_origin(b"", piece.origin, (piece.size, piece.mtime_ns)):
                    yield f"bytes {offset} to {offset + piece.length}: {loss.reason}"
            offset += piece.length
        if offset != content.size:
            yield f"its chunks have {offset} bytes, not {content.size}"

    def _blob(self, ref: bytes, size: int) -> Iterator[str]:
        if ref in self._bad:
            yield self._bad[ref]
        elif not self._objects.has(ref):
            yield f"object {ref.hex()} is not in the store"
        elif self._objects.size(ref) != size:
            yield f"object {ref.hex()} has {self._objects.size(ref)} bytes, not {size}"

    def _at_origin(self, name: bytes, origin: Origin | None, file: tuple[int, int] | None) -> Iterator[Loss]:
        """What is wrong with something in the attic: ``file`` is the size and mtime that it should have."""
        if origin is None or origin.tree == 0:
            return
        path = os.path.join(attic.folder_path(self._attic_dir, origin.tree), origin.path)
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            yield Loss(name, f"{os.fsdecode(origin.path)!r} is not in folder {origin.tree} of the attic")
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:  # too deep to be looked at by path from here
                yield Loss(name, f"{os.fsdecode(path)}: {error.strerror}")
        else:
            if file is not None and (found.st_size, found.st_mtime_ns) != file:
                yield Loss(name, f"{os.fsdecode(path)} was changed since it was put there")


def _pages_below(place: _Place, value: LeafPage | BranchPage | str) -> list[_Place]:
    """The pages that a page refers to: those of its branches, or those of the directories in it."""
    if isinstance(value, BranchPage):
        shift = place.depth * SLOT_BITS
        return [_Place(child.ref, place.depth + 1, place.slots | child.slot << shift) for child in value.children]
    if isinstance(value, LeafPage):
        directories = [entry for _, entry in value.entries if isinstance(entry, Directory)]
        return [_Place(entry.node, 0, 0) for entry in directories if entry.node is not None]
    return []
