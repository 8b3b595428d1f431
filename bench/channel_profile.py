"""What one request costs: microseconds of server CPU and of the caller's time per operation, for each channel.

Serves the in-memory file system of the tests, so that the figures are the channels' and not the core's, or a real
workspace (``--kind workspace``). Run it as ``python -m bench.channel_profile [--count N] [--channels direct,pyfuse3]``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.contract.servers import Server

PREPARE = """
from vfs.channel import Invalidations
def numbers():
    return tuple(getattr(fs, 'tree', fs).inodes)
"""
FRESH_ATTRIBUTES = "channel.invalidate(Invalidations(attributes=numbers()))"
FRESH_PAGES = "channel.invalidate(Invalidations(contents=numbers()))"


class Profile:
    """Operations on a mount at ``top``; each returns how many it did."""

    def __init__(self, server: Server, count: int) -> None:
        self.server = server
        self.top = os.fsencode(server.path)
        self.names = [b"%s/file-%05d" % (self.top, number) for number in range(count)]
        self.moved = [name + b"-moved" for name in self.names]
        server.run(PREPARE)

    def create(self) -> int:
        for name in self.names:
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_EXCL))
        return len(self.names)

    def write(self) -> int:
        data = b"x" * 1000
        fds = [os.open(name, os.O_WRONLY) for name in self.names]
        start = self._start()
        for fd in fds:
            os.write(fd, data)
        self._stop(start)
        for fd in fds:
            os.close(fd)
        return len(self.names)

    def getattr(self) -> int:
        self.server.run(FRESH_ATTRIBUTES)
        start = self._start()
        for name in self.names:
            os.stat(name)
        self._stop(start)
        return len(self.names)

    def lookup(self) -> int:
        names = [os.path.basename(name) for name in self.names]
        self.server.run(f"channel.invalidate(Invalidations(entries=tuple((1, n) for n in {names})))")
        start = self._start()
        for name in self.names:
            os.stat(name)
        self._stop(start)
        return len(self.names)

    def absent(self) -> int:
        for name in self.names:
            os.access(name + b"-absent", os.F_OK)
        return len(self.names)

    def stat_warm(self) -> int:
        for name in self.names:
            os.stat(name)
        return len(self.names)

    def open_close_warm(self) -> int:
        for name in self.names:
            os.close(os.open(name, os.O_RDONLY))
        return len(self.names)

    def open_read_close_warm(self) -> int:
        for name in self.names:
            fd = os.open(name, os.O_RDONLY)
            os.read(fd, 4096)
            os.close(fd)
        return len(self.names)

    def read_cold(self) -> int:
        self.server.run(FRESH_PAGES)
        fds = [os.open(name, os.O_RDONLY) for name in self.names]
        start = self._start()
        for fd in fds:
            os.pread(fd, 4096, 0)
        self._stop(start)
        for fd in fds:
            os.close(fd)
        return len(self.names)

    def readdir(self) -> int:
        self.server.run("channel.invalidate(Invalidations(contents=(1,)))")
        start = self._start()
        count = len(os.listdir(self.top))
        self._stop(start)
        return count

    def readdir_warm(self) -> int:
        return len(os.listdir(self.top))

    def rename(self) -> int:
        for name, moved in zip(self.names, self.moved, strict=True):
            os.rename(name, moved)
        return len(self.names)

    def unlink(self) -> int:
        for name in self.moved:
            os.unlink(name)
        return len(self.names)

    def mkdir(self) -> int:
        for name in self.names:
            os.mkdir(name)
        return len(self.names)

    def rmdir(self) -> int:
        for name in self.names:
            os.rmdir(name)
        return len(self.names)

    def large_write(self) -> int:
        block = bytes(1 << 20)
        with open(self.top + b"/large", "wb", buffering=0) as file:
            for _ in range(64):
                file.write(block)
        return 64

    def large_read(self) -> int:
        self.server.run(FRESH_PAGES)
        start = self._start()
        with open(self.top + b"/large", "rb", buffering=0) as file:
            while file.read(1 << 20):
                pass
        self._stop(start)
        return 64

    def _start(self) -> tuple[float, float]:
        self._spent: tuple[float, float] | None = None
        return self.server.cpu(), time.perf_counter()

    def _stop(self, start: tuple[float, float]) -> None:
        wall = time.perf_counter() - start[1]
        self._spent = self.server.cpu() - start[0], wall

    def measure(self, operation: Callable[[], int]) -> tuple[float, float]:
        """Server CPU and caller's time per operation, microseconds."""
        start = self._start()
        count = operation()
        if self._spent is None:
            self._stop(start)
        assert self._spent is not None
        cpu, wall = self._spent
        return cpu / count * 1e6, wall / count * 1e6


OPERATIONS = (  # noqa: SIM905 - one name after the other reads better than as many quotes
    "create write getattr lookup absent stat_warm open_close_warm open_read_close_warm read_cold readdir "
    "readdir_warm rename unlink mkdir rmdir large_write large_read"
).split()


def profile(kind: str, channel: str, count: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """All operations, ``rounds`` times."""
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in OPERATIONS}
    for _ in range(rounds):
        top = Path(tempfile.mkdtemp(prefix="plyfs-profile-"))
        server = Server(top, channel, kind=kind, seconds=300)
        try:
            run = Profile(server, count)
            for name in OPERATIONS:
                results[name].append(run.measure(getattr(run, name)))
        finally:
            server.close()
            shutil.rmtree(top, ignore_errors=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--channels", default="direct,pyfuse3")
    parser.add_argument("--kind", choices=["memory", "workspace"], default="memory")
    parser.add_argument(
        "--one-processor",
        action="store_true",
        help="caller and server on one processor: the server's CPU is its work alone, none of it waiting awake",
    )
    arguments = parser.parse_args()
    if arguments.one_processor:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    tables = {}
    for channel in arguments.channels.split(","):
        tables[channel] = profile(arguments.kind, channel, arguments.count, arguments.rounds)
    print("microseconds per operation (MiB for large_*): server CPU / caller's time, best of rounds")
    print(f"{'':22}" + "".join(f"{name:>20}" for name in tables))
    for operation in OPERATIONS:
        cells = [
            f"{min(c for c, _ in table[operation]):9.1f} /{min(w for _, w in table[operation]):8.1f}"
            for table in tables.values()
        ]
        print(f"{operation:22}" + "".join(f"{cell:>20}" for cell in cells))


if __name__ == "__main__":
    main()
