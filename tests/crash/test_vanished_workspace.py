"""The directory of a workspace is moved away, removed, or replaced by another: said, and nothing of it is given up."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.served import Served

pytestmark = [pytest.mark.mounted, pytest.mark.crash]


@pytest.fixture
def kept(workspace: Served) -> Served:
    """With a checkpoint and unsaved changes that the store keeps."""
    workspace.mount()
    (workspace.path / "file").write_text("saved")
    workspace.checkpoint("one")
    (workspace.path / "unsaved").write_text("unsaved")
    workspace.unmount("--keep")
    return workspace


def test_moved_away_and_back(kept: Served) -> None:
    away = kept.path.with_name("away")
    kept.path.rename(away)
    for words in (
        ["log"],
        ["status"],
        ["cat", "one:file"],
        ["diff", "base", "one"],
        ["checkpoint"],
        ["undo"],
        ["unmount"],
    ):
        done = kept.run(*words, check=False)
        assert done.returncode == 5, (words, done.stderr)
        assert str(kept.path) in done.stderr and "hint:" in done.stderr
    for name in ("log", "status"):
        assert "is gone: it was moved or removed" in kept.run(name, check=False).stderr
    assert kept.plyfs.run("mount", str(kept.path), check=False).returncode == 5
    assert kept.plyfs.json("gc")["checkpoints"] == []
    kept.plyfs.run("fsck")
    away.rename(kept.path)
    kept.mount()
    assert sorted(os.listdir(kept.path)) == ["file", "unsaved"]


def test_found_where_it_is_now(kept: Served) -> None:
    there = Served(kept.plyfs, kept.path.with_name("there"))
    kept.path.rename(there.path)
    there.mount()
    assert (there.path / "unsaved").read_text() == "unsaved"
    assert [row["label"] for row in there.json("log")["checkpoints"]] == ["base", "one"]
    there.unmount()
    assert sorted(os.listdir(there.path)) == ["file", "unsaved"]


def test_another_directory_at_the_same_path_is_another_workspace(kept: Served) -> None:
    away = kept.path.with_name("away")
    kept.path.rename(away)
    kept.path.mkdir()
    (kept.path / "other").write_text("other")
    done = kept.run("log", check=False)
    assert done.returncode == 5 and "is not the directory that was a workspace there" in done.stderr
    kept.mount()
    assert os.listdir(kept.path) == ["other"]
    assert [row["label"] for row in kept.json("log")["checkpoints"]] == ["base"]
    assert kept.run("restore", "one", check=False).returncode != 0
    kept.unmount()
    shutil.rmtree(kept.path)
    away.rename(kept.path)
    kept.mount()
    assert sorted(os.listdir(kept.path)) == ["file", "unsaved"]
    assert [row["label"] for row in kept.json("log")["checkpoints"]] == ["base", "one"]
