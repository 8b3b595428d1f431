"""A restore as the rest of the machine sees it: every kind of kernel cache, before and after, and those who watch."""

from __future__ import annotations

import mmap
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.inotify import Inotify
from tests.contract.servers import Server

pytestmark = [pytest.mark.mounted, pytest.mark.timeout(60)]


@pytest.fixture
def kind() -> str:
    return "workspace"


class Moves:
    """Checkpoints and moves of the served workspace."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def checkpoint(self) -> str:
        return str(self._server.run("workspace.checkpoint().id"))

    def restore(self, checkpoint: str) -> None:
        self._server.run(f"workspace.restore({checkpoint!r})")

    def told(self) -> None:
        """Return when watchers have been told."""
        self._server.run("workspace._waker.finish()")


@pytest.fixture
def moves(server: Server) -> Moves:
    return Moves(server)


def warm(place: Path) -> None:
    """Have everything cached: presences, absences, attributes, listings, contents, link targets."""
    for _ in range(2):
        for folder, folders, files in os.walk(place):
            for name in [*folders, *files]:
                path = os.path.join(folder, name)
                os.lstat(path)
                if os.path.islink(path):
                    os.readlink(path)
                elif os.path.isfile(path):
                    Path(path).read_bytes()
            for name in ("gone", "new", "absent", "f", "d"):
                os.path.exists(os.path.join(folder, name))


def snapshot(place: Path) -> dict[str, object]:
    """What is there, by every call that shows it."""
    found: dict[str, object] = {}
    for folder, folders, files in os.walk(place):
        status = os.stat(folder)
        found[os.path.relpath(folder, place)] = (stat.S_IMODE(status.st_mode), status.st_nlink, sorted(folders + files))
        for name in files:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            content = os.readlink(path) if os.path.islink(path) else Path(path).read_bytes()
            found[os.path.relpath(path, place)] = (status.st_mode, status.st_size, status.st_nlink, content)
    return found


def first(place: Path) -> None:
    (place / "d" / "e").mkdir(parents=True)
    (place / "f").write_bytes(b"old")
    (place / "d" / "same").write_bytes(b"same")
    (place / "d" / "e" / "deep").write_bytes(b"deep old" * 2000)
    (place / "gone").write_bytes(b"here")
    os.symlink("old-target", place / "s")
    os.link(place / "f", place / "d" / "linked")
    os.chmod(place / "d" / "e" / "deep", 0o600)


def second(place: Path) -> None:
    (place / "f").write_bytes(b"new content")
    (place / "d" / "e" / "deep").write_bytes(b"deep new" * 2000)
    (place / "gone").unlink()
    (place / "new").mkdir()
    (place / "new" / "inner").write_bytes(b"inner")
    (place / "s").unlink()
    os.symlink("new-target", place / "s")
    (place / "d" / "e" / "deep").chmod(0o644)
    os.rename(place / "d" / "same", place / "d" / "moved")


def test_every_cache_shows_the_restored_tree_and_nothing_else(place: Path, moves: Moves) -> None:
    first(place)
    here, before = moves.checkpoint(), snapshot(place)
    second(place)
    there, after = moves.checkpoint(), snapshot(place)
    assert before != after
    for _ in range(3):
        warm(place)
        moves.restore(here)
        assert snapshot(place) == before
        warm(place)
        moves.restore(there)
        assert snapshot(place) == after


def test_what_stays_keeps_its_number_and_what_changes_gets_another(place: Path, moves: Moves) -> None:
    first(place)
    here = moves.checkpoint()
    numbers = {name: os.stat(place / name).st_ino for name in ("d", "d/e", "d/same", "f")}
    (place / "f").write_bytes(b"changed")
    changed = os.stat(place / "f")
    moves.checkpoint()
    warm(place)
    moves.restore(here)
    for name in ("d", "d/e", "d/same"):
        assert os.stat(place / name).st_ino == numbers[name]
    assert os.stat(place / "f").st_ino != changed.st_ino
    assert os.stat(place / "f").st_mtime_ns > changed.st_mtime_ns


def test_descriptors_and_mappings_keep_the_bytes_they_had(place: Path, moves: Moves) -> None:
    (place / "f").write_bytes(b"old." * 4096)
    (place / "gone").write_bytes(b"old.")
    here = moves.checkpoint()
    (place / "f").write_bytes(b"new." * 4096)
    (place / "later").write_bytes(b"only later")
    with (
        open(place / "f", "r+b") as held,
        open(place / "later", "rb") as later,
        mmap.mmap(held.fileno(), 0, access=mmap.ACCESS_READ) as mapping,
    ):
        assert mapping[:4] == b"new."
        moves.restore(here)
        assert mapping[8192:8196] == b"new."
        assert held.read() == b"new." * 4096
        assert later.read() == b"only later"
        assert os.fstat(held.fileno()).st_nlink == os.fstat(later.fileno()).st_nlink == 0
        held.write(b"more")  # into the void, but not into the restored file
        held.flush()
        assert (place / "f").read_bytes() == b"old." * 4096
        assert not (place / "later").exists()


def test_a_shell_stays_where_it_is(place: Path, moves: Moves) -> None:
    first(place)
    here = moves.checkpoint()
    shell = subprocess.Popen(
        [sys.executable, "-c", "import os, sys\nfor line in sys.stdin: print(eval(line), flush=True)"],
        cwd=place / "d" / "e",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert shell.stdin is not None
    assert shell.stdout is not None
    answers = shell.stdout
    asked = shell.stdin

    def ask(line: str) -> str:
        asked.write(line + "\n")
        asked.flush()
        return answers.readline().strip()

    try:
        assert ask("open('deep').read(8)") == "deep old"
        second(place)
        moves.checkpoint()
        assert ask("open('deep').read(8)") == "deep new"
        moves.restore(here)
        assert ask("open('deep').read(8)") == "deep old"
        assert ask("os.getcwd()") == str(place / "d" / "e")
        assert ask("sorted(os.listdir('..'))") == "['e', 'linked', 'same']"
    finally:
        shell.stdin.close()
        shell.wait(10)


def test_a_directory_that_vanishes_under_a_shell_is_an_error_and_comes_back_with_redo(
    place: Path, moves: Moves
) -> None:
    here = moves.checkpoint()
    (place / "d").mkdir()
    (place / "d" / "f").write_bytes(b"x")
    there = moves.checkpoint()
    fd = os.open(place / "d", os.O_RDONLY)
    try:
        moves.restore(here)
        for act in (lambda: os.stat("f", dir_fd=fd), lambda: os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=fd)):
            with pytest.raises(FileNotFoundError):
                act()
        moves.restore(there)
        assert (place / "d" / "f").read_bytes() == b"x"
    finally:
        os.close(fd)


@pytest.fixture
def watch() -> Iterator[Callable[..., Inotify]]:
    made: list[Inotify] = []

    def start(*paths: Path) -> Inotify:
        made.append(Inotify(*paths))
        return made[-1]

    yield start
    for inotify in made:
        inotify.close()


def collect(inotify: Inotify, expected: set[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
    """Events until all that are expected have come."""
    found: set[tuple[str, str, str]] = set()
    deadline = time.monotonic() + 10
    while not expected <= found and time.monotonic() < deadline:
        found |= set(inotify.events())
    return found


def test_watchers_are_told(place: Path, moves: Moves, watch: Callable[..., Inotify]) -> None:
    first(place)
    here = moves.checkpoint()
    second(place)
    moves.checkpoint()
    inotify = watch(place, place / "d", place / "d" / "e")
    top = place.name
    moves.restore(here)
    expected = {
        (top, "CREATE", "gone"),
        (top, "CLOSE_WRITE", "gone"),
        (top, "CLOSE_WRITE", "f"),
        (top, "DELETE", "new"),
        ("e", "CLOSE_WRITE", "deep"),
        ("d", "CREATE", "same"),
        ("d", "DELETE", "moved"),
    }
    assert expected - collect(inotify, expected) == set()
    moves.told()
    assert snapshot(place)["f"] == (stat.S_IFREG | 0o644, 3, 2, b"old")
    assert os.readlink(place / "s") == "old-target"


def test_nothing_is_said_of_what_did_not_change(place: Path, moves: Moves, watch: Callable[..., Inotify]) -> None:
    first(place)
    here = moves.checkpoint()
    (place / "f").write_bytes(b"changed")
    moves.checkpoint()
    inotify = watch(place / "d" / "e", place / "d" / "same")
    moves.restore(here)
    moves.told()
    assert inotify.events() == []
