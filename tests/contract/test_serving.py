"""How a channel serves: what is slow holds up nobody else, what fails is survived, what ends ends well."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.contract.servers import Server, open_directory

pytestmark = [pytest.mark.mounted, pytest.mark.timeout(60)]


@pytest.fixture
def kind() -> str:
    """These tests look into the file system that is served."""
    return "memory"


def test_a_slow_read_holds_up_nobody_else(place: Path, server: Server) -> None:
    if server.channel == "pyfuse3":
        pytest.skip("one operation at a time is what this channel promises")
    (place / "slow").write_bytes(b"x" * 100)
    (place / "other").write_bytes(b"y" * 100)
    ino = os.stat(place / "slow").st_ino
    server.run(f"""
import threading
release, read = threading.Event(), fs.read
def slow_read(ino, offset, size):
    if ino == {ino}:
        release.wait(20)
    return read(ino, offset, size)
fs.read = slow_read
from vfs.channel import Invalidations
channel.invalidate(Invalidations(contents=({ino},)))
""")
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append((place / "slow").read_bytes()), daemon=True)
    try:
        reader.start()
        time.sleep(0.05)
        start = time.monotonic()
        for number in range(50):
            (place / f"quick-{number}").write_bytes(b"z")
        assert os.stat(place / "other").st_size == 100
        assert time.monotonic() - start < 5
        assert reader.is_alive()
    finally:
        server.run("release.set(); fs.read = read")
    reader.join(10)
    assert got == [b"x" * 100]


@pytest.mark.parametrize("error", ["FsError(errno.ENOSPC)", "ValueError('a bug')", "KeyError(1)", "MemoryError()"])
def test_any_error_reaches_the_caller_and_ends_nothing(place: Path, server: Server, error: str) -> None:
    server.run(f"""
import errno
from vfs.errors import FsError
def fail(*arguments, **more): raise {error}
mkdir, fs.mkdir = fs.mkdir, fail
""")
    try:
        expected = {"FsError": errno.ENOSPC, "MemoryError": errno.ENOMEM if server.channel == "direct" else errno.EIO}
        with pytest.raises(OSError, match=rf"\[Errno {expected.get(error.partition('(')[0], errno.EIO)}\]"):
            (place / "d").mkdir()
    finally:
        server.run("fs.mkdir = mkdir")
    (place / "d").mkdir()


def test_four_processes_at_once(place: Path, server: Server) -> None:
    code = """
import os, sys
top = sys.argv[1]
os.mkdir(top)
for turn in range(60):
    path = f"{top}/{turn}"
    with open(path + ".lock", "w") as file: file.write(path * 50)
    os.rename(path + ".lock", path)
    assert open(path).read() == path * 50
    assert os.path.basename(path) in os.listdir(top)
    if turn % 3 == 0: os.unlink(path)
assert len(os.listdir(top)) == 40
"""
    workers = [subprocess.Popen([sys.executable, "-c", code, place / str(number)]) for number in range(4)]
    assert [worker.wait(50) for worker in workers] == [0] * 4
    assert sorted(os.listdir(place)) == ["0", "1", "2", "3"]


def test_what_the_kernel_forgets_the_file_system_may_drop(place: Path, server: Server) -> None:
    before = server.run("len(fs.inodes)")
    for number in range(300):
        (place / f"{number}").touch()
    for number in range(300):
        os.unlink(place / f"{number}")
    deadline = time.monotonic() + 10
    while server.run("len(fs.inodes)") > before:
        assert time.monotonic() < deadline, "inodes without names or lookups are kept"
        time.sleep(0.01)


def test_lookups_are_counted_exactly(place: Path, server: Server) -> None:
    """After listing, looking up, linking and dropping caches the counts are back to nothing."""
    for number in range(50):
        (place / f"{number}").touch()
        os.link(place / f"{number}", place / f"{number}-link")
    for _ in range(2):
        os.listdir(place)
        for entry in os.scandir(place):
            entry.stat()
    inos = sorted({entry.inode() for entry in os.scandir(place)})
    assert server.run(f"min(fs.inodes[i].lookups for i in {inos})") > 0
    parent, names = os.stat(place).st_ino, [os.fsencode(name) for name in os.listdir(place)]
    server.run("from vfs.channel import Invalidations")
    server.run(f"channel.invalidate(Invalidations(entries=tuple(({parent}, name) for name in {names})))")
    deadline = time.monotonic() + 10
    while set(lookups := server.run(f"[fs.inodes[i].lookups for i in {inos}]")) != {0}:
        assert time.monotonic() < deadline, lookups
        time.sleep(0.01)


def test_writeback_can_be_chosen() -> None:
    path = open_directory()
    code = "__import__('vfs.channels.negotiation', fromlist=['Options']).Options(writeback=True)"
    server = Server(path, "direct", options=Evaluated(code))
    try:
        assert server.run("channel.negotiated.writeback")
        with open(path / "f", "wb") as file:
            for _ in range(100):
                file.write(b"0123456789" * 100)
        assert (path / "f").read_bytes() == b"0123456789" * 10_000
        assert server.run("len(fs.inodes[fs.inodes[1].entries[b'f']].data)") == 100_000
    finally:
        server.close()
        path.rmdir()


class Evaluated(str):
    """An option that the server evaluates."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
