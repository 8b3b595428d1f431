"""What a restore does to others that are there: readers, watchers, shells, meddlers; and what stops it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from store.errors import DamagedError, MissingError
from tests.contract.inotify import Inotify
from tests.scan.conftest import Scanned, kinds
from tests.treestate import capture
from vfs.scan.execute import Executor
from vfs.workspace import WorkspaceError


def test_a_file_is_there_at_every_step_of_a_restore(scanned: Scanned) -> None:
    seen = set()

    class Looking(Executor):
        def step(self) -> None:
            for name in ("f", "d/f"):
                seen.add((scanned.path / name).read_text())

    for name in ("f", "d/f"):
        scanned.write(name, "first" * 10000)
    ws = scanned.start(executor=Looking)
    for name in ("f", "d/f"):
        scanned.write(name, "second" * 10000)
    ws.checkpoint()
    ws.undo()
    assert seen == {"first" * 10000, "second" * 10000}


def test_who_has_it_open_keeps_what_it_was(scanned: Scanned) -> None:
    scanned.write("over", "first")
    ws = scanned.start()
    scanned.write("over", "second")
    scanned.write("gone", "going")
    scanned.write("unlinked", "unlinked")
    with (
        open(scanned.path / "over") as over,
        open(scanned.path / "gone") as gone,
        open(scanned.path / "unlinked") as no,
    ):
        os.unlink(scanned.path / "unlinked")
        ws.checkpoint()
        ws.undo()
        assert (over.read(), gone.read(), no.read()) == ("second", "going", "unlinked")
        assert os.fstat(over.fileno()).st_nlink == os.fstat(gone.fileno()).st_nlink == 0
        ws.redo()
    assert scanned.names() == ["gone", "over"]


def test_a_running_program_is_replaced(scanned: Scanned) -> None:
    sleep, true = shutil.which("sleep"), shutil.which("true")
    assert sleep and true
    shutil.copy(true, scanned.path / "program")
    ws = scanned.start()
    os.unlink(scanned.path / "program")
    shutil.copy(sleep, scanned.path / "program")
    ws.checkpoint()
    running = subprocess.Popen([scanned.path / "program", "100"])
    try:
        ws.undo()
        assert subprocess.run([scanned.path / "program"], check=False).returncode == 0
        assert running.poll() is None
    finally:
        running.kill()
        running.wait()


def test_working_directories(scanned: Scanned) -> None:
    """What stays keeps its directory; what goes is ENOENT."""
    scanned.write("stays/f", "first")
    ws = scanned.start()
    scanned.write("stays/f", "second")
    scanned.write("goes/f", "x")
    ws.checkpoint()
    script = "read line; cat f 2>&1; pwd -P >/dev/null; touch new 2>&1 || true"
    shells = {
        name: subprocess.Popen(["sh", "-c", script], cwd=scanned.path / name, stdin=-1, stdout=-1, encoding="utf-8")
        for name in ("stays", "goes")
    }
    ws.undo()
    out = {name: shell.communicate("\n", timeout=10)[0] for name, shell in shells.items()}
    assert out["stays"] == "first"
    assert "No such file" in out["goes"]
    assert scanned.names() == ["stays", "stays/f", "stays/new"]


def test_watchers_see_what_changes_and_nothing_else(scanned: Scanned) -> None:
    for name in ("d/over", "d/same", "d/gone", "e/same"):
        scanned.write(name, "first")
    ws = scanned.start()
    scanned.write("d/over", "second")
    os.unlink(scanned.path / "d/gone")
    scanned.write("d/new", "new")
    ws.checkpoint()
    watch = Inotify(scanned.path / "d", scanned.path / "e", scanned.path / "d/same", scanned.path / "e/same")
    try:
        ws.undo()
        events = [event for event in watch.events() if not event[2].startswith(".plyfs-")]
    finally:
        watch.close()
    assert set(events) == {("d", "MOVED_TO", "over"), ("d", "MOVED_TO", "gone"), ("d", "DELETE", "new")}


def test_what_appears_during_the_moves_is_kept(scanned: Scanned) -> None:
    """In a directory that goes, where a file comes, where a directory comes, where one moves to."""

    class Meddling(Executor):
        def move(self) -> None:
            for name in ("goes/mine", "comes", "made", "moves"):
                scanned.write(name, "mine")
            super().move()

    scanned.write("comes", "first")
    scanned.write("made/inner", "first")
    scanned.write("moves/inner", "first")
    ws = scanned.start(executor=Meddling)
    scanned.write("goes/theirs", "second")
    os.unlink(scanned.path / "comes")
    shutil.rmtree(scanned.path / "made")
    os.rename(scanned.path / "moves", scanned.path / "moved")
    ws.checkpoint()
    undone = ws.undo()
    for name in ("goes/mine", "comes", "made", "moves"):
        assert (scanned.path / name).read_text() == "mine", name
    assert {row.path for row in undone.kept} >= {"goes", "comes", "made", "moves"}
    assert not (scanned.path / "goes/theirs").exists()
    (told,) = [row.reason for row in undone.kept if row.path == "moves"]
    where = told.rpartition(" ")[2]
    assert (scanned.path / where / "inner").read_text() == "first", "what had no place is where it is told to be"
    assert ws.status().dirty


@pytest.mark.parametrize("where", ["out of it", "within it"])
def test_a_directory_becomes_a_link_during_the_moves(scanned: Scanned, tmp_path: Path, where: str) -> None:
    """Nothing is written, renamed or removed through it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("over", "gone", "new"):
        (outside / name).write_text("outside")

    class Meddling(Executor):
        def move(self) -> None:
            os.rename(scanned.path / "d", scanned.path / "was" if where == "within it" else tmp_path / "was")
            (scanned.path / "d").symlink_to(outside)
            super().move()

    scanned.write("a", "first")
    scanned.write("d/over", "first")
    scanned.write("d/gone", "first")
    ws = scanned.start(executor=Meddling)
    scanned.write("a", "second")
    scanned.write("d/over", "second")
    os.unlink(scanned.path / "d/gone")
    scanned.write("d/new", "second")
    ws.checkpoint()
    ws.undo()
    assert {path.name: path.read_text() for path in outside.iterdir()} == dict.fromkeys(
        ["over", "gone", "new"], "outside"
    )
    assert (scanned.path / "d").is_symlink()
    assert (scanned.path / "a").read_text() == "first"
    assert ws.status().dirty


