"""No move loses a commit: what was committed after the last checkpoint is there again when one goes forward."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import need_programs
from tests.served import Served

pytestmark = [pytest.mark.mounted, pytest.mark.crash]


def git(place: Path, *arguments: str) -> str:
    """Run git there, as somebody."""
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, cwd=place, check=True, capture_output=True, text=True).stdout


def commit(place: Path, name: str) -> None:
    """A commit that changes no file of the working tree."""
    git(place, "commit", "-q", "--allow-empty", "-m", name)


def log(place: Path) -> list[str]:
    """Subjects, newest first."""
    return git(place, "log", "--format=%s").split()


@pytest.fixture
def nested(mounted: Served) -> Path:
    """A repository that was made after the first state, with one commit after the last checkpoint."""
    need_programs("git")
    place = mounted.path / "nested"
    place.mkdir()
    git(place, "init", "-q")
    commit(place, "first")
    mounted.checkpoint("made")
    commit(place, "second")
    return place


def test_undo_and_redo_of_a_repository(mounted: Served, nested: Path) -> None:
    back = mounted.json("undo")
    assert not nested.exists()
    assert back["saved"] is not None
    mounted.kill()
    forward = mounted.json("redo")
    assert forward["head"] == back["saved"]
    assert log(nested) == ["second", "first"]
    assert git(nested, "status", "--short") == ""
    mounted.json("undo")
    assert log(nested) == ["second", "first"], "the state before it has the same directory"
    mounted.json("undo")
    assert not nested.exists()


def test_unsaved_files_and_commits(mounted: Served, nested: Path) -> None:
    (nested / "file").write_text("unsaved")
    back = mounted.json("undo", "2")
    assert not nested.exists()
    assert mounted.json("redo", "2")["head"] == back["saved"]
    assert log(nested) == ["second", "first"]
    assert (nested / "file").read_text() == "unsaved"


def test_going_elsewhere_with_git(mounted: Served) -> None:
    need_programs("git")
    git(mounted.path, "init", "-q")
    commit(mounted.path, "first")
    made = mounted.checkpoint("made")
    commit(mounted.path, "second")
    there = mounted.json("restore", made, "--with-git")
    assert log(mounted.path) == ["first"]
    assert there["saved"] is not None
    mounted.json("restore", there["saved"], "--with-git")
    assert log(mounted.path) == ["second", "first"]


def test_commits_that_nothing_touches_stay_unseen(mounted: Served) -> None:
    need_programs("git")
    git(mounted.path, "init", "-q")
    (mounted.path / "file").write_text("one")
    mounted.checkpoint("one")
    commit(mounted.path, "first")
    assert mounted.json("undo")["saved"] is None
    assert log(mounted.path) == ["first"]
    assert [row["kind"] for row in mounted.json("log")["checkpoints"]] == ["base", "user"]
