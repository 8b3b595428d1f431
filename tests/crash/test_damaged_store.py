"""One file of a workspace in the store is damaged: it is made good, or named and refused, and nothing more is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.served import Served

pytestmark = [pytest.mark.mounted, pytest.mark.crash]


@pytest.fixture
def kept(workspace: Served) -> Served:
    """Applied once, then two checkpoints, a restore of the first, and unsaved changes; unmounted, and those kept."""
    (workspace.path / "base").write_text("base")
    workspace.mount()
    (workspace.path / "base").write_text("applied")
    workspace.remount()
    for name in ("one", "two"):
        (workspace.path / name).write_text(name)
        workspace.checkpoint(name, "--sync")
    workspace.json("undo")
    (workspace.path / "unsaved").write_text("unsaved")
    workspace.unmount("--keep")
    return workspace


def part(workspace: Served, name: str) -> Path:
    """A file of the workspace's part of the store."""
    (directory,) = (workspace.plyfs.home / "workspaces").iterdir()
    return directory / name


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def stored(workspace: Served) -> dict[Path, bytes]:
    """Every file of the store but the daemons' own."""
    home = workspace.plyfs.home
    return {path: path.read_bytes() for path in home.rglob("*") if path.is_file() and home / "run" not in path.parents}


def assert_whole(workspace: Served) -> None:
    """All that was kept is there."""
    workspace.mount()
    assert sorted(os.listdir(workspace.path)) == ["base", "one", "unsaved"]
    assert (workspace.path / "unsaved").read_text() == "unsaved"
    workspace.json("redo")
    assert sorted(os.listdir(workspace.path)) == ["base", "one", "two"]


@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
def test_the_ends_of_generations(kept: Served, how: str) -> None:
    path = part(kept, "generations")
    good = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(good[:-3])
    else:
        flip(path, -5)
    for arguments in (["mount", str(kept.path)], ["fsck"]):
        done = kept.plyfs.run(*arguments, check=False)
        assert done.returncode == 6
        assert "generation" in done.stderr + done.stdout
    path.write_bytes(good)
    assert_whole(kept)


@pytest.mark.parametrize("how", ["flipped", "gone"])
def test_the_head(kept: Served, how: str) -> None:
    path = part(kept, "head")
    flip(path, -5) if how == "flipped" else path.unlink()
    notes = kept.mount()["notes"]
    assert any("the head was lost" in note for note in notes)
    kept.unmount("--keep")
    kept.mount()
    assert sorted(os.listdir(kept.path)) == ["base", "one", "unsaved"]
    assert [row["label"] for row in kept.json("log")["checkpoints"]][-2:] == ["one", "two"]


def test_the_record(kept: Served) -> None:
    flip(part(kept, "record"), -5)
    assert kept.plyfs.run("fsck", check=False).returncode == 6
    for name in ("log", "status"):
        done = kept.run(name, check=False)
        assert done.returncode == 6 and f"`plyfs mount {kept.path}`" in done.stderr, done.stderr
    assert kept.plyfs.run("log", "-C", str(kept.path.parent), check=False).returncode == 5, "another directory is none"
    assert_whole(kept)
    kept.plyfs.run("fsck")


@pytest.mark.parametrize("text", ["plyfs store 99\n", "garbage"])
def test_another_version_of_the_format(kept: Served, text: str) -> None:
    """Every command says so, and touches nothing; what can read it finds all as it was."""
    version = kept.plyfs.home / "version"
    good = version.read_text()
    version.write_text(text)
    before = stored(kept)
    base = str(kept.path)
    commands = [["mount", base], ["fsck"], ["fsck", "--repair"], ["gc"], ["run", "-C", base, "--", "true"]]
    commands += [[name, "-C", base] for name in ("log", "status", "undo", "checkpoint", "drift", "unmount")]
    commands += [["cat", "-C", base, "one:one"], ["ls", "-C", base, "one"], ["restore", "-C", base, "one"]]
    for command in commands:
        done = kept.plyfs.run(*command, check=False)
        assert done.returncode == 6, (command, done.stderr)
        assert "version" in done.stderr and "PLYFS_HOME" in done.stderr, done.stderr
        assert '"code": "format"' in kept.plyfs.run(*command[:1], "--json", *command[1:], check=False).stdout
    assert kept.plyfs.run("doctor", check=False).returncode == 6
    assert stored(kept) == before
    assert (kept.path / "base").read_text() == "applied"
    version.write_text(good)
    assert_whole(kept)


def test_what_is_known_of_the_base(workspace: Served) -> None:
    workspace.mount()
    (workspace.path / "file").write_text("ours")
    workspace.checkpoint("ours")
    workspace.unmount()
    flip(part(workspace, "known"), -5)
    for arguments in (["mount", str(workspace.path)], ["fsck"]):
        done = workspace.plyfs.run(*arguments, check=False)
        assert done.returncode == 6 and "/known" in done.stdout + done.stderr
        assert "`plyfs fsck --repair`" in done.stderr
    workspace.plyfs.run("fsck", "--repair")
    assert part(workspace, "known.damaged").exists()
    workspace.mount()
    assert (workspace.path / "file").read_text() == "ours"
    workspace.plyfs.run("fsck")


@pytest.mark.parametrize("name", ["overlaid", "explained"])
def test_what_only_helps_to_tell_is_done_without(workspace: Served, name: str) -> None:
    workspace.mount()
    (workspace.path / "file").write_text("ours")
    workspace.unmount()
    flip(part(workspace, name), -5)
    assert workspace.plyfs.run("fsck", check=False).returncode == 6
    workspace.mount()
    assert (workspace.path / "file").read_text() == "ours"
    assert [row["kind"] for row in workspace.json("log")["checkpoints"]] == ["base", "automatic"]
    workspace.unmount()
    workspace.plyfs.run("fsck", "--repair")
    workspace.plyfs.run("fsck")


def test_the_end_of_the_history(kept: Served) -> None:
    """The checkpoint that the journal goes on from is lost, and what came after it with that."""
    path = part(kept, "history")
    path.write_bytes(path.read_bytes()[:200])
    done = kept.plyfs.run("mount", str(kept.path), check=False)
    assert done.returncode == 6 and "fsck --repair" in done.stderr, done.stderr
    kept.plyfs.run("fsck", "--repair", check=False)
    assert list(path.parent.glob("journal/*.damaged"))
    kept.mount()
    assert (kept.path / "base").read_text() in ("applied", "base")
    assert kept.json("status")["health"] == []


def test_an_empty_journal_is_told(kept: Served) -> None:
    (newest, *_) = sorted(part(kept, "journal").glob("*[0-9]"), reverse=True)
    newest.write_bytes(b"")
    assert any("is gone" in note for note in kept.mount()["notes"])
    assert not (kept.path / "unsaved").exists()
    assert [row["label"] for row in kept.json("log")["checkpoints"]][-2:] == ["one", "two"]
