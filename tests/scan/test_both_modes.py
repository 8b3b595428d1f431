"""One workspace, now mounted, now scanned: each mode reads and restores the checkpoints of the other."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.scan.test_damage import damage
from tests.served import Plyfs, Served
from tests.treestate import TreeState, capture

pytestmark = [pytest.mark.mounted, pytest.mark.timeout(150)]

GIT = frozenset({".git"})


def state(served: Served) -> TreeState:
    return capture(served.path, skip=GIT, times=False)


class Story:
    """What the workspace was at each checkpoint."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.known: dict[str, TreeState] = {}

    def serve(self, mode: str) -> Any:
        return self.served.plyfs.json("mount", str(self.served.path), "--mode", mode)

    def checkpoint(self) -> str:
        id = self.served.checkpoint()
        self.known[id] = state(self.served)
        return id

    def head(self) -> str:
        id = str(self.served.json("status")["head"])
        self.known.setdefault(id, state(self.served))
        return id

    def goes(self, id: str) -> Any:
        done = self.served.json("restore", id)
        assert not state(self.served).differences(self.known[id]), id
        assert not self.served.json("status")["dirty"], self.served.json("diff")
        return done

    def write(self, name: str, text: str) -> None:
        path = self.served.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def edit(self, number: int) -> None:
        """A little of everything."""
        top = self.served.path
        self.write("over", f"version {number}")
        self.write(f"new{number}/file", f"file {number}")
        self.write(f"big{number}", str(number) * 300_000)
        if number > 1:
            os.rename(top / f"new{number - 1}", top / f"moved{number}")
            os.unlink(top / f"big{number - 1}")
        (top / "mode").chmod(0o600 + number)
        if (top / "link").is_symlink():
            os.unlink(top / "link")
        (top / "link").symlink_to(f"to{number}")


@pytest.fixture
def story(plyfs: Plyfs, tmp_path: Path) -> Story:
    path = tmp_path / "workspace"
    path.mkdir()
    story = Story(Served(plyfs, path))
    for name in ("kept", "over", "mode", "d/deep/er"):
        story.write(name, "first")
    os.link(path / "kept", path / "hard")
    return story


