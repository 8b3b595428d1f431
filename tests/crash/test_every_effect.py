"""Checkpoint, restore and sealing stopped after each effect that they have on the store's disk, and met by a full one.

The fault model is that of ``tests.store.faulty_disk``: what was done is done, nothing more comes, with or without half
of the last append. Whatever happens, nothing that was answered is lost, and every checkpoint reads as it was.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from store.disk import Disk
from store.errors import NoSpaceError
from tests.crash.steps import steps
from tests.model.compare import compare_view
from tests.model.machine import Rig
from tests.model.plain import Node, clone, differs
from tests.store.faulty_disk import Crash, FaultyDisk
from vfs.errors import FsError


def prepared(seed: int) -> Rig:
    """A workspace with two checkpoints, one of them sealed, and changes."""
    rig = Rig(2)
    rng = random.Random(seed)
    steps(rig, rng, 6)
    rig.checkpoint()
    rig.world.seal_all()
    steps(rig, rng, 6)
    rig.checkpoint()
    steps(rig, rng, 6)
    return rig


def checkpoint(rig: Rig) -> None:
    rig.world.timeline.checkpoint(label="third")


def restore(rig: Rig) -> None:
    timeline = rig.world.timeline
    timeline.make(timeline.go(list(rig.snaps)[1]))
    timeline.finish()


def restore_paths(rig: Rig) -> None:
    timeline = rig.world.timeline
    timeline.make(timeline.go(next(iter(rig.snaps)), [b"a", b"d"]))
    timeline.finish()


def undo(rig: Rig) -> None:
    timeline = rig.world.timeline
    timeline.make(timeline.undo(2))
    timeline.finish()


def seal(rig: Rig) -> None:
    while rig.world.sealing.waiting:
        assert rig.world.sealing.seal_next()


ACTS = [checkpoint, restore, restore_paths, undo, seal]


def outcome(seed: int, act: Callable[[Rig], None]) -> tuple[Node, Node, int]:
    """The tree before and after ``act`` goes well, and how many effects it has."""
    rig = prepared(seed)
    before = clone(rig.plain.root, {})
    disk = FaultyDisk()
    swap_disk(rig, disk)
    act(rig)
    after = seen(rig)
    rig.close()
    return before, after, len(disk.effects)


def swap_disk(rig: Rig, disk: FaultyDisk) -> None:
    """Let everything that is open go on over another disk."""
    world = rig.world
    world.crash()
    rig.world.disk = disk
    rig.restart()
    disk.effects.clear()


def seen(rig: Rig) -> Node:
    """The tree that is served, as a model."""
    view = rig.world.roots.view(rig.world.timeline.fold()[0])
    return as_model(view, rig.world.read_entry)


def as_model(view, read) -> Node:
    from store.format import Directory, Regular, Special, Symlink

    nodes: dict[tuple[int, bytes], Node] = {}
    top: Node | None = None
    for path, entry in view.walk():
        attributes = entry.attributes
        node = Node(0, attributes.mode, attributes.uid, attributes.gid, attributes.mtime_ns, attributes.mtime_ns)
        node.xattrs = dict(attributes.xattrs)
        match entry:
            case Regular():
                node.kind, node.data = 0o100000, bytearray(read(entry))
            case Directory():
                node.kind = 0o040000
            case Symlink():
                node.kind, node.target, node.mode = 0o120000, entry.target, 0o777
            case Special():
                node.kind, node.rdev = entry.file_type, entry.rdev
        nodes[0, path] = node
        if not path:
            top = node
        else:
            above, _, name = path.rpartition(b"/")
            nodes[0, above].entries[name] = node
    assert top is not None
    return top


def same(a: Node, b: Node) -> bool:
    return not differs(a, b)


def check_checkpoints(rig: Rig) -> None:
    """What was known before reads as it was; what has come is whole."""
    world = rig.world
    known = {one.id for one in world.history.all()}
    assert set(rig.snaps) <= known
    for id in known:
        view = world.roots.view(world.roots.of(id))
        if id in rig.snaps:
            compare_view(view, rig.snaps[id], world.read_entry)
        else:
            as_model(view, world.read_entry)


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("torn", [False, True])
def test_killed_after_each_effect(act, torn):
    before, after, effects = outcome(1, act)
    assert effects > 2
    for stop in range(1, effects + 1):
        rig = prepared(1)
        try:
            disk = FaultyDisk(torn=torn)
            swap_disk(rig, disk)
            disk._stop_after = stop
            try:
                act(rig)
            except Crash:
                pass
            else:  # inode numbers are in what is hashed, so it may be a directory or two less than the time before
                assert stop > effects - 10
                continue
            rig.world.crash()
            rig.world.disk = Disk()
            notes = rig.restart()
            assert all("unfinished record" in note for note in notes), (stop, disk.effects, notes)
            now = seen(rig)
            assert same(now, before) or same(now, after), (stop, disk.effects)
            check_checkpoints(rig)
            rig.world.seal_all()
            check_checkpoints(rig)
            act(rig)  # and it goes on
            rig.world.seal_all()
            rig.world.close()
            rig.restart()
            check_checkpoints(rig)
        finally:
            rig.close()


@pytest.mark.parametrize("act", [checkpoint, restore, restore_paths, undo])
def test_a_full_disk_at_each_effect_changes_nothing(act):
    before, _, effects = outcome(2, act)
    for full in range(effects):
        rig = prepared(2)
        try:
            disk = FaultyDisk()
            swap_disk(rig, disk)
            disk._full_at = full
            try:
                act(rig)
            except (NoSpaceError, FsError):
                assert same(seen(rig), before), (full, disk.effects)
                check_checkpoints(rig)
                act(rig)  # there is space again
            check_checkpoints(rig)
            now = seen(rig)
            rig.world.seal_all()
            rig.world.crash()
            rig.world.disk = Disk()
            assert not rig.restart(), full
            assert same(seen(rig), now), (full, disk.effects)
            check_checkpoints(rig)
        finally:
            rig.close()


def test_sealing_waits_for_space_at_each_effect():
    _, _, effects = outcome(3, seal)
    for full in range(effects):
        rig = prepared(3)
        try:
            disk = FaultyDisk()
            swap_disk(rig, disk)
            disk._full_at = full
            before = seen(rig)
            while rig.world.sealing.waiting:
                rig.world.sealing.seal_next()  # and again, if it was full
            assert not rig.world.sealing.failures, (full, disk.effects)
            assert same(seen(rig), before)
            rig.world.crash()
            rig.world.disk = Disk()
            assert not rig.restart()
            assert same(seen(rig), before), (full, disk.effects)
            check_checkpoints(rig)
        finally:
            rig.close()


@pytest.mark.parametrize("seed", range(3))
def test_crashes_one_after_another(seed):
    """Each recovery is killed too, at some effect, before the next one comes through."""
    rng = random.Random(seed)
    rig = prepared(seed)
    try:
        before = clone(rig.plain.root, {})
        for stop in range(1, 8):
            rig.world.crash()
            rig.world.disk = FaultyDisk(stop)
            try:
                rig.restart()
            except Crash:
                rig.world.disk = Disk()
                rig.restart()
            rig.world.disk = Disk()
            assert same(seen(rig), before), stop
            check_checkpoints(rig)
            rig.plain.root = clone(rig.plain.root, {})
        assert rng.random() >= 0
    finally:
        rig.close()
