"""Several threads at once, as channels call: writers, checkpoints, barriers and the real sealing thread.

Each writer has a directory of its own and knows what must be in it; nobody may see anything else, during and after.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
import tempfile
import threading

import pytest

from store.refs import Ino
from tests.model.kernel import ME, list_all, read_all
from tests.model.machine import memory_directory
from tests.model.world import World
from vfs.workspace import ConflictError, NothingToDoError

ROOT = Ino(1)


@pytest.fixture
def world():
    top = os.fsencode(tempfile.mkdtemp(prefix="plyfs-threads-", dir=memory_directory()))
    world = World(top)
    for number in range(4):
        os.makedirs(os.path.join(world.base, b"d%d" % number))
        for name in range(10):
            with open(os.path.join(world.base, b"d%d/f%d" % (number, name)), "wb") as file:
                file.write(b"base %d %d" % (number, name))
    world.open()
    yield world
    try:
        world.crash()
    finally:
        shutil.rmtree(top)


class Writer(threading.Thread):
    """Works in one directory and checks itself."""

    def __init__(self, world: World, number: int, count: int) -> None:
        super().__init__()
        self.core = world.core
        self.name_of = b"d%d" % number
        self.rng = random.Random(number)
        self.count = count
        self.files = {b"f%d" % name: b"base %d %d" % (number, name) for name in range(10)}
        self.problems: list[BaseException] = []

    def run(self) -> None:
        try:
            for _ in range(self.count):
                self.step()
        except BaseException as error:
            self.problems.append(error)

    def directory(self) -> Ino:
        return self.core.lookup(ROOT, self.name_of).ino

    def step(self) -> None:
        core, rng = self.core, self.rng
        above = self.directory()
        name = rng.choice([*self.files, b"n%d" % rng.randrange(30)])
        held = [above]
        match rng.randrange(5):
            case 0 if name not in self.files:
                inode = core.mknod(above, name, stat.S_IFREG | 0o644, 0, ME)
                held.append(inode.ino)
                self.files[name] = b""
            case 1 if name in self.files:
                core.unlink(above, name)
                del self.files[name]
            case 2 if name in self.files:
                new = b"r%d" % rng.randrange(30)
                core.rename(above, name, above, new, 0)
                self.files[new] = self.files.pop(name)
            case _ if name in self.files:
                inode = core.lookup(above, name)
                held.append(inode.ino)
                data = rng.randbytes(rng.choice([3, 2000, 200_000]))
                core.write(inode.ino, 0, data)
                self.files[name] = data + self.files[name][len(data) :]
                assert read_all(core, inode.ino) == self.files[name]
        if rng.random() < 0.1:
            assert set(list_all(core, above)) == set(self.files)
        for ino in reversed(held):
            core.forget(ino, 1)


def check(world: World, writers: list[Writer]) -> None:
    core = world.core
    for writer in writers:
        above = core.lookup(ROOT, writer.name_of).ino
        assert set(list_all(core, above)) == set(writer.files)
        for name, data in writer.files.items():
            ino = core.lookup(above, name).ino
            assert read_all(core, ino) == data, (writer.name_of, name)


def test_writers_checkpoints_barriers_and_sealing(world):
    world.sealing.start()
    writers = [Writer(world, number, 150) for number in range(4)]
    done = threading.Event()

    def barriers():
        while not done.wait(0.002):
            world.core.barrier()

    syncing = threading.Thread(target=barriers)
    for thread in [*writers, syncing]:
        thread.start()
    made = []
    while any(writer.is_alive() for writer in writers):
        made.append(world.timeline.checkpoint().id)
        world.timeline.changes(world.timeline.baseline, world.timeline.fold()[0])
    for writer in writers:
        writer.join()
    done.set()
    syncing.join()
    assert not [writer.problems for writer in writers if writer.problems]
    check(world, writers)
    world.timeline.checkpoint()
    world.sealing.drain()
    assert not world.sealing.failures and not world.problems
    world.sealing.stop()
    for id in made:
        for _, entry in world.roots.view(world.roots.of(id)).walk():
            if hasattr(entry, "content"):
                world.read_entry(entry)
    world.crash()
    world.open()
    assert not world.notes
    check(world, writers)


def test_moves_while_others_write(world):
    """A move happens between two requests or is refused; what it saved is what there was."""
    world.sealing.start()
    first = world.timeline.head.head
    stop = threading.Event()
    problems: list[BaseException] = []

    def write(number: int) -> None:
        rng = random.Random(number)
        core = world.core
        try:
            while not stop.is_set():
                above = core.lookup(ROOT, b"d%d" % number).ino
                try:
                    inode = core.lookup(above, b"f%d" % rng.randrange(10))
                    core.write(inode.ino, 0, rng.randbytes(rng.choice([3, 3000])))
                    core.forget(inode.ino, 1)
                finally:
                    core.forget(above, 1)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    moved = 0
    for _ in range(25):
        try:
            if moved % 3 == 2:
                with world.timeline.held():
                    world.timeline.make(world.timeline.go(first))
            else:
                world.timeline.make(world.timeline.undo(1))
            moved += 1
        except (ConflictError, NothingToDoError):
            pass
        world.timeline.finish()
    stop.set()
    for thread in threads:
        thread.join()
    assert not problems
    world.sealing.drain()
    assert not world.sealing.failures and not world.problems
    world.sealing.stop()
    with world.timeline.held():
        world.timeline.make(world.timeline.go(first))
    world.timeline.finish()
    for number in range(4):
        above = world.core.lookup(ROOT, b"d%d" % number).ino
        for name in range(10):
            ino = world.core.lookup(above, b"f%d" % name).ino
            assert read_all(world.core, ino) == b"base %d %d" % (number, name)
    world.seal_all()
    for one in world.history.all():
        for _, entry in world.roots.view(world.roots.of(one.id)).walk():
            if hasattr(entry, "content"):
                world.read_entry(entry)
