"""Scanner mode through the command and its daemon."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.conftest import need_programs
from tests.served import Served
from vfs.scan.restoring import RECORD_VERSION, RestoreFile, Restoring


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


def test_doctor_tells_of_an_interrupted_restore(workspace: Served) -> None:
    (workspace.path / "a").write_text("one\n")
    scan(workspace)
    head = workspace.json("status")["head"]
    workspace.unmount()
    from store.home import Home

    home = Home.open(str(workspace.plyfs.home))
    store = home.by_id(home.workspaces()[0].id)
    layer = store.history.get(head).layer
    assert layer is not None
    record = Restoring(RECORD_VERSION, "staging", ".plyfs-x-", head, None, (), None, head, layer, layer, (), ())
    RestoreFile(os.path.join(store.path, b"scan"), home.disk).write(record, sync=False)
    found = workspace.plyfs.json("doctor", check=False)
    assert any(row["kind"] == "restore" for row in found["findings"]), found
    scan(workspace)
    assert not any(row["kind"] == "restore" for row in workspace.plyfs.json("doctor")["findings"])


@pytest.mark.root
def test_progress_of_the_first_capture(workspace: Served) -> None:
    """More than a thousand files on the way: the starting command hears how far it is, and then that it is done."""
    for number in range(1500):
        (workspace.path / f"{number}").write_text(f"{number}" * 40)
    assert scan(workspace)["mode"] == "scan"  # type: ignore[index]
    assert len(workspace.json("ls", "base")["entries"]) == 1500
