"""The map of a file against plain bytes, and the cases that are easy to get wrong."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfs.live.extents import Extents, Run, read_runs
from vfs.live.seal import settle
from vfs.live.sources import BytesSource

SIZE = 60


class Plain:
    """A file as bytes, and which of them are written; the map that is to say the same beside it."""

    def __init__(self) -> None:
        self.data = bytearray(SIZE)
        self.there = [False] * SIZE
        self.extents = Extents()

    def put(self, start: int, length: int, source: BytesSource, delta: int) -> None:
        end = min(start + length, SIZE)
        self.data[start:end] = source.pread(end - start, start + delta)
        self.there[start:end] = [True] * (end - start)
        self.extents.put(start, end, source, delta)

    def cut(self, start: int, end: int) -> None:
        end = min(end, SIZE)
        self.data[start:end] = bytes(max(0, end - start))
        self.there[start:end] = [False] * max(0, end - start)
        self.extents.cut(start, end)

    def truncate(self, size: int) -> None:
        self.cut(size, SIZE)
        self.extents.truncate(size)

    def check(self) -> None:
        runs = self.extents.freeze()
        assert all(run.start < run.end for run in runs)
        assert all(one.end <= two.start for one, two in itertools.pairwise(runs))
        assert self.extents.covered == sum(self.there)
        assert len(self.extents) == len(runs)
        for offset in range(SIZE):
            assert (self.extents.at(offset) is not None) == self.there[offset]
            following = [at for at in range(offset, SIZE) if self.there[at]]
            assert self.extents.next_data(offset) == (following[0] if following else None)
        for start, end in [(0, SIZE), (0, 1), (7, 31), (SIZE - 1, SIZE), (20, 21)]:
            assert read_runs(self.extents.slice(start, end), start, end) == bytes(self.data[start:end])


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 25))
def test_any_changes(rng: random.Random, count: int) -> None:
    plain = Plain()
    sources = [BytesSource(rng.randbytes(3 * SIZE)) for _ in range(3)]
    for _ in range(count):
        start, length = rng.randrange(SIZE), rng.randrange(1, 20)
        kind = rng.randrange(5)
        if kind < 3:
            plain.put(start, length, rng.choice(sources), rng.choice([0, 0, SIZE]))
        elif kind == 3:
            plain.cut(start, start + length)
        else:
            plain.truncate(start)
        plain.check()


def test_appending_stays_one_run():
    source = BytesSource(bytes(range(100)))
    extents = Extents()
    for start in range(0, 100, 10):
        extents.put(start, start + 10, source, 0)
    assert extents.freeze() == (Run(0, 100, source, 0),)
    assert extents.covered == 100


def test_what_was_cut_out_and_put_back_is_one_run_again():
    source = BytesSource(bytes(100))
    extents = Extents((Run(0, 100, source, 0),))
    extents.cut(40, 60)
    assert len(extents) == 2
    extents.put(40, 60, source, 0)
    assert extents.freeze() == (Run(0, 100, source, 0),)


def test_the_same_source_at_another_place_is_another_run():
    source = BytesSource(bytes(100))
    extents = Extents()
    extents.put(0, 10, source, 0)
    extents.put(10, 20, source, 5)
    assert len(extents) == 2


def test_writing_within_a_run_of_the_same_source_changes_nothing():
    source = BytesSource(bytes(100))
    extents = Extents((Run(0, 100, source, 0),))
    extents.put(30, 40, source, 0)
    assert extents.freeze() == (Run(0, 100, source, 0),)
    assert extents.covered == 100


def test_a_cut_of_nothing():
    extents = Extents((Run(10, 20, BytesSource(bytes(20)), 0),))
    extents.cut(15, 15)
    extents.cut(0, 10)
    extents.cut(20, 30)
    assert extents.covered == 10
    assert len(extents) == 1


def test_cutting_to_a_size_within_a_hole():
    source = BytesSource(bytes(40))
    extents = Extents((Run(0, 10, source, 0), Run(30, 40, source, 0)))
    extents.truncate(20)
    assert extents.freeze() == (Run(0, 10, source, 0),)
    extents.truncate(50)
    assert extents.covered == 10


@pytest.mark.parametrize("seed", range(30))
def test_a_sealed_file_keeps_what_was_written_since(seed):
    """``settle``: what still is as it was frozen comes from the store, the rest from where it was."""
    rng = random.Random(seed)
    plain = Plain()
    sources = [BytesSource(rng.randbytes(2 * SIZE)) for _ in range(2)]
    for _ in range(6):
        plain.put(rng.randrange(SIZE), rng.randrange(1, 25), rng.choice(sources), 0)
    frozen = plain.extents.freeze()
    stored = BytesSource(bytes(plain.data))
    sealed = Extents(tuple(Run(run.start, run.end, stored, 0) for run in frozen))
    new = BytesSource(rng.randbytes(2 * SIZE))
    for _ in range(rng.randrange(4)):
        if rng.random() < 0.7:
            plain.put(rng.randrange(SIZE), rng.randrange(1, 15), new, 0)
        else:
            plain.cut(rng.randrange(SIZE), rng.randrange(SIZE))
    plain.extents = settle(plain.extents, frozen, sealed)
    plain.check()
    assert all(run.source in (stored, new) for run in plain.extents.freeze()), "nothing cites working data any more"
