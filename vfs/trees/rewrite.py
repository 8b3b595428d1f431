"""Where the files of an older base are now, and contents that cite them, rewritten.

Owns reading the ``inverse`` of a generation's end: from a path of the old base to its place, its entry or its bytes in
terms of the new one. Does not own whole trees (``translate``).

Concurrency: made for one translation and used by one thread; new chunk lists are put into the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from store.entries import below, content_size
from store.errors import FormatError
from store.format import (
    CHUNK_BYTES,
    Blob,
    BlobPiece,
    Chunked,
    ChunkList,
    Content,
    Directory,
    Entry,
    HolePiece,
    Linked,
    LinkTarget,
    Origin,
    Original,
    OriginPiece,
    Piece,
    Regular,
    encode,
)
from store.nodes import settled
from vfs.trees.contents import BlobStore, Contents
from vfs.trees.host import parent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from store.nodes import Page
    from store.refs import BlobRef, Ino, NodeRef
    from vfs.trees.view import Present, View


class PutStore(BlobStore, Protocol):
    """What translating needs of ``store.objects``."""

    def put_node(self, data: bytes) -> NodeRef:
        """Store a node."""
        ...

    def put_blob(self, data: bytes) -> BlobRef:
        """Store a blob."""
        ...


class Place(NamedTuple):
    """A directory without its attributes: what it lists and under which overrides."""

    origin: Origin | None
    page: Page | None
    subdirectories: int


class Inverse:
    """Where the files of the old base are now, in terms of the new one."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._directories: dict[bytes, Place] = {b"": self._place(view.root)}

    def _place(self, directory: Directory) -> Place:
        return Place(directory.origin, self.view.page(directory), directory.subdirectories)

    def directory(self, path: bytes) -> Place:
        """The directory that the old base had at ``path``."""
        found = self._directories.get(path)
        if found is None:
            head, name = parent(path)
            above = self.directory(head)
            entry = self._get(above, name)
            if isinstance(entry, Directory):
                found = self._place(entry)
            elif entry is None and above.origin is not None:
                found = Place(below(above.origin, name), None, 0)
            else:
                raise FormatError(f"a generation does not know the directory {path!r} that a tree refers to")
            self._directories[path] = found
        return found

    def entry(self, path: bytes) -> Entry | None:
        """What the inverse says of the old base's ``path``; None where that is still in ``directory(parent)``."""
        if not path:
            return self.view.root
        head, name = parent(path)
        return self._get(self.directory(head), name)

    def _get(self, place: Place, name: bytes) -> Entry | None:
        entry = self.view.pages.get(place.page, name)
        return None if entry is None else settled(entry)

    def place(self, path: bytes) -> Origin | None:
        """Where the old base's ``path`` is, if the inverse does not say anything particular of it."""
        head, name = parent(path)
        origin = self.directory(head).origin
        return None if origin is None else below(origin, name)

    def content(self, cited: Original, ino: Ino | None = None) -> Content | None:
        """What ``cited``, a file of the old base, is in terms of the new one; None if its bytes are lost.

        ``ino``: the base inode that the citing row of a link table stands for.
        """
        row = None if ino is None else self.view.row(ino)
        entry: Entry | None = None
        if row is None:
            try:
                entry = self.entry(cited.origin.path)
                if entry is None:
                    origin = self.place(cited.origin.path)
                    return None if origin is None else Original(origin, cited.size, cited.mtime_ns)
            except FormatError:
                return None  # the directory it was in is not known any more
            if isinstance(entry, Linked):
                row = self.view.row(entry.ino)
        inode = settled(row.inode) if row is not None else entry
        if isinstance(inode, Regular) and inode.attributes.mtime_ns == cited.mtime_ns:
            return inode.content if content_size(inode.content) == cited.size else None
        return None


class Rewriter:
    """Rewrites contents that cite the old base."""

    def __init__(self, objects: PutStore, inverse: Inverse, contents: Contents) -> None:
        self._put = objects
        self._inverse = inverse
        self._contents = contents
        self._lists: dict[NodeRef, Chunked] = {}

    def row(self, ino: Ino, row: LinkTarget) -> LinkTarget:
        """A row of the link table."""
        inode: Present = settled(row.inode)  # type: ignore[assignment]
        if isinstance(inode, Regular):
            return LinkTarget(Regular(inode.attributes, self.content(inode.content, ino)), row.links)
        return row

    def regular(self, entry: Regular) -> Regular:
        """A file."""
        content = self.content(entry.content)
        return entry if content is entry.content else Regular(entry.attributes, content)

    def content(self, content: Content, ino: Ino | None = None) -> Content:
        """A content. What is lost stays a citation that does not come true."""
        if isinstance(content, Original) and content.origin.tree == 0:
            return self._inverse.content(content, ino) or content
        if isinstance(content, Chunked):
            found = self._lists.get(content.ref)
            if found is None:
                found = self._lists[content.ref] = self._chunked(content, ino)
            return found
        return content

    def _chunked(self, content: Chunked, ino: Ino | None) -> Chunked:
        pieces: list[Piece] = []
        changed = False
        for piece in self._contents.chunks(content).pieces:
            if isinstance(piece, OriginPiece) and piece.origin.tree == 0:
                cited = Original(piece.origin, piece.size, piece.mtime_ns)
                now = self._inverse.content(cited, ino)
                if now is not None and now != cited:
                    changed = True
                    pieces.extend(self._part(now, piece.offset, piece.length))
                    continue
            pieces.append(piece)
        if not changed:
            return content
        return Chunked(self._put.put_node(encode(ChunkList(tuple(_merged(pieces))))), content.size)

    def _part(self, content: Content, offset: int, length: int) -> Iterable[Piece]:
        """``length`` bytes from ``offset`` of ``content`` as pieces."""
        end = offset + length
        for span in self._contents.spans(content):
            start, stop = max(offset, span.start), min(end, span.start + span.length)
            if start >= stop:
                continue
            source, skip, size = span.source, start - span.start, stop - start
            if isinstance(source, HolePiece):
                yield HolePiece(size)
            elif isinstance(source, OriginPiece):
                yield OriginPiece(size, source.origin, source.offset + skip, source.size, source.mtime_ns)
            elif isinstance(source, Blob) and size == source.size:
                yield BlobPiece(size, source.ref)
            else:
                for at in range(skip, skip + size, CHUNK_BYTES):
                    data = self._contents.read_source(source, at, min(CHUNK_BYTES, skip + size - at))
                    yield BlobPiece(len(data), self._put.put_blob(data))


def _merged(pieces: list[Piece]) -> list[Piece]:
    """``pieces`` with neighbouring holes made one."""
    found: list[Piece] = []
    for piece in pieces:
        if found and isinstance(piece, HolePiece) and isinstance(found[-1], HolePiece):
            found[-1] = HolePiece(found[-1].length + piece.length)
        else:
            found.append(piece)
    return found
