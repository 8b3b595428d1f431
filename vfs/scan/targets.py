"""From a checkpoint to the tree that a scanned workspace is compared with: whole, and citing nothing but the store.

Owns bringing a mount's tree, which falls through to the base, into that form. What it cites of the base is the
directory as it is now (``bridge`` has put what was captured into the store before), and of the attic, is read once more
and stored. Nothing at or below a path that the present leaves out is part of it, nor is any ``.git``.

Concurrency: the workspace's lock.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from store.entries import below, link_key
from store.errors import DamagedError, StoreError
from store.format import (
    CHUNK_BYTES,
    BlobPiece,
    Chunked,
    ChunkList,
    Content,
    Directory,
    Entry,
    HolePiece,
    Inline,
    Linked,
    LinkTarget,
    Original,
    OriginPiece,
    Piece,
    Regular,
    encode,
)
from store.history import History
from store.nodes import Pages, settled
from store.objects import Objects
from store.refs import CheckpointId, Ino
from vfs.errors import FsError
from vfs.live.tree import Root
from vfs.roots import Roots, load_layer
from vfs.scan.coverage import GIT
from vfs.scan.reading import Reader, Unstable
from vfs.scan.statindex import StatIndex
from vfs.trees.contents import Contents
from vfs.trees.host import Host
from vfs.trees.view import Present, View, join


class Targets:
    """The trees of one workspace's checkpoints, for a scanned workspace."""

    def __init__(
        self, objects: Objects, pages: Pages, host: Host, history: History, roots: Roots, reader: Reader
    ) -> None:
        self._objects = objects
        self._pages = pages
        self._host = host
        self._history = history
        self._roots = roots
        self._reader = reader
        self._contents = Contents(objects, host)
        self._frozen: dict[CheckpointId, Root] = {}
        self._opaque: dict[tuple[CheckpointId, tuple[bytes, ...]], Root] = {}

    def freeze(self, id: CheckpointId, root: Root) -> None:
        """Keep the tree of a checkpoint that is not sealed yet."""
        self._frozen[id] = root

    def sealed(self, id: CheckpointId) -> None:
        """It is sealed."""
        self._frozen.pop(id, None)

    def forget(self) -> None:
        """A sweep may come: what was brought into form for the moment is not kept by anything."""
        self._opaque.clear()

    def view(self, root: Root) -> View:
        """A tree to look into."""
        return self._roots.view(root)

    def is_whole(self, id: CheckpointId) -> bool:
        """True if the tree of the checkpoint cites nothing of the directory, as those that a scan made do."""
        return id in self._frozen or self._history.scope(id) is not None

    def of(self, id: CheckpointId, index: StatIndex, left_out: Mapping[bytes, str]) -> Root:
        """The tree of a checkpoint. Raises UnknownCheckpointError, or DamagedError for what cannot be read."""
        frozen = self._frozen.get(id)
        if frozen is not None:
            return frozen
        checkpoint = self._history.get(id)
        if self._history.scope(id) is not None:
            if checkpoint.layer is None:
                raise StoreError(f"checkpoint {id} was never sealed", hint="`plyfs fsck` tells what is left of it")
            layer = load_layer(self._objects, checkpoint.layer)
            links = None if layer.links is None else self._pages.load(layer.links)
            return Root(layer.root, links, layer.generation)
        key = (id, tuple(sorted(left_out)))
        known = self._opaque.get(key)
        if known is None:
            known = self._opaque[key] = _Opaque(self, self.view(self._roots.of(id)), index, left_out).run()
        return known

    # --- contents --------------------------------------------------------------------------------------------------

    def own(self, content: Content, index: StatIndex, path: bytes) -> Content:
        """``content``, of the file that a tree has at ``path``, without any citation."""
        try:
            if isinstance(content, Original):
                return self._own_file(content, index)
            if isinstance(content, Chunked):
                return self._own_chunks(content)
        except (FsError, Unstable) as error:
            raise DamagedError(
                f"{os.fsdecode(path)} cannot be brought back: {error}; nothing was changed",
                hint="`plyfs restore ID PATH` brings back the rest",
            ) from error
        return content

    def _own_file(self, content: Original, index: StatIndex) -> Content:
        if content.origin.tree == 0:
            record = index.file(content.origin.path)
            if (
                record is not None
                and (record.mtime, record.size) == (content.mtime_ns, content.size)
                and isinstance(record.entry, Regular)
            ):
                return record.entry.content
        if not content.size:
            return Inline(b"")
        fd = self._contents.open_origin(content)
        try:
            return self._reader.content(fd, os.fstat(fd))
        finally:
            os.close(fd)

    def _own_chunks(self, content: Chunked) -> Content:
        found = self._contents.chunks(content).pieces
        if not any(isinstance(piece, OriginPiece) for piece in found):
            return content
        pieces: list[Piece] = []
        at = 0
        for piece in found:
            if isinstance(piece, BlobPiece | HolePiece):
                pieces.append(piece)
            else:
                for start in range(at, at + piece.length, CHUNK_BYTES):
                    data = self._contents.read(content, start, min(CHUNK_BYTES, at + piece.length - start))
                    pieces.append(BlobPiece(len(data), self._objects.put_blob(data)))
            at += piece.length
        return Chunked(self._objects.put_node(encode(ChunkList(tuple(pieces)))), content.size)


