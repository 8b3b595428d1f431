"""What a checkpoint and a restore cost, as a client of the socket sees it, against size and against history.

Beside plyfs stand what others do for the same job: git's index and write-tree over the whole tree (a shadow
repository), and a btrfs snapshot, which is the native floor.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from bench.material import ENVIRONMENT
from bench.rounds import note
from bench.samples import Goal, Line, Sheet
from bench.targets import Served
from harness.client import Client
from harness.endpoint import Endpoint

CHANGED = 10
MANY = 1000
REPEATS = 21
FORK_BACK = 5

BY_SIZE = "checkpoint by files in the base"
BY_HISTORY = "checkpoint by number of checkpoints"


def fill(base: Path, count: int) -> None:
    """``count`` files, a hundred to a directory, with a few bytes in each."""
    made = 0
    while made < count:
        directory = f"{base}/{made // 10_000:03d}/{made % 10_000 // 100:02d}"
        os.makedirs(directory)
        for number in range(min(100, count - made)):
            descriptor = os.open(f"{directory}/{number:02d}.txt", os.O_WRONLY | os.O_CREAT, 0o644)
            os.write(descriptor, b"%d\n" % made)
            os.close(descriptor)
            made += 1


def change(base: Path, number: int, count: int = CHANGED) -> None:
    """Write ``count`` small files of the base anew."""
    for place in range(count):
        (base / f"000/{place // 100:02d}/{place % 100:02d}.txt").write_text(f"change {number} {place}\n")


class Session:
    """One mounted base and the client that asks for checkpoints of it."""

    def __init__(self, base: Path, scratch: Path, channel: str) -> None:
        self._target = Served(channel)
        started = time.perf_counter()
        self.top = self._target.open(base, scratch)
        self.mount_seconds = time.perf_counter() - started
        self.client = Client(Endpoint(self._target.socket))
        self.pid = self._target.pid
        assert self._target.plyfs is not None
        self.home = self._target.plyfs.home
        self._turn = 0

    def close(self) -> None:
        """Unmount, discarding."""
        self.client.close()
        self._target.close()

    def checkpoint(self, count: int = CHANGED) -> float:
        """Milliseconds for a checkpoint of ``count`` changed files, seen from the client."""
        self._turn += 1
        change(self.top, self._turn, count)
        started = time.perf_counter()
        answer = self.client.call("checkpoint", {})
        seconds = time.perf_counter() - started
        assert answer["created"] is True
        return seconds * 1000

    def restore(self) -> tuple[float, float]:
        """Milliseconds for an undo of the last checkpoint and for the redo of it."""
        figures = []
        for method in ("undo", "redo"):
            self.settle()
            started = time.perf_counter()
            self.client.call(method, {})
            figures.append((time.perf_counter() - started) * 1000)
        return figures[0], figures[1]

    def fork(self) -> float:
        """Milliseconds for a new branch: to a state ``FORK_BACK`` before this one, and its first checkpoint."""
        self.settle()
        started = time.perf_counter()
        self.client.call("restore", {"checkpoint": f"@~{FORK_BACK}", "force": True})
        seconds = time.perf_counter() - started
        return seconds * 1000 + self.checkpoint()

    def settle(self) -> None:
        """Wait until nothing is being sealed any more, so that it does not run into the next figure."""
        for _ in range(3000):
            # of no session, that is, the head alone: ten thousand rows would have the daemon tidy up in the next figure
            rows = self.client.call("log", {"session": "-"})["checkpoints"]
            if rows[-1]["state"] == "sealed":
                return
            time.sleep(0.01)


@contextlib.contextmanager
def session(scratch: Path, files: int, channel: str) -> Iterator[Session]:
    """A fresh base of ``files`` files, mounted."""
    top = scratch / "turn"
    (top / "base").mkdir(parents=True)
    (top / "scratch").mkdir()
    fill(top / "base", files)
    os.sync()
    served = Session(top / "base", top / "scratch", channel)
    try:
        yield served
    finally:
        served.close()
        shutil.rmtree(top)


def by_size(sheet: Sheet, scratch: Path, sizes: list[int], channel: str) -> None:
    """Checkpoint and restore for each size of the base."""
    column = f"plyfs {channel}"
    for size in sizes:
        note(f"checkpoints over {size:,} files")
        with session(scratch, size, channel) as served:
            small = sheet.line(BY_SIZE, f"checkpoint of 10 changes, {size:,} files", "ms", (Goal(2.0, None),))
            back = sheet.line(BY_SIZE, f"restore of 10 changes, {size:,} files", "ms", (Goal(5.5, None),))
            for _ in range(REPEATS):
                small.add(column, served.checkpoint())
                for figure in served.restore():
                    back.add(column, figure)
            branch = sheet.line(
                BY_SIZE, f"fork {FORK_BACK} states back, 10 changes, {size:,} files", "ms", (Goal(7.5, None),)
            )
            for _ in range(REPEATS):
                branch.add(column, served.fork())
                for _ in range(FORK_BACK):
                    served.checkpoint()
            many = sheet.line(BY_SIZE, f"checkpoint of {min(MANY, size):,} changes, {size:,} files", "ms")
            bulk = sheet.line(
                BY_SIZE, f"restore of {min(MANY, size):,} changes, {size:,} files", "ms", (Goal(55.0, None),)
            )
            for _ in range(5):
                many.add(column, served.checkpoint(min(MANY, size)))
                for figure in served.restore():
                    bulk.add(column, figure)
            mount = sheet.line(BY_SIZE, f"mount, {size:,} files", "s", (Goal(0.5, None),))
            mount.add(column, served.mount_seconds)


def by_history(sheet: Sheet, scratch: Path, counts: list[int], channel: str) -> None:
    """Checkpoint and restore after so many checkpoints, over a base of 1,000 files."""
    column = f"plyfs {channel}"
    with session(scratch, 1000, channel) as served:
        made = 1
        for count in counts:
            note(f"checkpoints after {count:,} checkpoints")
            while made < count:
                served.checkpoint(1)
                made += 1
            served.settle()
            small = sheet.line(BY_HISTORY, f"checkpoint of 10 changes after {count:,}", "ms", (Goal(2.0, None),))
            back = sheet.line(BY_HISTORY, f"restore of 10 changes after {count:,}", "ms", (Goal(5.5, None),))
            for _ in range(REPEATS):
                small.add(column, served.checkpoint())
                for figure in served.restore():
                    back.add(column, figure)
            made += REPEATS


def of_a_big_file(sheet: Sheet, scratch: Path, size: int, channel: str) -> None:
    """One 4 KiB write in a file of ``size`` bytes of the base: the checkpoint's time and what the store grows by."""
    column = f"plyfs {channel}"
    name = f"{size >> 20:,} MiB file"
    note(f"checkpoint of one write in a {name}")
    with session(scratch, 100, channel) as served:
        block = os.urandom(1 << 20)
        with (served.top / "big").open("wb") as file:
            for _ in range(size >> 20):
                file.write(block)
        served.client.call("checkpoint", {"sync": True})
        time_line = sheet.line(BY_SIZE, f"checkpoint of one 4 KiB write, {name}", "ms", (Goal(100.0, None),))
        space = sheet.line(BY_SIZE, f"store growth by one 4 KiB write, {name}", "MiB", (Goal(2.0, None),))
        for number in range(5):
            before = store_bytes(served.home)
            with (served.top / "big").open("r+b") as file:
                file.seek((number * 37 + 11) % (size >> 20) << 20)
                file.write(os.urandom(4096))
            started = time.perf_counter()
            served.client.call("checkpoint", {})
            time_line.add(column, (time.perf_counter() - started) * 1000)
            served.client.call("checkpoint", {"sync": True})
            served.settle()
            space.add(column, (store_bytes(served.home) - before) / (1 << 20))


