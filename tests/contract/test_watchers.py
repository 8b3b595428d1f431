"""inotify watchers see a change that did not come through the kernel, and seeing it changes nothing."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.inotify import Inotify
from tests.contract.servers import Server
from tests.contract.test_caches import SETUP
from vfs.channels.watchers import parse_marks

pytestmark = [pytest.mark.mounted, pytest.mark.timeout(60)]


@pytest.fixture
def kind() -> str:
    """These tests look into the file system that is served."""
    return "memory"


WAKE = """
from vfs.channel import Touched

def lie(path):
    '''(inode, mode) under a path, or None.'''
    try:
        ino = find(path)
    except KeyError:
        return None
    return ino, fs.inodes[ino].mode

def told(path, change):
    before = lie(path)
    channel.invalidate(change())
    channel.wake([Touched(path, before, lie(path))])

def state():
    return {
        ino: (i.mode, i.nlink, i.uid, i.gid, bytes(i.data), dict(i.entries), i.mtime_ns, i.ctime_ns, i.atime_ns)
        for ino, i in list(fs.inodes.items())
        if i.nlink  # those without a name go when the kernel says so
    }
"""


class Restored:
    """Changes below ``place`` behind the kernel's back, with watchers woken; the state after is the state before."""

    def __init__(self, server: Server, place: Path) -> None:
        self._server = server
        self._place = os.fsencode(place.name)
        server.run(SETUP + WAKE)

    def __call__(self, name: str, change: str) -> None:
        path = self._place + b"/" + name.encode()
        folder, _, last = path.rpartition(b"/")
        change = change.format(folder=repr(folder), name=repr(last), path=repr(path))
        self._server.run(f"before = lie({path!r}); channel.invalidate({change})")
        self._server.run("told_state = state()")
        self._server.run(f"channel.wake([Touched({path!r}, before, lie({path!r}))])")
        assert self._server.run("state() == told_state"), "waking watchers changed something"

    def replace(self, name: str, data: bytes) -> None:
        self(name, f"replace({{folder}}, {{name}}, {data!r})")

    def remove(self, name: str) -> None:
        self(name, "remove({folder}, {name})")

    def chmod(self, name: str, mode: int) -> None:
        self(name, f"chmod({{path}}, {mode})")


@pytest.fixture
def restored(server: Server, place: Path) -> Restored:
    return Restored(server, place)


@pytest.fixture
def watch() -> Iterator[type[Inotify]]:
    made: list[Inotify] = []

    class Watch(Inotify):
        def __init__(self, *paths: Path) -> None:
            super().__init__(*paths)
            made.append(self)

    yield Watch
    for inotify in made:
        inotify.close()


def test_a_file_that_appears(place: Path, restored: Restored, watch: type[Inotify]) -> None:
    inotify = watch(place)
    restored.replace("f", b"content")
    events = inotify.events()
    top = place.name
    assert events[0] == (top, "CREATE", "f")
    assert (top, "MODIFY", "f") in events
    assert (top, "CLOSE_WRITE", "f") in events
    assert (place / "f").read_bytes() == b"content"
    assert inotify.events(0) == []


def test_a_file_that_goes(place: Path, restored: Restored, watch: type[Inotify]) -> None:
    (place / "f").write_bytes(b"x")
    inotify = watch(place)
    restored.remove("f")
    assert inotify.events() == [(place.name, "DELETE", "f")]
    assert not (place / "f").exists()
    assert os.listdir(place) == []


def test_a_file_that_is_replaced(place: Path, restored: Restored, watch: type[Inotify]) -> None:
    (place / "f").write_bytes(b"old")
    inotify = watch(place)
    restored.replace("f", b"new!")
    events = [event for _, event, name in inotify.events() if name == "f"]
    assert events[0] == "DELETE"
    assert events[1] == "CREATE"
    assert "MODIFY" in events
    assert events[-1] == "CLOSE_WRITE"
    status = os.stat(place / "f")
    assert (status.st_nlink, status.st_size) == (1, 4)
    assert (place / "f").read_bytes() == b"new!"


def test_a_watch_on_the_file_itself(place: Path, restored: Restored, watch: type[Inotify]) -> None:
    (place / "f").write_bytes(b"old")
    inotify = watch(place / "f")
    restored.replace("f", b"new")
    assert ("f", "DELETE_SELF", "") in inotify.events()
    again = watch(place / "f")
    restored.chmod("f", 0o600)
    assert ("f", "ATTRIB", "") in again.events()
    assert stat.S_IMODE(os.stat(place / "f").st_mode) == 0o600


def test_a_file_that_somebody_holds_open(place: Path, restored: Restored, watch: type[Inotify]) -> None:
    (place / "f").write_bytes(b"old")
    inotify = watch(place)
    with open(place / "f", "rb") as held:
        restored.replace("f", b"new")
        restored.replace("f", b"newer")
        assert held.read() == b"old"
        assert os.fstat(held.fileno()).st_nlink == 0
    assert [event for _, event, _ in inotify.events() if event in ("CREATE", "DELETE")] == ["DELETE", "CREATE"] * 2
    assert (place / "f").read_bytes() == b"newer"


