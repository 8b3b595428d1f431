"""Somebody edits the real directory while an unmount writes it, or the moment it is done: the next mount tells."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from tests.served import Served

pytestmark = [pytest.mark.mounted, pytest.mark.crash]

MANY = [f"{number:04}" for number in range(400)]


def overwrite(path: Path) -> None:
    """Other bytes in place, as many as there were, and the times are put back."""
    status = path.stat()
    with open(path, "r+b") as file:
        file.write(b"theirs"[: status.st_size])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def kinds(workspace: Served) -> list[str]:
    return [row["kind"] for row in workspace.json("log")["checkpoints"]]


def told(workspace: Served, ours: str) -> None:
    """``file`` is theirs, the log says so, and the checkpoint still has ours."""
    assert (workspace.path / "file").read_bytes() == b"theirs"
    rows = workspace.json("log")["checkpoints"]
    assert rows[-1]["kind"] == "outside"
    assert workspace.run("cat", f"{ours}:file").stdout == "ours.."
    assert [change["path"] for change in workspace.json("diff", ours, "@")["changes"]] == ["file"]


def test_right_after(workspace: Served) -> None:
    """Within a tick of the clock that stamps files, with everything as it was but the bytes and the change time."""
    for _ in range(4):
        workspace.mount()
        (workspace.path / "file").write_bytes(b"ours..")
        ours = workspace.checkpoint()
        workspace.unmount()
        overwrite(workspace.path / "file")
        workspace.mount()
        told(workspace, ours)
        workspace.unmount()


def test_meanwhile(workspace: Served) -> None:
    """As soon as the mount is gone, and again and again until the unmount returns."""
    workspace.mount()
    (workspace.path / "file").write_bytes(b"ours..")
    for name in MANY:
        (workspace.path / name).write_text(name)
    ours = workspace.checkpoint()
    over = threading.Event()
    edits = 0

    def edit() -> None:
        nonlocal edits
        while not over.is_set():
            if not workspace.is_mounted() and (workspace.path / "file").exists():
                overwrite(workspace.path / "file")
                edits += 1
            time.sleep(0.001)

    editor = threading.Thread(target=edit)
    editor.start()
    workspace.unmount()
    over.set()
    editor.join()
    assert edits
    workspace.mount()
    told(workspace, ours)
    workspace.unmount()
    workspace.mount()
    assert kinds(workspace)[-1] == "outside" and kinds(workspace).count("outside") == 1
    workspace.plyfs.run("fsck")


def test_between_a_kill_and_the_next_mount(workspace: Served) -> None:
    """An unmount dies half way, and what it had written already is edited before it is finished."""
    workspace.mount()
    (workspace.path / "file").write_bytes(b"ours..")
    for name in MANY:
        (workspace.path / name).write_text(name)
    ours = workspace.checkpoint()
    killed = threading.Event()

    def kill() -> None:
        (directory,) = (workspace.plyfs.home / "workspaces").iterdir()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            done = [path for path in (directory / "apply").glob("progress-*") if b"out" in path.read_bytes()]
            if done and (workspace.path / "0000").exists():
                workspace.kill()
                killed.set()
                return

    killer = threading.Thread(target=kill)
    killer.start()
    workspace.run("unmount", check=False)
    killer.join()
    assert killed.is_set()
    victim = workspace.path / "0000"
    victim.write_text("them")
    workspace.mount()
    assert sorted(os.listdir(workspace.path)) == [*MANY, "file"]
    assert victim.read_text() == "them"
    assert kinds(workspace)[-1] == "outside"
    assert workspace.run("cat", f"{ours}:0000").stdout == "0000"
    assert workspace.json("diff", ours, "@")["changes"] == [{"path": "0000", "kind": "overwrite", "from": None}] or [
        change["path"] for change in workspace.json("diff", ours, "@")["changes"]
    ] == ["0000"]
