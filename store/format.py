"""The bytes of pages, chunk lists and layers: canonical MessagePack, described in docs/format.md.

Owns the wire form of everything that a layer holds. Does not own where the bytes lie (``objects``) nor how a
directory's overrides are arranged in pages (``nodes``). All values are immutable.

Canonical: a value has one encoding, and decoding refuses bytes that are not that encoding, so equal trees have
equal names and nothing unknown is dropped silently.
"""

from __future__ import annotations

import stat
from itertools import pairwise
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from store.errors import FormatError
from store.refs import REF_BYTES, BlobRef, Ino, LayerRef, NodeRef

FORMAT_VERSION = 1

INLINE_MAX = 128
"""Content of at most this many bytes stands in its entry instead of a blob of its own."""

CHUNK_BYTES = 256 * 1024
"""Content longer than this is a chunk list whose blobs are this long (docs/performance.md has the measurement)."""


SLOT_BITS = 5
SLOTS = 1 << SLOT_BITS
"""A branch page has at most this many children, chosen by the next ``SLOT_BITS`` bits of a name's hash."""

LINK_KEY_BYTES = 8

_Blob: TypeAlias = Annotated[BlobRef, Meta(min_length=REF_BYTES, max_length=REF_BYTES)]
_Node: TypeAlias = Annotated[NodeRef, Meta(min_length=REF_BYTES, max_length=REF_BYTES)]
_Layer: TypeAlias = Annotated[LayerRef, Meta(min_length=REF_BYTES, max_length=REF_BYTES)]
_Number: TypeAlias = Annotated[int, Meta(ge=0)]
_Positive: TypeAlias = Annotated[int, Meta(ge=1)]


