"""Sealed content: the same bytes as before, and pieces that cost what is written, not how long the file is."""

from __future__ import annotations

import random

import pytest

from store.format import CHUNK_BYTES, BlobPiece, Chunked, ChunkList, HolePiece, decode
from store.nodes import Pages
from tests.fakes.objects import MemoryObjects
from vfs.live.extents import Extents, Run, read_runs
from vfs.live.pending import Pending
from vfs.live.seal import LayerSealer
from vfs.live.sources import BytesSource, Sources

KIB = 1024


class NoOrigins:
    """No file of the base is cited here."""

    def open(self, origin: object) -> int:
        raise AssertionError(origin)


def extents_of(writes: list[tuple[int, bytes]]) -> Extents:
    extents = Extents()
    for offset, data in writes:
        extents.put(offset, offset + len(data), BytesSource(data), -offset)
    return extents


def sealed(objects: MemoryObjects, writes: list[tuple[int, bytes]], size: int) -> ChunkList:
    content = LayerSealer(objects, Pages(objects)).content(Pending(size, extents_of(writes).freeze()))
    assert isinstance(content, Chunked)
    chunks = decode(objects.get_node(content.ref))
    assert isinstance(chunks, ChunkList)
    assert sum(piece.length for piece in chunks.pieces) == content.size == size
    return chunks


def test_a_hole_costs_nothing_however_long() -> None:
    size = (1 << 62) + 5
    chunks = sealed(MemoryObjects(), [(1 << 61, b"in the middle")], size)
    assert [type(piece) for piece in chunks.pieces] == [HolePiece, BlobPiece, HolePiece]


def test_many_small_writes_become_one_blob_a_chunk() -> None:
    writes = [(offset, b"\0") for offset in range(4095, 3 * CHUNK_BYTES, 4096)]
    chunks = sealed(MemoryObjects(), writes, 3 * CHUNK_BYTES)
    assert [(type(piece), piece.length) for piece in chunks.pieces] == [(BlobPiece, CHUNK_BYTES)] * 3


def test_writes_that_lie_near_each_other_share_a_blob() -> None:
    near = [(100 * KIB + 2000 * number, b"x") for number in range(20)]
    chunks = sealed(MemoryObjects(), [*near, (200 * KIB, b"far")], 8 * CHUNK_BYTES)
    kinds = [type(piece) for piece in chunks.pieces]
    assert kinds == [HolePiece, BlobPiece, HolePiece, BlobPiece, HolePiece]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_sealed_reads_as_before(seed: int) -> None:
    dice = random.Random(seed)
    size = dice.randrange(CHUNK_BYTES + 1, 6 * CHUNK_BYTES)
    writes: list[tuple[int, bytes]] = []
    for _ in range(dice.randrange(0, 40)):
        offset = dice.randrange(size)
        writes.append((offset, dice.randbytes(min(dice.choice([1, 100, 5000, 70_000]), size - offset))))
    objects = MemoryObjects()
    content = LayerSealer(objects, Pages(objects)).content(Pending(size, extents_of(writes).freeze()))
    before = extents_of(writes).slice(0, size)
    after: list[Run] = list(Sources(objects, NoOrigins()).runs(content))
    assert read_runs(after, 0, size) == read_runs(before, 0, size)
