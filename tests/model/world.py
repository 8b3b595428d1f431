"""A store, a base directory and everything that serves them but the channel, put together as a mount does it.

Deterministic: the clock moves when it is told, ids count up, and sealing happens when it is asked for, in the caller's
thread. ``crash`` drops what a killed process would drop.
"""

from __future__ import annotations

import gc
import itertools
import os

import msgspec

from store.disk import Disk
from store.home import Home
from store.nodes import FreshRegular
from store.refs import CheckpointId
from vfs.live.extents import Extents, read_runs
from vfs.live.pending import Pending
from vfs.live.working import WorkingFile
from vfs.opening import open_store, open_workspace_tree
from vfs.sealing import Sealing
from vfs.timeline import Timeline
from vfs.trees.contents import Contents


class Clock:
    """Time in nanoseconds; it moves only by ``tick``."""

    def __init__(self) -> None:
        self.now = 2_000_000_000_000_000_000

    def tick(self) -> int:
        self.now += 1_000_003
        return self.now

    def time_ns(self) -> int:
        return self.now


class Counted:
    """Ids in order."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def checkpoint(self) -> CheckpointId:
        return CheckpointId(f"{next(self._numbers):012x}")


class World:
    """``top`` gets a ``base`` and a ``home``. ``open`` first."""

    def __init__(self, top: bytes) -> None:
        self.base = os.path.join(top, b"base")
        self.home_path = os.path.join(top, b"home")
        os.makedirs(self.base, exist_ok=True)
        self.clock = Clock()
        self.ids = Counted()
        self.disk: Disk = Disk()
        self.boot = "boot-1"
        """The run of the kernel, as journals know it; another one means that the power was lost."""
        self.notes: list[str] = []
        self.problems: list[str] = []
        self.told = []

    def open(self) -> None:
        self.notes = []
        self.home = Home.open(self.home_path, self.disk, self.clock, self.ids)
        self.base_fd = os.open(self.base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        store = lock = None
        try:
            store, lock = open_store(self.home, self.base_fd, self.base)
            opened = open_workspace_tree(self.home, store, lock, self.base_fd, self.clock.time_ns, self.notes)
        except BaseException:
            if store is not None:
                store.close()
            if lock is not None:
                lock.release()
            os.close(self.base_fd)
            raise
        self.opened = opened
        self.store = store
        self.core = opened.core
        self.roots = opened.roots
        self.history = store.history
        self.contents = Contents(self.home.objects, opened.host)
        self.sealing = Sealing(
            self.core,
            self.home.objects,
            self.home.pages,
            self.history,
            self.roots,
            lambda _: None,
            self.problems.append,
        )
        self.timeline = Timeline(
            self.core, self.history, self.roots, opened.head, opened.baseline, self.sealing.submit, self._tell
        )
        for task in opened.tasks:
            self.sealing.submit(task)

    def _tell(self, invalidations, touched) -> None:
        self.told.append((invalidations, touched))

    def seal_all(self) -> None:
        while self.sealing.waiting:
            self.sealing.seal_next()
        assert not self.problems, self.problems

    def close(self) -> None:
        """As an unmount that keeps."""
        self.seal_all()
        self.core.barrier()
        self.core.keep_identities()
        head = msgspec.structs.replace(self.timeline.head, mounted=False, left="keep")
        self.history.write_head(head, sync=True)
        self._let_go()

    def crash(self) -> None:
        """As SIGKILL."""
        for thing in gc.get_objects():
            if type(thing) is WorkingFile:  # it would be removed when nothing cites it any more
                thing.temporary = False
        self._let_go()

    def _let_go(self) -> None:
        self.core.close()
        self.opened.store.close()
        self.opened.lock.release()
        os.close(self.base_fd)
        del self.core, self.opened, self.roots, self.history, self.timeline, self.sealing, self.home, self.contents
        self.told = []

    # Looking into trees

    def read_entry(self, entry) -> bytes:
        """All bytes of a file of a tree, sealed or not."""
        if isinstance(entry, FreshRegular):
            pending = entry.fresh.value
            assert isinstance(pending, Pending)
            return read_runs(Extents(pending.runs).slice(0, pending.size), 0, pending.size) if pending.size else b""
        size = self.contents.size(entry.content)
        return self.contents.read(entry.content, 0, size)
