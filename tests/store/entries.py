"""Strategies for everything that a layer holds."""

from __future__ import annotations

import stat

from hypothesis import strategies as st

from store.format import (
    CHUNK_BYTES,
    INLINE_MAX,
    Absent,
    Attributes,
    Blob,
    BlobPiece,
    BranchChild,
    BranchPage,
    Chunked,
    ChunkList,
    Directory,
    HolePiece,
    Inline,
    Layer,
    LeafPage,
    Linked,
    LinkTarget,
    Origin,
    Original,
    OriginPiece,
    Regular,
    Special,
    Symlink,
)

NAMES = st.binary(min_size=1, max_size=12).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)
REFS = st.binary(min_size=32, max_size=32)
TIMES = st.integers(-(2**63), 2**63 - 1)
INOS = st.integers(1, 2**63)
SIZES = st.integers(1, 2**50)
ORIGINS = st.builds(Origin, st.integers(0, 5), st.lists(NAMES, max_size=3).map(b"/".join))
XATTRS = st.dictionaries(NAMES, st.binary(max_size=5), max_size=3).map(lambda d: tuple(sorted(d.items())))
ATTRIBUTES = st.builds(
    Attributes, INOS, st.integers(0, 0o7777), st.integers(0, 2**32), st.integers(0, 2**32), TIMES, TIMES, XATTRS
)
CONTENTS = st.one_of(
    st.builds(Inline, st.binary(max_size=INLINE_MAX)),
    st.builds(Blob, REFS, st.integers(1, CHUNK_BYTES)),
    st.builds(Chunked, REFS, SIZES),
    st.builds(Original, ORIGINS, SIZES, TIMES),
)
REGULARS = st.builds(Regular, ATTRIBUTES, CONTENTS)
DIRECTORIES = st.builds(Directory, ATTRIBUTES, st.none() | ORIGINS, st.integers(-5, 5), st.none() | REFS)
SYMLINKS = st.builds(Symlink, ATTRIBUTES, st.binary(max_size=20))
SPECIALS = st.builds(
    Special,
    ATTRIBUTES,
    st.sampled_from([stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK]),
    st.integers(0, 2**32),
)
ENTRIES = st.one_of(st.builds(Absent), REGULARS, DIRECTORIES, SYMLINKS, SPECIALS, st.builds(Linked, INOS))
ROWS = st.builds(LinkTarget, st.one_of(REGULARS, SYMLINKS, SPECIALS), st.integers(0, 9))


def _joined(pieces):
    kept = []
    for piece in pieces:
        if kept and isinstance(piece, HolePiece) and isinstance(kept[-1], HolePiece):
            continue
        kept.append(piece)
    return ChunkList(tuple(kept))


PIECES = st.one_of(
    st.builds(HolePiece, SIZES),
    st.builds(BlobPiece, SIZES, REFS),
    st.builds(OriginPiece, SIZES, ORIGINS, st.integers(0, 99), SIZES, TIMES),
)
STORED = st.one_of(
    st.dictionaries(NAMES, ENTRIES, max_size=6).map(lambda d: LeafPage(tuple(sorted(d.items(), key=lambda i: i[0])))),
    st.dictionaries(st.binary(min_size=8, max_size=8), ROWS, min_size=1, max_size=4).map(
        lambda d: LeafPage(tuple(sorted(d.items(), key=lambda i: i[0])))
    ),
    st.dictionaries(st.integers(0, 31), st.tuples(st.integers(1, 999), REFS), min_size=1, max_size=6).map(
        lambda d: BranchPage(tuple(BranchChild(slot, *d[slot]) for slot in sorted(d)))
    ),
    st.lists(PIECES, min_size=1, max_size=6).map(_joined),
    st.builds(Layer, st.just(1), st.none() | REFS, st.integers(0, 9), DIRECTORIES, st.none() | REFS),
)
