"""A restore that is stopped after any of its effects: the next start brings exactly the old or exactly the new."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from store.disk import Disk
from tests.scan.conftest import Scanned
from tests.treestate import TreeState, capture
from vfs.scan.execute import Executor


class Stop(BaseException):
    """The process is killed here."""


class Counter:
    """Counts effects, and stops at one of them."""

    def __init__(self) -> None:
        self.armed = False
        self.count = 0
        self.at = -1

    def step(self) -> None:
        if self.armed:
            if self.count == self.at:
                self.armed = False
                raise Stop
            self.count += 1

    @contextmanager
    def stopping(self, at: int) -> Iterator[None]:
        self.armed, self.count, self.at = True, 0, at
        try:
            yield
        finally:
            self.armed = False


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    counter = Counter()
    for name in ("replace", "unlink"):
        original = getattr(Disk, name)

        def stopping(self: Disk, *arguments: Any, _original: Any = original, **named: Any) -> Any:
            counter.step()
            return _original(self, *arguments, **named)

        monkeypatch.setattr(Disk, name, stopping)
    monkeypatch.setattr(Executor, "step", lambda self: counter.step())
    return counter


def state(path: Path) -> TreeState:
    return capture(path, times=False)


def fill(scanned: Scanned) -> None:
    """A tree with one of everything."""
    scanned.write("kept", "kept")
    scanned.write("over", "before")
    scanned.write("gone/deep/er", "gone")
    scanned.write("gone/by", "by")
    scanned.write("moved/inside", "inside")
    scanned.write("moved/more/x", "x")
    scanned.write("a", "this is a")
    scanned.write("b", "this is b")
    scanned.write("becomes", "a directory")
    scanned.write("was/dir", "was a directory")
    scanned.write("mode", "mode").chmod(0o640)
    scanned.write("big", os.urandom(300_000))
    (scanned.path / "link").symlink_to("kept")
    (scanned.path / "empty").mkdir()
    os.link(scanned.path / "kept", scanned.path / "hard")
    os.mkfifo(scanned.path / "fifo")


def rework(scanned: Scanned) -> None:
    """Change it in every way."""
    top = scanned.path
    (top / "over").write_text("after")
    for name in ("gone/deep/er", "gone/by", "fifo", "becomes"):
        os.unlink(top / name)
    os.rmdir(top / "gone/deep")
    os.rmdir(top / "gone")
    os.rename(top / "moved", top / "elsewhere")
    (top / "elsewhere/inside").write_text("changed inside")
    os.rename(top / "a", top / "t")
    os.rename(top / "b", top / "a")
    os.rename(top / "t", top / "b")
    scanned.write("becomes/now", "inside")
    os.unlink(top / "was/dir")
    os.rmdir(top / "was")
    (top / "was").write_text("a file")
    (top / "mode").chmod(0o600)
    os.unlink(top / "link")
    (top / "link").symlink_to("over")
    os.unlink(top / "hard")
    scanned.write("new/tree/of", "files")
    (top / "empty").chmod(0o700)


def scene(scanned: Scanned) -> tuple[TreeState, TreeState, str, str]:
    """(old state, new state, old head, new head): the restore to come goes from the old to the new."""
    fill(scanned)
    ws = scanned.start()
    target = ws.status().head
    wanted = state(scanned.path)
    rework(scanned)
    head = ws.checkpoint().id
    return state(scanned.path), wanted, head, target


def test_every_step(scanned: Scanned, counter: Counter) -> None:
    old, new, head, target = scene(scanned)
    seen: set[bool] = set()
    at = 0
    while True:
        try:
            with counter.stopping(at):
                scanned.ws.undo()
        except Stop:
            scanned.die()
            ws = scanned.start()
            found = state(scanned.path)
            finished = not found.differences(new)
            seen.add(finished)
            assert finished or not found.differences(old), (at, found.differences(new), found.differences(old))
            status = ws.status()
            assert status.head == (target if finished else head), at
            assert not status.dirty, (at, ws.diff().changes)
            assert not ws.timeline.restore_file.read(), at
            if finished:
                ws.redo()
                assert not state(scanned.path).differences(old), at
        else:
            break
        at += 1
    assert at > 40
    assert seen == {True, False}
    assert not state(scanned.path).differences(new)


def test_stopped_again_while_it_is_finished(scanned: Scanned, counter: Counter) -> None:
    old, new, _, _ = scene(scanned)
    for at in range(40, 400, 7):
        try:
            with counter.stopping(at):
                scanned.ws.undo()
        except Stop:
            scanned.die()
        else:
            break
        for again in range(0, 60, 9):
            try:
                with counter.stopping(again):
                    scanned.start()
                break
            except Stop:
                scanned.die()
        else:
            scanned.start()
        found = state(scanned.path)
        assert not found.differences(new) or not found.differences(old), (at, found.differences(new))
        if not found.differences(new):
            scanned.ws.redo()


def test_work_after_the_crash_is_kept(scanned: Scanned, counter: Counter) -> None:
    _, _, head, target = scene(scanned)
    with pytest.raises(Stop), counter.stopping(35):
        scanned.ws.undo()
    scanned.die()
    (scanned.path / "kept").write_text("somebody works on")
    ws = scanned.start()
    assert (scanned.path / "kept").read_text() == "somebody works on"
    assert ws.status().head in (head, target)


def test_what_was_moved_aside_is_never_removed(scanned: Scanned, counter: Counter) -> None:
    """Somebody has put other things in both places of a file that a crash left between them."""
    scanned.write("d/a", "moved")
    ws = scanned.start()
    os.rename(scanned.path / "d/a", scanned.path / "d/b")
    made = ws.checkpoint().id
    at = 0
    while True:
        try:
            with counter.stopping(at):
                scanned.ws.undo()
        except Stop:
            scanned.die()
            aside = [name for name in os.listdir(scanned.path / "d") if name.startswith(".plyfs-")]
            if aside:
                break
            if scanned.start().status().head != made:
                scanned.ws.redo()
        else:
            raise AssertionError("never between the two places")
        at += 1
    for name in ("a", "b"):
        scanned.write(f"d/{name}", "new")
    scanned.start()
    assert {(scanned.path / "d" / name).read_text() for name in os.listdir(scanned.path / "d")} == {"new", "moved"}