def test_directories_and_what_is_below(place: Path, restored: Restored, server: Server, watch: type[Inotify]) -> None:
    (place / "d").mkdir()
    inotify = watch(place, place / "d")
    restored.replace("d/f", b"deep")
    assert ("d", "CREATE", "f") in inotify.events()
    restored.remove("d/f")
    assert ("d", "DELETE", "f") in inotify.events()
    restored.remove("d")
    events = inotify.events()
    assert (place.name, "DELETE", "d") in events
    assert ("d", "DELETE_SELF", "") in events
    assert os.listdir(place) == []
    assert os.stat(place).st_nlink == 2


def test_symlinks_fifos_and_directories_that_appear(
    place: Path, server: Server, restored: Restored, watch: type[Inotify]
) -> None:
    inotify = watch(place)
    here = os.fsencode(place.name)
    server.run(f"""
parent = find({here!r})
made = [fs.mkdir(parent, b"d", 0o755, ME), fs.symlink(parent, b"s", b"target", ME),
        fs.mknod(parent, b"p", stat.S_IFIFO | 0o644, 0, ME)]
for inode in made: inode.lookups = 0
channel.invalidate(Invalidations(entries=((parent, b"d"), (parent, b"s"), (parent, b"p"))))
channel.wake([Touched({here!r} + b"/" + n, None, lie({here!r} + b"/" + n)) for n in (b"d", b"s", b"p")])
""")
    assert sorted(name for _, event, name in inotify.events() if event == "CREATE") == ["d", "p", "s"]
    assert os.readlink(place / "s") == "target"
    assert sorted(os.listdir(place)) == ["d", "p", "s"]
    assert os.stat(place).st_nlink == 3


def test_what_nobody_watches_is_not_touched(place: Path, server: Server, restored: Restored) -> None:
    (place / "f").write_bytes(b"old")
    server.run("asked = []; original = channel._disguise.lookup; channel._disguise.lookup = lambda *a: asked.append(a)")
    try:
        restored.replace("f", b"new")
        assert server.run("asked") == []
    finally:
        server.run("channel._disguise.lookup = original")


def test_a_real_change_by_somebody_else_is_real(place: Path, restored: Restored, watch: type[Inotify]) -> None:
    """The disguise is for one thread and one name only."""
    inotify = watch(place)
    restored.replace("f", b"x")
    inotify.events()
    (place / "g").touch()
    os.unlink(place / "f")
    assert sorted(os.listdir(place)) == ["g"]
    assert {event for _, event, _ in inotify.events()} >= {"CREATE", "DELETE"}


@pytest.mark.root
def test_what_is_mounted_inside_stays_mounted(place: Path, restored: Restored, watch: type[Inotify]) -> None:
    (place / "inner").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "inner", place / "inner"], check=True, timeout=10)
    try:
        (place / "inner" / "f").touch()
        inotify = watch(place)
        restored.replace("other", b"x")
        restored.chmod("inner", 0o700)
        restored.replace("inner/f", b"below the mount")
        assert (place / "inner" / "f").read_bytes() == b""
        assert (place.name, "CREATE", "other") in inotify.events()
    finally:
        subprocess.run(["umount", "-l", place / "inner"], check=False, timeout=10)


@pytest.mark.root
@pytest.mark.parametrize("why", ["covered", "stranger"])
def test_nothing_is_played_on_files_that_are_not_ours(
    place: Path, server: Server, restored: Restored, watch: type[Inotify], why: str
) -> None:
    """Another file system lies over the mount, or the server does not know our thread: then it would all be real."""
    server.run("import threading; native = threading.get_native_id")
    if why == "covered":
        subprocess.run(["mount", "-t", "tmpfs", "cover", server.path], check=True, timeout=10)
    try:
        place.mkdir(exist_ok=True)
        for name in ("keep", "f"):
            (place / name).write_bytes(b"precious")
        inotify = watch(place)
        if why == "stranger":
            server.run("threading.get_native_id = lambda: 999999999")
        here = os.fsencode(place.name)
        server.run(f"""
old, new = (77, 0o100644), (78, 0o100644)
there = {here!r} + b"/"
channel.wake([Touched(there + b"keep", old, None), Touched(there + b"f", old, new), Touched(there + b"x", None, new)])
""")
        assert sorted(os.listdir(place)) == ["f", "keep"]
        assert (place / "keep").read_bytes() == b"precious"
        assert not [event for event in inotify.events() if event[1] in ("CREATE", "DELETE", "MODIFY")]
    finally:
        server.run("threading.get_native_id = native")
        if why == "covered":
            subprocess.run(["umount", "-l", server.path], check=False, timeout=10)


def test_marks_are_read_as_the_kernel_writes_them() -> None:
    text = (
        b"pos:\t0\nflags:\t02004000\nmnt_id:\t15\nino:\t2058\n"
        b"inotify wd:2 ino:a sdev:2a mask:fce ignored_mask:0 fhandle-bytes:8 fhandle-type:1 f_handle:0a\n"
        b"inotify wd:1 ino:ff sdev:800013 mask:fce ignored_mask:0\n"
        b"fanotify ino:b sdev:2a mflags:0 mask:3b ignored_mask:40000000 fhandle-bytes:8\n"
    )
    marks = parse_marks(text, os.makedev(0, 42))
    assert 10 in marks
    assert 11 in marks
    assert 255 not in marks
    assert 255 in parse_marks(text, os.makedev(8, 0x13))
    assert not parse_marks(text, os.makedev(7, 7))
    assert 1 in parse_marks(b"fanotify sdev:2a mflags:0 mask:1\n", os.makedev(0, 42))