class Origin(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A path in a directory that plyfs reads and never changes while mounted.

    ``tree`` 0 is the workspace's own base; a positive number is a folder of the workspace's attic, where an apply
    put what it replaced. ``path`` is relative, without leading or trailing slash; ``b""`` is the tree itself.
    """

    tree: _Number
    path: bytes


class Attributes(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What stat(2) tells of an inode beside its type, size and link count. ``mode`` has the 12 permission bits."""

    ino: Ino
    mode: Annotated[int, Meta(ge=0, le=0o7777)]
    uid: _Number
    gid: _Number
    mtime_ns: int
    ctime_ns: int
    xattrs: tuple[tuple[bytes, bytes], ...] = ()


class Inline(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=0):
    """Content of at most ``INLINE_MAX`` bytes."""

    data: Annotated[bytes, Meta(max_length=INLINE_MAX)]


class Blob(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=1):
    """Content of at most ``CHUNK_BYTES`` bytes, without holes."""

    ref: _Blob
    size: Annotated[int, Meta(ge=1, le=CHUNK_BYTES)]


class Chunked(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=2):
    """Content that is a ``ChunkList`` of its own."""

    ref: _Node
    size: _Positive


class Original(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=3):
    """The whole content of the file at ``origin``, valid while that file has this size and mtime (nanoseconds)."""

    origin: Origin
    size: _Number
    mtime_ns: int


Content: TypeAlias = Inline | Blob | Chunked | Original


class HolePiece(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=0):
    """``length`` zero bytes that occupy no space."""

    length: _Positive


class BlobPiece(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=1):
    """A whole blob of ``length`` bytes."""

    length: _Positive
    ref: _Blob


class OriginPiece(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=2):
    """``length`` bytes at ``offset`` of the file at ``origin``, valid while it has this ``size`` and ``mtime_ns``."""

    length: _Positive
    origin: Origin
    offset: _Number
    size: _Number
    mtime_ns: int


Piece: TypeAlias = HolePiece | BlobPiece | OriginPiece


class ChunkList(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="chunks"):
    """The pieces of a file in order; neighbouring holes are merged and no piece is empty."""

    pieces: tuple[Piece, ...]


class Absent(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=0):
    """A name that the origin directory has and this tree has not."""


class Regular(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=1):
    """A regular file with one name."""

    attributes: Attributes
    content: Content


class Directory(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=2):
    """A directory: what ``origin`` lists (nothing, if that is None: opaque) under the overrides of page ``node``.

    ``subdirectories`` counts the directories it has more, or less, than its origin.
    """

    attributes: Attributes
    origin: Origin | None
    subdirectories: int
    node: _Node | None


class Symlink(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=3):
    """A symbolic link; ``target`` as readlink(2) gives it."""

    attributes: Attributes
    target: bytes


class Special(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=4):
    """A FIFO, socket or device. ``file_type`` is S_IFMT's part of the mode, ``rdev`` 0 for FIFOs and sockets."""

    attributes: Attributes
    file_type: _Number
    rdev: _Number


class Linked(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=5):
    """One name of an inode that has, or has had, several: the inode stands in the layer's link table."""

    ino: Ino


class LinkTarget(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=6):
    """A row of the link table: the inode that ``Linked`` entries name, and how many names it has in the tree.

    Base files with several names that were changed or lost a name stand here too, keyed by their base inode number.
    """

    inode: Regular | Symlink | Special
    links: _Number


Entry: TypeAlias = Absent | Regular | Directory | Symlink | Special | Linked | LinkTarget


class LeafPage(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="leaf"):
    """Overrides sorted by name."""

    entries: tuple[tuple[bytes, Entry], ...]


class BranchChild(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The page below slot ``slot`` and how many overrides it holds in all."""

    slot: Annotated[int, Meta(ge=0, lt=SLOTS)]
    count: _Positive
    ref: _Node


class BranchPage(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="branch"):
    """A page too big for one leaf, split by the next bits of each name's hash; children sorted by slot."""

    children: tuple[BranchChild, ...]


class Layer(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="layer"):
    """A sealed tree. ``generation`` says which state of the base its origins speak of; ``links`` is the link table,
    a page keyed by inode numbers of 8 bytes, big-endian.
    """

    version: int
    parent: _Layer | None
    generation: _Number
    root: Directory
    links: _Node | None


class RuleText(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A file of ignore patterns outside of the tree: ``base`` is the directory, from its repository's top, that its
    patterns are relative to.
    """

    base: bytes
    text: bytes


class Repository(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A git repository whose rules were in force from ``path`` of the workspace down. ``prefix`` is where that is below
    the repository's top, if the workspace is a part of it; ``texts`` come in growing precedence.
    """

    path: bytes
    prefix: bytes
    ignore_case: bool
    texts: tuple[RuleText, ...]


class LeftOut(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A path that was there and was not captured, with all below it, and why (one word)."""

    path: bytes
    reason: str


class Scope(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="scope"):
    """What a scanned checkpoint speaks of: the policy in force and what it left out, sorted by path.

    ``rules`` "git": what git ignores was left out, by the ``.gitignore`` files of the tree itself and by
    ``repositories``. Files of more than ``max_bytes`` were left out too, if that is not 0. ``.git`` always is.
    """

    version: int
    rules: Literal["git", "all"]
    max_bytes: _Number
    repositories: tuple[Repository, ...]
    left_out: tuple[LeftOut, ...]


StoredObject: TypeAlias = LeafPage | BranchPage | ChunkList | Layer | Scope

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StoredObject)


def encode(value: StoredObject) -> bytes:
    """The one encoding of ``value``."""
    problem = _problem(value)
    assert problem is None, f"not to be written: {problem}"
    return _encoder.encode(value)


def decode(data: bytes) -> StoredObject:
    """The value whose encoding is ``data``.

    Raises FormatError for bytes that are not the canonical encoding of a value of this format's version.
    """
    try:
        value = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FormatError(f"not an object of format version {FORMAT_VERSION}: {error}") from error
    if isinstance(value, Layer | Scope) and value.version != FORMAT_VERSION:
        raise FormatError(
            f"a {type(value).__name__.lower()} of format version {value.version}; "
            f"this plyfs reads version {FORMAT_VERSION}",
            hint="use the plyfs release that wrote this store, or a newer one",
        )
    problem = _problem(value)
    if problem is not None:
        raise FormatError(problem)
    if _encoder.encode(value) != data:
        raise FormatError("an object whose bytes are not canonical")
    return value


def _problem(value: StoredObject) -> str | None:
    """What is wrong with a value beyond the types of its fields; None if nothing is."""
    match value:
        case LeafPage():
            return _leaf_problem(value)
        case BranchPage():
            slots = [child.slot for child in value.children]
            return None if slots and _ascending(slots) else "a page whose children are missing or out of order"
        case ChunkList():
            return _pieces_problem(value.pieces)
        case Layer():
            return _entry_problem(value.root)
        case Scope():
            return _scope_problem(value)


def _scope_problem(value: Scope) -> str | None:
    left_out = [one.path for one in value.left_out]
    repositories = [one.path for one in value.repositories]
    if not _ascending(left_out) or not _ascending(repositories):
        return "a scope whose paths are out of order"
    return None if all(map(_is_plain, left_out + repositories)) else "a scope with a path that is no plain relative one"


def _ascending(values: list[int] | list[bytes]) -> bool:
    """True if each value is greater than the one before it."""
    return values == sorted(values) and len(set(values)) == len(values)


def _leaf_problem(page: LeafPage) -> str | None:
    names = [name for name, _ in page.entries]
    if not _ascending(names):
        return "a page whose names are out of order"
    rows = [type(entry) for _, entry in page.entries].count(LinkTarget)
    if rows:
        if rows != len(names) or any(len(name) != LINK_KEY_BYTES for name in names):
            return "a page that is half a link table"
    else:
        # A name reaches system calls as it is; nothing may lead out of the directory that it stands in.
        together = b"".join(names)
        if b"/" in together or b"\0" in together or {b"", b".", b".."}.intersection(names):
            return "a page with a name that no file can have"
    for _, entry in page.entries:
        problem = _entry_problem(entry)
        if problem is not None:
            return problem
    return None


def _entry_problem(entry: Entry) -> str | None:
    # Asked for every entry that is read or written: the most frequent come first.
    origin: Origin | None = None
    if isinstance(entry, Regular):
        content = entry.content
        if type(content) is Original:
            origin = content.origin
    elif isinstance(entry, Directory):
        origin = entry.origin
    elif isinstance(entry, LinkTarget):
        return _entry_problem(entry.inode)
    elif isinstance(entry, Special):
        if entry.file_type not in _SPECIAL_TYPES:
            return "a special file of no known type"
    elif not isinstance(entry, Symlink):
        return None
    if origin is not None and not _is_plain(origin.path):
        return "an origin that is no plain relative path"
    xattrs = entry.attributes.xattrs
    return "extended attributes out of order" if xattrs and not _ascending([name for name, _ in xattrs]) else None


_SPECIAL_TYPES = frozenset({stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK})


def _is_plain(path: bytes) -> bool:
    """True for ``b""`` and for names joined by single slashes, none of them ``.`` or ``..``."""
    return not path or not {b"", b".", b".."}.intersection(path.split(b"/"))


def _pieces_problem(pieces: tuple[Piece, ...]) -> str | None:
    if any(type(before) is type(piece) is HolePiece for before, piece in pairwise(pieces)):
        return "a chunk list with neighbouring holes"
    if not all(_is_plain(piece.origin.path) for piece in pieces if isinstance(piece, OriginPiece)):
        return "an origin that is no plain relative path"
    return None if pieces else "an empty chunk list"
