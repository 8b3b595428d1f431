"""Scanner mode through the command and its daemon."""

from __future__ import annotations

import json
import os
import subprocess
from itertools import count

import pytest

from tests.conftest import need_programs
from tests.scan.stopping import nothing_sealed
from tests.scan.test_interrupted import Dying, undo
from tests.served import Served


def scan(workspace: Served, *options: str) -> object:
    return workspace.plyfs.json("mount", str(workspace.path), "--mode", "scan", *options)


def test_a_session(workspace: Served) -> None:
    (workspace.path / "a").write_text("one\n")
    mounted = scan(workspace)
    assert mounted["mode"] == "scan"  # type: ignore[index]
    (workspace.path / "a").write_text("two\n")
    made = workspace.checkpoint("second")
    assert workspace.json("undo")["from"] == made
    assert (workspace.path / "a").read_text() == "one\n"
    assert workspace.json("redo")["head"] == made
    assert workspace.json("status")["mode"] == "scan"
    assert not workspace.is_mounted()
    workspace.unmount()
    assert (workspace.path / "a").read_text() == "two\n"
    assert workspace.json("log")["head"] == made


def test_people_are_told_of_no_mount_where_there_is_none(workspace: Served) -> None:
    """The directory is the plain one: no shell has to enter it anew, and nothing is applied or waits elsewhere."""
    workspace.plyfs.environment["PWD"] = str(workspace.path)
    for how in ("--apply", "--keep"):
        mounted = workspace.plyfs.run("mount", str(workspace.path), "--mode", "scan")
        assert "below the mount" not in mounted.stderr
        assert workspace.run("unmount", how).stdout.splitlines()[0] == "unmounted; the directory stays as it is"


def test_a_label_that_names_nothing_is_told(workspace: Served) -> None:
    scan(workspace)
    told = workspace.run("checkpoint", "-m", "start")
    assert "nothing has changed" in told.stdout
    assert "no checkpoint was made that could be called start" in told.stderr
    (workspace.path / "a").write_text("x")
    assert not workspace.run("checkpoint", "-m", "start").stderr
    assert not workspace.run("checkpoint", "-m", "start").stderr


@pytest.mark.mounted
def test_the_mode_is_known_while_nothing_serves(workspace: Served) -> None:
    """The one in which the directory was used last, whichever way it goes between the two."""
    for serve, mode in [(scan, "scan"), (Served.mount, "fuse")] * 2:
        serve(workspace)
        (workspace.path / "a").write_text(mode)
        workspace.unmount()
        status = workspace.json("status")
        assert (status["mode"], status["channel"], status["mounted"]) == (mode, None, False)


def test_a_killed_daemon_is_replaced(workspace: Served) -> None:
    (workspace.path / "a").write_text("one\n")
    scan(workspace)
    (workspace.path / "a").write_text("two\n")
    made = workspace.checkpoint()
    workspace.kill()
    (workspace.path / "a").write_text("three\n")
    status = workspace.json("status")
    assert (status["head"], status["dirty"]) == (made, True)
    workspace.run("undo")
    assert (workspace.path / "a").read_text() == "two\n"


def test_all(workspace: Served) -> None:
    need_programs("git")
    subprocess.run(["git", "init", "-q", workspace.path], check=True)
    (workspace.path / ".gitignore").write_text("*.log\n")
    (workspace.path / "a.log").write_text("x")
    scan(workspace, "--all")
    names = {row["name"] for row in workspace.json("ls", "base")["entries"]}
    assert names == {".gitignore", "a.log"}


def test_no_mount_point(workspace: Served, tmp_path: object) -> None:
    point = workspace.path.parent / "point"
    point.mkdir()
    done = workspace.plyfs.run(
        "mount", str(workspace.path), "--at", str(point), "--mode", "scan", "--json", check=False
    )
    assert json.loads(done.stdout)["error"]["code"] == "usage"


def interrupted(workspace: Served) -> None:
    """Let a process die in the middle of a restore of ``a`` and ``b`` from "two" to "one"."""
    top = workspace.path
    one = Dying(top, workspace.plyfs.home)
    try:
        with nothing_sealed():
            for text in ("one", "two"):
                for name in ("a", "b"):
                    (top / name).write_text(text)
                if text == "one":
                    one.serve()
                made = one.ws.checkpoint().id
            for after in count(1):
                assert one.dies(undo, after), "never between"
                if {(top / name).read_text() for name in ("a", "b")} == {"one", "two"}:
                    break
                one.serve()
                if one.ws.status().head != made:
                    one.ws.redo()
    finally:
        one.stop()


@pytest.mark.parametrize("choice", ["--finish", "--go-back"])
@pytest.mark.parametrize("daemon", ["dead daemon", "no daemon"])
def test_doctor_lets_one_choose(workspace: Served, choice: str, daemon: str) -> None:
    if daemon == "dead daemon":
        scan(workspace)
        workspace.kill()
    interrupted(workspace)
    found = workspace.plyfs.json("doctor", check=False)
    assert not found["healthy"]
    (row,) = [row for row in found["findings"] if row["kind"] == "restore"]
    assert "--finish" in row["detail"]
    assert "--go-back" in row["detail"]
    assert {(workspace.path / name).read_text() for name in ("a", "b")} == {"one", "two"}
    done = workspace.plyfs.json("doctor", choice)
    assert [row["state"] for row in done["findings"] if row["kind"] == "restore"] == ["mended"]
    wanted = "one" if choice == "--finish" else "two"
    assert [(workspace.path / name).read_text() for name in ("a", "b")] == [wanted, wanted]
    assert sorted(os.listdir(workspace.path)) == ["a", "b"]
    status = workspace.json("status")
    assert (status["mode"], status["dirty"]) == ("scan", False)
    assert workspace.plyfs.json("doctor")["findings"] == []
    workspace.run("undo" if choice == "--go-back" else "redo")


def test_any_command_finishes_what_was_interrupted(workspace: Served) -> None:
    scan(workspace)
    workspace.kill()
    interrupted(workspace)
    assert not workspace.json("status")["dirty"]
    assert [(workspace.path / name).read_text() for name in ("a", "b")] == ["one", "one"]


@pytest.mark.root
def test_progress_of_the_first_capture(workspace: Served) -> None:
    """More than a thousand files on the way: the starting command hears how far it is, and then that it is done."""
    for number in range(1500):
        (workspace.path / f"{number}").write_text(f"{number}" * 40)
    assert scan(workspace)["mode"] == "scan"  # type: ignore[index]
    assert len(workspace.json("ls", "base")["entries"]) == 1500