@pytest.mark.parametrize("first", ["fuse", "scan"])
def test_there_and_back(story: Story, first: str) -> None:
    second = "scan" if first == "fuse" else "fuse"
    ids = []
    for number, mode in enumerate((first, second, first, second), 1):
        story.serve(mode)
        ids.append(story.head())
        story.edit(number)
        ids.append(story.checkpoint())
        for id in dict.fromkeys([ids[0], ids[len(ids) // 2], ids[-1]]):
            story.goes(id)
        story.served.unmount()
        assert not state(story.served).differences(story.known[ids[-1]])
    for mode in ("fuse", "scan"):
        story.serve(mode)
        for id in dict.fromkeys(reversed(ids)):
            story.goes(id)
        story.served.unmount()
        done = json.loads(story.served.plyfs.run("fsck", "--json").stdout)
        assert done.get("problems", []) == [], done


def test_what_a_scan_left_out_survives_a_mounts_restore(story: Story) -> None:
    top = story.served.path
    subprocess.run(["git", "init", "-q", top], check=True)
    story.write(".gitignore", "node_modules/\n*.log\n")
    story.write("node_modules/m/index", "one")
    story.write("a.log", "one")
    story.serve("scan")
    base = story.head()
    story.write("over", "second")
    story.write(".gitignore", "*.log\n")
    later = story.checkpoint()
    story.served.unmount()
    story.serve("fuse")
    story.write("node_modules/m/index", "two")
    story.write("a.log", "two")
    story.write("b.log", "made in the mount")
    story.served.json("restore", base)
    assert (top / "over").read_text() == "first"
    assert (top / "node_modules/m/index").read_text() == "two"
    assert (top / "a.log").read_text() == "two"
    assert (top / "b.log").read_text() == "made in the mount"
    assert (top / ".git/HEAD").exists()
    assert not story.served.json("status")["dirty"]
    story.served.json("restore", later)
    story.served.unmount()
    for name in ("a.log", "b.log", "node_modules/m/index"):
        assert (top / name).exists()
    story.serve("scan")
    story.served.json("restore", base)
    assert (top / "node_modules/m/index").read_text() == "one"  # as ``later`` has it
    assert (top / "b.log").exists()


def test_a_mounts_checkpoint_does_not_touch_what_is_ignored_now(story: Story) -> None:
    top = story.served.path
    subprocess.run(["git", "init", "-q", top], check=True)
    story.write(".gitignore", "*.log\n")
    story.write("a.log", "one")
    story.serve("fuse")
    base = story.head()
    story.write("a.log", "two")
    story.write("over", "second")
    story.served.checkpoint()
    story.served.unmount()
    story.serve("scan")
    done = story.served.json("restore", base)
    assert (top / "over").read_text() == "first"
    assert (top / "a.log").read_text() == "two"
    assert "a.log" not in {row["path"] for row in done["changes"]}
    assert (top / ".git/HEAD").exists()
    assert story.served.plyfs.run("cat", "-C", str(top), f"{base}:over").stdout == "first"


def test_edits_between_the_modes_are_found(story: Story) -> None:
    top = story.served.path
    story.serve("scan")
    base = story.head()
    story.served.unmount()
    story.write("over", "edited while nothing served it")
    story.serve("fuse")
    assert (top / "over").read_text() == "edited while nothing served it"
    head = story.head()
    assert head != base
    story.goes(base)
    story.goes(head)
    story.served.unmount()
    story.write("over", "again")
    story.serve("scan")
    assert (top / "over").read_text() == "again"
    story.goes(base)
    story.goes(head)


@pytest.mark.parametrize("how", ["lost", "flipped"])
def test_a_mount_after_what_scans_remember_was_lost(story: Story, how: str) -> None:
    """The directory is what counts, not the head: what was not saved is in the mount, and in the log."""
    top = story.served.path
    story.serve("scan")
    story.head()
    story.write("over", "second")
    made = story.served.checkpoint("second", "--sync")
    story.write("over", "unsaved")
    story.write("new", "unsaved")
    (store,) = (story.served.plyfs.home / "workspaces").iterdir()
    story.served.kill()
    damage(store / "scan/state", how)
    story.serve("fuse")
    assert story.served.json("log")["checkpoints"][-1]["parent"] == made
    for _ in range(2):
        assert (top / "over").read_text() == (top / "new").read_text() == "unsaved"
        story.served.json("undo")
        assert (top / "over").read_text() == "second"
        assert not (top / "new").exists()
        story.served.json("undo")
        assert (top / "over").read_text() == "first"
        story.served.json("redo", "2")
    story.served.unmount()
    assert (top / "over").read_text() == "unsaved"


def test_kept_changes_must_be_written_first(story: Story) -> None:
    story.serve("fuse")
    story.write("over", "kept in the store")
    story.served.unmount("--keep")
    done = story.served.plyfs.run("mount", str(story.served.path), "--mode", "scan", "--json", check=False)
    assert done.returncode != 0
    assert "wait in the store" in done.stdout
    story.serve("fuse")
    story.served.unmount()
    story.serve("scan")
    assert (story.served.path / "over").read_text() == "kept in the store"


def test_a_link_that_a_mount_divided_is_written_to_while_scanning(story: Story) -> None:
    """What an unmount put away was one file with what stayed; from then on it must not be."""
    top = story.served.path
    for kept, gone in (("a", "b"), ("c", "d/e"), ("both/f", "both/g")):
        story.write(kept, f"{kept} {gone}")
        (top / gone).parent.mkdir(exist_ok=True)
        os.link(top / kept, top / gone)
    (top / "d" / "e").chmod(0o640)
    os.utime(top / "d", ns=(1, 1_500_000_000_000_000_001))
    story.serve("fuse")
    first = story.head()
    subprocess.run(["rm", "-r", "b", "d", "both"], cwd=top, check=True)
    story.checkpoint()
    story.served.unmount()
    story.serve("scan")
    for kept in ("a", "c"):
        with open(top / kept, "r+") as file:
            file.write("WRITTEN")
    assert story.served.json("fsck")["sound"]
    story.served.json("restore", first)
    texts = {name: (top / name).read_text() for name in ("a", "b", "c", "d/e", "both/f", "both/g")}
    assert texts == {
        "a": "a b",
        "b": "a b",
        "c": "c d/e",
        "d/e": "c d/e",
        "both/f": "both/f both/g",
        "both/g": "both/f both/g",
    }
    assert (top / "d" / "e").stat().st_mode & 0o777 == 0o640
    assert (top / "both" / "f").stat().st_ino == (top / "both" / "g").stat().st_ino
    assert not list(Path(story.served.plyfs.home).rglob("apart"))


def test_auto_falls_back_and_says_why(plyfs: Plyfs, tmp_path: Path) -> None:
    """In a mount namespace where /dev/fuse is not what it should be."""
    path = tmp_path / "workspace"
    path.mkdir()
    (path / "f").write_text("x")
    hide = 'mount --bind /dev/null /dev/fuse && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", hide, "sh", *plyfs.command("mount", str(path), "--json")]
    repo = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        command, env={**plyfs.environment, "PYTHONPATH": repo}, capture_output=True, check=False, cwd="/"
    )
    if b"unshare" in done.stderr:
        pytest.skip(f"NOT RUN: no mount namespace can be had: {done.stderr.decode()}")
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["mode"] == "scan"
    assert b"scanned, not mounted: " in done.stderr
