"""The power goes: the kernel's caches are lost, and journals were written in another run of the kernel.

Fault model: of what was written since it was last synced anything may be there or not, file by file. Two extremes and
the mixtures between them are tried: everything has reached the disk; nothing since the last barrier has; or only some
of journals, head, history, working data and objects. What a barrier covered is there, and nothing else than a state in
which the tree once was; but bytes that were written over others in place, and not synced, may be the new or the old
ones, as in any file system.
"""

from __future__ import annotations

import os
import random
import shutil

import pytest

from tests.crash.steps import step, steps
from tests.crash.test_every_effect import as_model, same, seen
from tests.model.compare import compare_view
from tests.model.machine import Rig
from tests.model.plain import Node, at, clone, walk


def lose_power(rig: Rig) -> None:
    """Kill everything; the next start is in another run of the kernel."""
    rig.world.crash()
    rig.world.boot += "+"


def history(rig: Rig, rng: random.Random, count: int, past: list[Node]) -> None:
    """Steps, checkpoints and moves, noting every state of the tree on the way."""
    for _ in range(count):
        match rng.randrange(9):
            case 0:
                rig.checkpoint()
            case 1:
                rig.seal_one()
            case 2:
                rig.undo()
            case 3:
                rig.redo()
            case _:
                step(rig, rng)
        past.append(clone(rig.plain.root, {}))


def expect_one_of(rig: Rig, past: list[Node]) -> None:
    now = seen(rig)
    for one in past:
        there = clone(one, {})
        for path, node in walk(now):
            known = at(there, path)
            if known is not None and len(known.data) == len(node.data) and _overwritten(node.data, path, past):
                known.data = node.data
        if same(now, there):
            return
    raise AssertionError("the tree never was so")


def _overwritten(data: bytearray, path: bytes, past: list[Node]) -> bool:
    """True if each byte is one that the file had there."""
    had = [node.data for one in past if (node := at(one, path)) is not None and len(node.data) >= len(data)]
    return all(any(byte == one[offset] for one in had) for offset, byte in enumerate(data))


def go_on(rig: Rig, rng: random.Random) -> None:
    """What is served can be worked with, and survives a kill."""
    before = seen(rig)
    rig.plain.root = _numbered(rig, before)
    steps(rig, rng, 5)
    rig.world.timeline.checkpoint()
    steps(rig, rng, 3)
    now = seen(rig)
    rig.world.crash()
    assert not rig.restart()
    assert same(seen(rig), now)
    rig.world.seal_all()
    rig.world.crash()
    assert not rig.restart()
    assert same(seen(rig), now)


def _numbered(rig: Rig, root: Node) -> Node:
    """A model whose numbers are not known, for more steps."""
    root = clone(root, {})
    root.ino = 1
    for _, node in walk(root):
        node.blurred = True
    return root


@pytest.mark.parametrize("seed", range(10))
def test_all_had_reached_the_disk(seed):
    """Then what a barrier covered is there, and at most what was there when the power went."""
    rng = random.Random(seed)
    rig = Rig(2)
    try:
        past: list[Node] = [clone(rig.plain.root, {})]
        history(rig, rng, 12, past)
        rig.barrier()
        past = [clone(rig.plain.root, {})]
        history(rig, rng, 8, past)
        lose_power(rig)
        rig.restart()
        expect_one_of(rig, past)
        go_on(rig, rng)
    finally:
        rig.close()


@pytest.mark.parametrize("seed", range(10))
def test_nothing_since_the_barrier_had(seed):
    rng = random.Random(seed)
    rig = Rig(2)
    try:
        history(rig, rng, 12, [])
        rig.barrier()
        promised = clone(rig.plain.root, {})
        snaps = dict(rig.snaps)
        image = rig.top + b".image"
        shutil.copytree(rig.world.home_path, image, symlinks=True)
        history(rig, rng, 8, [])
        lose_power(rig)
        shutil.rmtree(rig.world.home_path)
        os.rename(image, rig.world.home_path)
        rig.restart()
        assert same(seen(rig), promised)
        for id, root in snaps.items():
            compare_view(rig.world.roots.view(rig.world.roots.of(id)), root, rig.world.read_entry)
        go_on(rig, rng)
    finally:
        rig.close()