class _Opaque:
    """One tree without origins."""

    def __init__(self, targets: Targets, view: View, index: StatIndex, left_out: Mapping[bytes, str]) -> None:
        self._targets = targets
        self._view = view
        self._index = index
        self._left_out = left_out
        self._rows: dict[bytes, Entry | None] = {}
        self._counts: dict[Ino, int] = {}

    def run(self) -> Root:
        directory = self._directory(self._view.root, b"")
        pages = self._view.pages
        links = pages.update(None, self._rows)
        if links is not None:
            pages.save(links)
        return Root(directory, links, self._view.generation)

    def _directory(self, directory: Directory, path: bytes) -> Directory:
        view = self._view
        entries: dict[bytes, Entry | None] = {}
        count = 0
        for name in sorted(view.names(directory)):
            inner = join(path, name)
            if name == GIT or inner in self._left_out:
                continue
            override = view.override(directory, name)
            if isinstance(override, Linked):
                self._link(override.ino, inner)
                entries[name] = override
                continue
            entry = view.resolve(directory, name, override)
            if entry is None:
                continue
            if isinstance(entry, Directory):
                count += 1
                entries[name] = self._directory(entry, inner)
            elif override is None and self._has_names(directory, name):
                entries[name] = Linked(entry.attributes.ino)
                self._link(entry.attributes.ino, inner, entry)
            else:
                entries[name] = self._own(entry, inner) if isinstance(entry, Regular) else entry
        page = view.pages.update(None, entries)
        return Directory(directory.attributes, None, count, None if page is None else view.pages.save(page))

    def _has_names(self, directory: Directory, name: bytes) -> bool:
        """True if the file that a directory falls through to has other names."""
        assert directory.origin is not None
        return self._view.host.stat(below(directory.origin, name)).st_nlink > 1

    def _own(self, entry: Regular, path: bytes) -> Regular:
        content = self._targets.own(entry.content, self._index, path)
        return entry if content is entry.content else Regular(entry.attributes, content)

    def _link(self, ino: Ino, path: bytes, fallen: Present | None = None) -> None:
        """A further name of a shared inode: as the link table has it, else as what it falls through to is."""
        self._counts[ino] = self._counts.get(ino, 0) + 1
        row = self._view.row(ino)
        if row is None and fallen is None:
            raise DamagedError(f"{os.fsdecode(path)} cannot be brought back: its link table has no row for it")
        inode = fallen if row is None else settled(row.inode)
        assert not isinstance(inode, Directory)
        if isinstance(inode, Regular):
            inode = self._own(inode, path)
        self._rows[link_key(ino)] = LinkTarget(inode, self._counts[ino])  # type: ignore[arg-type]
