"""The file that keeps how restored inodes show themselves: what it costs, and which state it gives back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from store.disk import Disk
from store.format import Origin
from store.refs import Ino
from vfs.live.identities import NAME, ROWS_AT_LEAST, IdentityFile
from vfs.live.noted import Noted
from vfs.live.records import Shown


class Showing:
    """The part of a tree that is kept."""

    def __init__(self) -> None:
        self.shown: Noted[Ino, Shown] = Noted()
        self.shown_origins: Noted[Ino, Origin] = Noted()
        self.reborn: Noted[Ino, int] = Noted()
        self.unshown: set[Ino] = set()
        self.epoch = 1
        self.next_ino = 0

    def state(self) -> tuple[dict[Ino, Shown], dict[Ino, Origin], dict[Ino, int]]:
        return dict(self.shown), dict(self.shown_origins), dict(self.reborn)

    def unshow(self, key: int) -> None:
        for table in (self.shown, self.shown_origins, self.reborn):
            table.pop(Ino(key), None)
        self.unshown.add(Ino(key))


def show(tree: Any, first: int, count: int, since: int) -> None:
    for number in range(first, first + count):
        tree.shown[Ino(number)] = Shown(Ino(number + 1_000_000), since, 5)


def loaded(directory: Path, **when: int) -> Showing:
    tree: Any = Showing()
    IdentityFile(os.fsencode(directory), Disk()).load(tree, **when)
    return tree


def size(directory: Path) -> int:
    return (directory / os.fsdecode(NAME)).stat().st_size


def test_each_epoch_has_its_own_state(tmp_path: Path) -> None:
    file, tree = IdentityFile(os.fsencode(tmp_path), Disk()), Showing()
    states = {}
    served: Any = tree
    for epoch in range(1, 6):
        tree.epoch = epoch
        show(tree, 10 * epoch, 3, epoch)
        tree.reborn[Ino(epoch)] = epoch
        tree.shown_origins[Ino(10 * epoch)] = Origin(0, b"file-%d" % epoch)
        tree.unshow(10 * epoch - 9)
        states[epoch] = tree.state()
        file.save(served, oldest=1)
    for epoch, state in states.items():
        assert loaded(tmp_path, exactly=epoch).state() == state
        assert loaded(tmp_path, before=epoch + 1).state() == state
    assert loaded(tmp_path, before=1).state() == ({}, {}, {})
    assert loaded(tmp_path, exactly=9).state() == ({}, {}, {}), "that epoch kept nothing"


def test_numbers_shown_are_not_given_again(tmp_path: Path) -> None:
    tree: Any = Showing()
    show(tree, 1, 3, 1)
    IdentityFile(os.fsencode(tmp_path), Disk()).save(tree, oldest=1)
    assert loaded(tmp_path, before=2).next_ino == 1_000_004


def test_a_small_restore_after_a_big_one_writes_little(tmp_path: Path) -> None:
    file, tree = IdentityFile(os.fsencode(tmp_path), Disk()), Showing()
    served: Any = tree
    show(tree, 0, 20_000, 1)
    file.save(served, oldest=1)
    big = size(tmp_path)
    for epoch in range(2, 12):
        tree.epoch = epoch
        show(tree, 0, 10, epoch)
        file.save(served, oldest=epoch)
    assert size(tmp_path) - big < big / 50


def test_the_file_does_not_grow_with_the_number_of_restores(tmp_path: Path) -> None:
    file, tree = IdentityFile(os.fsencode(tmp_path), Disk()), Showing()
    served: Any = tree
    sizes = []
    for epoch in range(1, 4001):
        tree.epoch = epoch
        show(tree, 0, 10, epoch)
        tree.unshow(9)
        file.save(served, oldest=epoch - 1)
        sizes.append(size(tmp_path))
    assert max(sizes[2000:]) <= max(sizes[:2000])
    assert max(sizes) < 100 * ROWS_AT_LEAST
    assert loaded(tmp_path, exactly=4000).state() == tree.state()


def test_what_a_replay_may_ask_for_outlives_the_taking_together(tmp_path: Path) -> None:
    file, tree = IdentityFile(os.fsencode(tmp_path), Disk()), Showing()
    served: Any = tree
    states = {}
    for epoch in range(1, 600):
        tree.epoch = epoch
        show(tree, epoch % 7, 10, epoch)
        states[epoch] = tree.state()
        file.save(served, oldest=min(epoch, 300))
    for epoch in (*range(300, 600, 13), 599):
        assert loaded(tmp_path, exactly=epoch).state() == states[epoch]
    assert loaded(tmp_path, before=300).state() == states[299]


def test_the_next_mount_goes_on_with_the_whole(tmp_path: Path) -> None:
    first: Any = Showing()
    show(first, 0, 5, 1)
    file = IdentityFile(os.fsencode(tmp_path), Disk())
    file.save(first, oldest=1)
    file.close()
    tree: Any = loaded(tmp_path, before=2)
    again = IdentityFile(os.fsencode(tmp_path), Disk())
    tree.epoch = 2
    show(tree, 5, 2, 2)
    again.save(tree, oldest=2)
    tree.epoch = 3
    show(tree, 7, 1, 3)
    again.save(tree, oldest=2)
    assert loaded(tmp_path, exactly=3).state() == tree.state()
    again.clear(after=2)
    assert loaded(tmp_path, exactly=3).state() == ({}, {}, {})
    assert len(loaded(tmp_path, exactly=2).shown) == 7
    again.clear()
    assert not (tmp_path / os.fsdecode(NAME)).exists()


@pytest.mark.parametrize("harm", [b"", b"nonsense", b"\0" * 50])
def test_a_damaged_file_is_as_if_it_were_not_there(tmp_path: Path, harm: bytes) -> None:
    tree: Any = Showing()
    show(tree, 0, 100, 1)
    file = IdentityFile(os.fsencode(tmp_path), Disk())
    file.save(tree, oldest=1)
    file.close()
    path = tmp_path / os.fsdecode(NAME)
    whole = path.read_bytes()
    path.write_bytes(whole[:40] + harm + whole[60:])
    assert loaded(tmp_path, before=2).state() == ({}, {}, {})
    again = IdentityFile(os.fsencode(tmp_path), Disk())
    again.save(tree, oldest=1)
    again.save(tree, oldest=1)
    again.close()
    assert loaded(tmp_path, before=2).state() == tree.state(), "what is shown now is written as a whole"


def test_a_torn_end_is_left_out(tmp_path: Path) -> None:
    file, tree = IdentityFile(os.fsencode(tmp_path), Disk()), Showing()
    served: Any = tree
    show(tree, 0, 10, 1)
    file.save(served, oldest=1)
    before = tree.state()
    tree.epoch = 2
    show(tree, 0, 10, 2)
    file.save(served, oldest=1)
    file.close()
    path = tmp_path / os.fsdecode(NAME)
    path.write_bytes(path.read_bytes()[:-3])
    assert loaded(tmp_path, before=3).state() == before