@pytest.mark.parametrize("how", ["cut", "flipped", "missing"])
@pytest.mark.parametrize("size", [1000, 3_000_000])
def test_a_damaged_object_stops_everything(scanned: Scanned, how: str, size: int) -> None:
    """Also one of the many of a large file; what it does not concern can be brought back."""
    scanned.write("a", "first")
    scanned.write("d/f", os.urandom(size))
    ws = scanned.start()
    base = ws.status().head
    os.unlink(scanned.path / "d/f")
    scanned.write("a", "second")
    scanned.write("new", "second")
    ws.checkpoint()
    ws = scanned.again()
    before = capture(scanned.path)
    objects = Path(os.fsdecode(ws.timeline.home.objects.path(ws.timeline.baseline_layer))).parents[1]
    victim = max((path for path in objects.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    victim.chmod(0o600)
    if how == "missing":
        victim.unlink()
    elif how == "cut":
        os.truncate(victim, 10)
    else:
        data = bytearray(victim.read_bytes())
        data[len(data) // 2] ^= 1
        victim.write_bytes(data)
    with pytest.raises((DamagedError, MissingError), match="d/f"):
        ws.undo()
    assert not capture(scanned.path).differences(before)
    assert kinds(ws.restore(base, ["a"]).changes) == {"a": "overwrite"}
    assert (scanned.path / "a").read_text() == "first"


@pytest.mark.root
def test_a_mounted_file_stops_a_restore(scanned: Scanned) -> None:
    """Which leaves nothing half done and names the file; the rest can be brought back without it."""
    for name in "amz":
        scanned.write(name, "first")
    outside = scanned.path.with_name("outside")
    outside.write_text("first")
    subprocess.run(["mount", "--bind", outside, scanned.path / "m"], check=True)
    try:
        ws = scanned.start()
        base = ws.status().head
        for name in "amz":
            scanned.write(name, "second")
        made = ws.checkpoint().id
        before = capture(scanned.path, times=False)
        with pytest.raises(WorkspaceError, match=r"stopped at m: .*; the workspace is as it was before"):
            ws.undo()
        assert not capture(scanned.path, times=False).differences(before)
        assert (ws.status().head, ws.status().dirty) == (made, False)
        ws.restore(base, ["a", "z"])
        assert [(scanned.path / name).read_text() for name in "amz"] == ["first", "second", "first"]
    finally:
        subprocess.run(["umount", "-l", scanned.path / "m"], check=True)
