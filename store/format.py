"""The bytes of pages, chunk lists and layers: canonical MessagePack, described in docs/format.md.

Owns the wire form of everything that a layer holds. Does not own where the bytes lie (``objects``) nor how a
directory's overrides are arranged in pages (``nodes``). All values are immutable.

Canonical: a value has one encoding, and decoding refuses bytes that are not that encoding, so equal trees have
equal names and nothing unknown is dropped silently.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from store.errors import FormatError
from store.refs import BlobRef, Ino, LayerRef, NodeRef

FORMAT_VERSION = 1

INLINE_MAX = 128
"""Content of at most this many bytes stands in its entry instead of a blob of its own."""

CHUNK_BYTES = 256 * 1024
"""Content longer than this is a chunk list whose blobs are this long (docs/performance.md has the measurement)."""


class Origin(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A path in a directory that plyfs reads and never changes while mounted.

    ``tree`` 0 is the workspace's own base; a positive number is a folder of the workspace's attic, where an apply
    put what it replaced. ``path`` is relative, without leading or trailing slash; ``b""`` is the tree itself.
    """

    tree: int
    path: bytes


class Attributes(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What stat(2) tells of an inode beside its type, size and link count. ``mode`` has the 12 permission bits."""

    ino: Ino
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    ctime_ns: int
    xattrs: tuple[tuple[bytes, bytes], ...] = ()


class Inline(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=0):
    """Content of at most ``INLINE_MAX`` bytes."""

    data: bytes


class Blob(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=1):
    """Content of at most ``CHUNK_BYTES`` bytes, without holes."""

    ref: BlobRef
    size: int


class Chunked(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=2):
    """Content that is a ``ChunkList`` of its own."""

    ref: NodeRef
    size: int


class Original(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=3):
    """The whole content of the file at ``origin``, valid while that file has this size and mtime (nanoseconds)."""

    origin: Origin
    size: int
    mtime_ns: int


Content: TypeAlias = Inline | Blob | Chunked | Original


class HolePiece(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=0):
    """``length`` zero bytes that occupy no space."""

    length: int


class BlobPiece(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=1):
    """A whole blob of ``length`` bytes."""

    length: int
    ref: BlobRef


class OriginPiece(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=2):
    """``length`` bytes at ``offset`` of the file at ``origin``, valid while it has this ``size`` and ``mtime_ns``."""

    length: int
    origin: Origin
    offset: int
    size: int
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
    node: NodeRef | None


class Symlink(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=3):
    """A symbolic link; ``target`` as readlink(2) gives it."""

    attributes: Attributes
    target: bytes


class Special(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=4):
    """A FIFO, socket or device. ``file_type`` is S_IFMT's part of the mode, ``rdev`` 0 for FIFOs and sockets."""

    attributes: Attributes
    file_type: int
    rdev: int


class Linked(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=5):
    """One name of an inode that has, or has had, several: the inode stands in the layer's link table."""

    ino: Ino


class LinkTarget(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=6):
    """A row of the link table: the inode that ``Linked`` entries name, and how many names it has in the tree.

    Base files with several names that were changed or lost a name stand here too, keyed by their base inode number.
    """

    inode: Regular | Symlink | Special
    links: int


Entry: TypeAlias = Absent | Regular | Directory | Symlink | Special | Linked | LinkTarget


class LeafPage(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="leaf"):
    """Overrides sorted by name."""

    entries: tuple[tuple[bytes, Entry], ...]


class BranchChild(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The page below slot ``slot`` and how many overrides it holds in all."""

    slot: int
    count: int
    ref: NodeRef


class BranchPage(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="branch"):
    """A page too big for one leaf, split by the next bits of each name's hash; children sorted by slot."""

    children: tuple[BranchChild, ...]


class Layer(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="layer"):
    """A sealed tree. ``generation`` says which state of the base its origins speak of; ``links`` is the link table,
    a page keyed by inode numbers of 8 bytes, big-endian.
    """

    version: int
    parent: LayerRef | None
    generation: int
    root: Directory
    links: NodeRef | None


StoredObject: TypeAlias = LeafPage | BranchPage | ChunkList | Layer

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StoredObject)


def encode(value: StoredObject) -> bytes:
    """The one encoding of ``value``."""
    return _encoder.encode(value)


def decode(data: bytes) -> StoredObject:
    """The value whose encoding is ``data``.

    Raises FormatError for bytes that are not the canonical encoding of a value of this format's version.
    """
    try:
        value = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FormatError(f"not an object of format version {FORMAT_VERSION}: {error}") from error
    if isinstance(value, Layer) and value.version != FORMAT_VERSION:
        raise FormatError(
            f"a layer of format version {value.version}; this plyfs reads version {FORMAT_VERSION}",
            hint="use the plyfs release that wrote this store, or a newer one",
        )
    if _encoder.encode(value) != data:
        raise FormatError("an object whose bytes are not canonical")
    return value
