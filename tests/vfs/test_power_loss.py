"""fsync keeps its promise over a power loss, whatever moves came before it: what leads to the data is durable too."""

from __future__ import annotations

import os
import stat
import threading

import pytest

from store.refs import Ino
from tests.model.world import World
from tests.store.faulty_disk import FaultyDisk
from vfs.channel import Caller

ROOT = Ino(1)
ME = Caller(os.getuid(), os.getgid(), os.getpid(), 0o022)


@pytest.fixture
def world(tmp_path, monkeypatch):
    boot = ["before"]
    for module in ("store.journal", "store.lock", "vfs.live.recovery"):
        monkeypatch.setattr(f"{module}.boot_id", lambda: boot[0])
    world = World(os.fsencode(tmp_path))
    world.boot = boot
    world.durable = {}  # of working files, which do not go through the disk: inode to length
    fdatasync = os.fdatasync

    def noted(fd):
        fdatasync(fd)
        world.durable[os.fstat(fd).st_ino] = os.fstat(fd).st_size

    monkeypatch.setattr("os.fdatasync", noted)
    world.disk = FaultyDisk()
    with open(os.path.join(world.base, b"base"), "wb") as file:
        file.write(b"of the base")
    world.open()
    return world


def write(world: World, name: bytes, data: bytes, fsync: bool = True) -> None:
    made = world.core.mknod(ROOT, name, stat.S_IFREG | 0o644, 0, ME)
    world.core.write(made.ino, 0, memoryview(data), False)
    if fsync:
        world.core.fsync(made.ino, False)


def move(world: World, plan) -> None:
    world.timeline.make(plan)
    world.timeline.finish()


def lose_power(world: World) -> dict[bytes, bytes]:
    """What is there after the lights came on again."""
    working = world.store.working_dir
    world.crash()
    world.disk.power_loss(world.home_path, leaving=working)
    for name in os.listdir(working):
        path = os.path.join(working, name)
        os.truncate(path, world.durable.get(os.stat(path).st_ino, 0))
    world.boot[0] = "after"
    world.open()
    view = world.roots.view(world.timeline.root_of(None))
    found = {name: world.read_entry(entry) for name, entry in view.list(view.root).items()}
    world.close()
    return found


def test_after_a_checkpoint_that_is_not_sealed(world):
    write(world, b"one", b"1", fsync=False)
    world.timeline.checkpoint("one")
    write(world, b"two", b"2")
    assert lose_power(world) == {b"base": b"of the base", b"one": b"1", b"two": b"2"}


def test_after_a_checkpoint_and_nothing_else(world):
    write(world, b"one", b"1", fsync=False)
    world.timeline.checkpoint("one")
    world.core.barrier()
    assert lose_power(world) == {b"base": b"of the base", b"one": b"1"}


def test_after_moves_with_nothing_between_them(world):
    write(world, b"one", b"1", fsync=False)
    first = world.timeline.checkpoint("one").id
    world.seal_all()
    move(world, world.timeline.undo(1))
    move(world, world.timeline.redo(1))
    move(world, world.timeline.go("base"))
    move(world, world.timeline.go(first))
    write(world, b"two", b"2")
    assert lose_power(world) == {b"base": b"of the base", b"one": b"1", b"two": b"2"}


def test_after_paths_were_brought_back(world):
    write(world, b"one", b"1", fsync=False)
    first = world.timeline.checkpoint("one").id
    move(world, world.timeline.undo(1))
    write(world, b"unsaved", b"u", fsync=False)
    move(world, world.timeline.go(first, [b"one"]))
    write(world, b"two", b"2")
    assert lose_power(world) == {b"base": b"of the base", b"one": b"1", b"two": b"2", b"unsaved": b"u"}


def test_after_a_kill(world):
    write(world, b"one", b"1", fsync=False)
    world.crash()
    world.open()
    write(world, b"two", b"2")
    assert lose_power(world) == {b"base": b"of the base", b"one": b"1", b"two": b"2"}


def test_a_sealed_epoch_goes_while_another_is_made_durable(world):
    """Its journal is closed by the sealer: not under the hands of who is about to sync it."""
    epochs, lock = world.core.epochs, world.core.tree.lock
    write(world, b"one", b"1", fsync=False)
    world.timeline.checkpoint("one")
    journal = epochs._closed[0].journal
    close, over = journal.close, threading.Event()
    journal.close = lambda: (close(), over.wait(5))
    sealer = threading.Thread(target=lambda: epochs.drop(epochs._closed[0].start.epoch, lock))

    def anchor():
        sealer.start()
        sealer.join(0.3)

    epochs.anchor = anchor
    world.core.barrier()
    over.set()
    sealer.join()
    assert not epochs._closed


def test_without_fsync_a_prefix_is_left(world):
    write(world, b"one", b"1")
    world.timeline.checkpoint("one")
    write(world, b"two", b"2", fsync=False)
    assert lose_power(world) in (
        {b"base": b"of the base", b"one": b"1"},
        {b"base": b"of the base", b"one": b"1", b"two": b"2"},
    )