def store_bytes(home: Path) -> int:
    """What the files below ``home`` occupy on disk."""
    total = 0
    for folder, _, files in os.walk(home):
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total


def others(sheet: Sheet, scratch: Path, sizes: list[int]) -> None:
    """The same ten changes captured by a shadow git repository and by a btrfs snapshot."""
    for size in sizes:
        line = sheet.line(BY_SIZE, f"checkpoint of 10 changes, {size:,} files", "ms", (Goal(2.0, None),))
        note(f"git write-tree over {size:,} files")
        with_git(line, scratch, size)
        if os.geteuid() == 0 and shutil.which("mkfs.btrfs"):
            note(f"btrfs snapshot over {size:,} files")
            with_btrfs(line, scratch, size)


def with_git(line: Line, scratch: Path, size: int) -> None:
    """``git add -A`` and ``git write-tree`` with a repository outside the tree."""
    top = scratch / "turn"
    (top / "base").mkdir(parents=True)
    try:
        fill(top / "base", size)
        environment = {**ENVIRONMENT, "GIT_DIR": str(top / "git"), "GIT_WORK_TREE": str(top / "base")}

        def git(*words: str) -> None:
            subprocess.run(["git", *words], cwd=top / "base", env=environment, check=True, stdout=subprocess.DEVNULL)

        git("init", "-q")
        git("add", "-A")
        for number in range(5):
            change(top / "base", number)
            started = time.perf_counter()
            git("add", "-A")
            git("write-tree")
            line.add("git write-tree", (time.perf_counter() - started) * 1000)
    finally:
        shutil.rmtree(top)


def with_btrfs(line: Line, scratch: Path, size: int) -> None:
    """``btrfs subvolume snapshot`` on a file system in an image."""
    top = scratch / "turn"
    point = top / "point"
    point.mkdir(parents=True)
    image = top / "image"
    try:
        with image.open("wb") as file:
            file.truncate(1 << 30 if size <= 100_000 else 8 << 30)
        subprocess.run(["mkfs.btrfs", "-q", image], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", image, point], check=True)
        subprocess.run(["btrfs", "-q", "subvolume", "create", point / "base"], check=True)
        fill(point / "base", size)
        os.sync()
        for number in range(5):
            change(point / "base", number)
            started = time.perf_counter()
            source, copy = str(point / "base"), str(point / f"snapshot{number}")
            subprocess.run(["btrfs", "-q", "subvolume", "snapshot", "-r", source, copy], check=True)
            line.add("btrfs snapshot", (time.perf_counter() - started) * 1000)
    except subprocess.CalledProcessError as error:
        note(f"no btrfs figure: {error}")
    finally:
        subprocess.run(["umount", "-q", point], check=False, capture_output=True)
        shutil.rmtree(top)