PARTS = ["head", "history", "journal", "working", "objects"]


@pytest.mark.parametrize("seed", range(30))
def test_some_had_and_some_had_not(seed):
    """Each part of the store is as it was at the barrier, or as it was when the power went."""
    rng = random.Random(seed)
    rig = Rig(2)
    image = rig.top + b".image"
    try:
        history(rig, rng, 12, [])
        rig.barrier()
        past = [clone(rig.plain.root, {})]
        shutil.copytree(rig.world.home_path, image, symlinks=True)
        workspace = os.path.relpath(rig.world.store.path, rig.world.home_path)
        # Sealing syncs what it makes, in order: that is a promise of its own.
        quiet = rng.random() < 0.7
        for _ in range(8):
            if rng.randrange(4) == 0:
                rig.checkpoint()
            elif rng.randrange(4) == 0:
                rig.undo()
            else:
                step(rig, rng)
            past.append(clone(rig.plain.root, {}))
        if not quiet:
            rig.world.seal_all()
        lose_power(rig)
        lost = {part for part in PARTS if rng.random() < 0.5}
        if not quiet:
            lost -= {"history", "objects", "head"}
            # Names go in the order in which they were removed: a journal's before those of what it cites.
            lost |= {"working"} if "journal" in lost else set()
        for part in lost:
            _roll_back(rig.world.home_path, image, workspace, part, keep_names=not quiet)
        rig.restart()
        expect_one_of(rig, past)
        for one in rig.world.history.all():
            as_model(rig.world.roots.view(rig.world.roots.of(one.id)), rig.world.read_entry)
        go_on(rig, rng)
    finally:
        shutil.rmtree(image, ignore_errors=True)
        rig.close()


def _roll_back(home: bytes, image: bytes, workspace: bytes, part: str, keep_names: bool) -> None:
    """One part of the store is as it was in ``image``; of journals that came later the names, at least, if those were
    synced.
    """
    place = b"objects" if part == "objects" else os.path.join(workspace, part.encode())
    now, then = os.path.join(home, place), os.path.join(image, place)
    if os.path.isdir(now):
        names = os.listdir(now)
        shutil.rmtree(now)
        shutil.copytree(then, now, symlinks=True)
        for name in names if keep_names and part == "journal" else ():
            if name.isdigit() and not os.path.exists(os.path.join(now, name)):
                open(os.path.join(now, name), "wb").close()
    else:
        shutil.copy2(then, now)


def test_what_was_given_up_never_comes_back():
    """After a power loss the journal ends at the barrier; a kill after that must not bring the rest back."""
    rig = Rig(1)
    try:
        path, file = rig.files()[0]
        rig.write(path, file, 0, b"promised")
        rig.barrier()
        promised = clone(rig.plain.root, {})
        rig.write(path, file, 0, b"not promised, and longer")
        rig.make(b"", b"new")
        lose_power(rig)
        assert rig.restart(), "it is told"
        assert same(seen(rig), promised)
        rig.world.crash()
        rig.restart()
        assert same(seen(rig), promised)
    finally:
        rig.close()


def test_working_data_of_a_killed_daemon_is_synced_by_the_next():
    """Bytes that a killed daemon had written, but not synced, are part of what the next one promises."""
    rig = Rig(1)
    try:
        path, file = rig.files()[0]
        rig.write(path, file, 0, b"x" * 1000)
        rig.crash()
        synced: list[int] = []
        real = os.fdatasync
        os.fdatasync = lambda fd: synced.append(os.fstat(fd).st_ino) or real(fd)  # type: ignore[assignment]
        try:
            rig.barrier()
        finally:
            os.fdatasync = real
        working = rig.world.store.working_dir
        assert {os.stat(os.path.join(working, name)).st_ino for name in os.listdir(working)} <= set(synced)
    finally:
        rig.close()
