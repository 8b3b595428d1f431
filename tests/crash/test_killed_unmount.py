"""An unmount that applies is killed, or fails, at its last steps: what it wrote is never taken for somebody else's."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.served import Plyfs, Served

pytestmark = [pytest.mark.mounted, pytest.mark.crash]


def part(workspace: Served, name: str) -> Path:
    """A file of the workspace's part of the store."""
    (directory,) = (workspace.plyfs.home / "workspaces").iterdir()
    return directory / name


def kinds(workspace: Served) -> list[str]:
    return [row["kind"] for row in workspace.json("log")["checkpoints"]]


def test_killed_before_it_remembers_what_it_wrote(workspace: Served) -> None:
    workspace.mount()
    (workspace.path / "file").write_text("first")
    workspace.remount()
    shutil.copy2(part(workspace, "known"), old := part(workspace, "known").with_suffix(".old"))
    (workspace.path / "file").write_text("second")
    second = workspace.checkpoint("second")
    workspace.unmount()
    old.rename(part(workspace, "known"))
    workspace.mount()
    assert "outside" not in kinds(workspace)
    workspace.json("restore", second)
    assert (workspace.path / "file").read_text() == "second"


@pytest.mark.parametrize("recorded", [True, False], ids=["the checkpoint is there", "it is not"])
def test_killed_while_it_tells_of_changes_outside(workspace: Served, recorded: bool) -> None:
    """The generation has ended, and the head does not know it yet."""
    workspace.mount()
    (workspace.path / "file").write_text("ours")
    ours = workspace.checkpoint("ours")
    workspace.unmount()
    (workspace.path / "file").write_text("theirs")
    names = ["known", "head", *([] if recorded else ["history"])]
    for name in names:
        shutil.copy2(part(workspace, name), part(workspace, f"{name}.old"))
    workspace.mount()
    workspace.unmount("--discard")
    for name in names:
        part(workspace, f"{name}.old").rename(part(workspace, name))
    workspace.mount()
    assert kinds(workspace) == ["base", "user", "outside"]
    assert workspace.json("log")["checkpoints"][-1]["id"] == workspace.json("log")["head"]
    assert (workspace.path / "file").read_text() == "theirs"
    workspace.json("restore", ours)
    assert (workspace.path / "file").read_text() == "ours"
    workspace.json("undo")
    workspace.remount()
    assert kinds(workspace) == ["base", "user", "outside"]


@pytest.fixture
def cramped(tmp_path: Path) -> Iterator[Served]:
    """A workspace whose store has a small file system of its own."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", place], check=True)
    plyfs = Plyfs(top=place)
    try:
        path = tmp_path / "workspace"
        path.mkdir()
        yield Served(plyfs, path)
    finally:
        plyfs.close()
        subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.root
def test_a_full_store_after_the_commit(cramped: Served) -> None:
    """The directory is half way: it is not served like that, and the next mount brings it to the end."""
    workspace, path = cramped, cramped.path
    filling = workspace.plyfs.top / "filling"
    names = [f"{number:04}" for number in range(1500)]
    for name in names:
        (path / name).write_text(name)
    workspace.mount()
    for name in names:
        (path / name).rename(path / f"new-{name}")
    workspace.checkpoint("renamed", "--sync")
    full = threading.Event()

    def fill() -> None:
        plan = part(workspace, "apply/plan")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not plan.exists():
            pass
        with open(filling, "wb") as file:
            try:
                while True:
                    file.write(bytes(65536))
                    file.flush()
            except OSError:
                full.set()

    filler = threading.Thread(target=fill)
    filler.start()
    done = workspace.run("unmount", check=False, timeout=120)
    filler.join()
    assert full.is_set()
    assert not workspace.is_mounted()
    filling.unlink()
    if done.returncode != 0:
        assert "half way" in done.stderr
    workspace.mount()
    assert sorted(os.listdir(path)) == [f"new-{name}" for name in names]
    assert (path / "new-0007").read_text() == "0007"
    workspace.unmount()
    assert sorted(os.listdir(path)) == [f"new-{name}" for name in names]
    workspace.plyfs.run("fsck")
