"""A restore that is stopped after any of its effects, on the store or on the workspace: the next start brings exactly
the old or exactly the new, as is chosen.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from store.disk import Disk
from tests.model.machine import memory_directory
from tests.scan.conftest import Scanned
from tests.scan.stopping import FaultyPlatform, nothing_sealed
from tests.store.faulty_disk import Crash, FaultyDisk
from tests.treestate import TreeState, capture
from vfs.scan.restoring import RestoreFile, Restoring
from vfs.scan.scanned import ScannedWorkspace


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with nothing_sealed():
        yield


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


class Dying(Scanned):
    """A scanned workspace whose process dies after the effect that it is told."""

    disk: FaultyDisk

    def serve(self) -> ScannedWorkspace:
        """Serve it, as often as it dies."""
        self.disk = FaultyDisk()
        return self.start(platform=FaultyPlatform(self.disk), disk=self.disk)

    def dies(self, act: Callable[[ScannedWorkspace], object], after: int, torn: bool = False) -> bool:
        """True if ``act`` has so many effects; then it died after the last of them."""
        self.disk.effects.clear()
        self.disk._stop_after, self.disk._torn = after, torn
        try:
            act(self.ws)
        except Crash:
            self.die()
            return True
        self.disk._stop_after = None
        return False

    def under_way(self) -> Restoring | None:
        """The record of a restore that was interrupted."""
        return self.ws.timeline.restore_file.read()

    def choose(self, choice: str) -> None:
        """As ``plyfs doctor`` does."""
        directory = os.path.join(self.ws.timeline.store.path, b"scan")
        RestoreFile(directory, Disk()).choose("moving" if choice == "finish" else "returning")


@pytest.fixture
def dying(tmp_path: Path) -> Iterator[Dying]:
    """A workspace with one of everything, changed in every way since ``base``; served."""
    memory = memory_directory()
    top = Path(tempfile.mkdtemp(prefix="plyfs-dying-", dir=memory)) if memory else tmp_path
    (top / "workspace").mkdir()
    one = Dying(top / "workspace", top / "home")
    try:
        fill(one)
        one.serve()
        rework(one)
        one.ws.checkpoint()
        yield one
    finally:
        one.stop()
        if memory:
            shutil.rmtree(top)


def first(ws: ScannedWorkspace) -> str:
    return ws.log().checkpoints[0].id


def restore(ws: ScannedWorkspace) -> object:
    return ws.restore(first(ws))


def undo(ws: ScannedWorkspace) -> object:
    return ws.undo()


def leave_unsaved_work(ws: ScannedWorkspace) -> object:
    return ws.restore(first(ws))


def bring_back_paths(ws: ScannedWorkspace) -> object:
    return ws.restore(first(ws), ["gone", "moved", "becomes", "hard", "over", "a"])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("choice", ["finish", "go back"])
@pytest.mark.parametrize("act", [restore, leave_unsaved_work, bring_back_paths])
def test_every_effect(dying: Dying, act: Callable[[ScannedWorkspace], object], choice: str) -> None:
    seen: set[tuple[str, bool]] = set()
    saved = dying.ws.status().head
    act(dying.ws)
    new = state(dying.path)
    for after in count(1):
        ws = dying.ws
        ws.restore(saved)
        if act is leave_unsaved_work:
            dying.write("unsaved", f"{after}")
        log = ws.log()
        old = state(dying.path)
        if not dying.dies(act, after, torn=after % 2 == 0):
            break
        left = dying.under_way()
        stood = "nothing" if left is None else left.state
        dying.choose(choice)
        ws = dying.serve()
        found = state(dying.path)
        finished = not found.differences(new)
        seen.add((stood, finished))
        assert finished or not found.differences(old), (after, found.differences(new), found.differences(old))
        if stood == "moving":
            assert finished == (choice == "finish"), after
        if stood == "staging":
            assert not finished, after
        assert dying.under_way() is None, after
        now = ws.log()
        assert (now.head != log.head) == finished, after
        assert now.dirty == (log.dirty and not finished), (after, ws.diff().changes)
        if not finished:
            assert now.redo == log.redo, after
    assert after > 60
    assert seen >= {("staging", False), ("moving", choice == "finish")}
    assert not state(dying.path).differences(new)


def test_records_that_were_torn_off_are_as_if_not_written(dying: Dying) -> None:
    """What was recorded before them counts: else the times of restored files would look like changes."""
    restore(dying.ws)
    for after in count(1):
        dying.write("more", f"{after}")
        if not dying.dies(ScannedWorkspace.checkpoint, after, torn=True):
            break
        ws = dying.serve()
        assert {change.path for change in ws.diff().changes} <= {"more"}, after
        ws.checkpoint()
    assert "append" in dying.disk.effects


def test_stopped_again_while_it_is_settled(dying: Dying) -> None:
    """Dying, again and again, while what was interrupted is finished or taken back."""
    old = state(dying.path)
    saved = dying.ws.status().head
    restore(dying.ws)
    new = state(dying.path)
    for after in range(30, 1000, 11):
        if dying.ws.status().head != saved:
            dying.ws.restore(saved)
        if not dying.dies(restore, after):
            break
        moving = dying.under_way() is not None and dying.under_way().state == "moving"  # type: ignore[union-attr]
        wanted = old if after % 2 else new
        dying.choose("go back" if wanted is old else "finish")
        for again in range(3, 300, 9):
            dying.disk = FaultyDisk(again)
            try:
                dying.start(platform=FaultyPlatform(dying.disk), disk=dying.disk)
                dying.disk._stop_after = None
                break
            except Crash:
                dying.die()
        found = state(dying.path)
        assert not found.differences(wanted) or not moving, (after, found.differences(wanted))
        assert not found.differences(new) or not found.differences(old), after


@pytest.mark.parametrize("choice", ["finish", "go back"])
def test_work_after_the_crash_is_kept(dying: Dying, choice: str) -> None:
    """Where the restore had been already, where it had not, and where it had nothing to do."""
    head = dying.ws.status().head
    for after in count(1):
        assert dying.dies(restore, after)
        left = dying.under_way()
        if left is not None and left.state == "moving" and (dying.path / "over").read_text() == "before":
            break
        dying.serve().restore(head)
    for name in ("kept", "over", "b"):
        (dying.path / name).write_text("somebody works on")
    dying.choose(choice)
    ws = dying.serve()
    for name in ("kept", "over", "b"):
        assert (dying.path / name).read_text() == "somebody works on"
    assert (ws.status().head == head) == (choice == "go back")
    assert (dying.path / "moved/inside").exists() == (choice == "finish")


def test_what_was_moved_aside_is_never_removed(dying: Dying) -> None:
    """Somebody has put other things in both places of a file that a crash left between them."""
    dying.write("d/a", "moved")
    dying.ws.checkpoint()
    os.rename(dying.path / "d/a", dying.path / "d/b")
    made = dying.ws.checkpoint().id
    for after in count(1):
        assert dying.dies(undo, after), "never between the two places"
        if [name for name in os.listdir(dying.path / "d") if name.startswith(".plyfs-")]:
            break
        if dying.serve().status().head != made:
            dying.ws.redo()
    for name in ("a", "b"):
        dying.write(f"d/{name}", "new")
    dying.serve()
    assert {(dying.path / "d" / name).read_text() for name in os.listdir(dying.path / "d")} == {"new", "moved"}
