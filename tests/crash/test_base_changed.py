"""What a workspace is made of is changed under its feet: nothing is made up, and the loss is told."""

from __future__ import annotations

import os
import time

import pytest

from tests.served import Served

pytestmark = [pytest.mark.mounted, pytest.mark.crash]


@pytest.fixture
def moved(workspace: Served) -> Served:
    """A base file was moved in the mount and overwritten in the base; only ``one`` has it, as ``d/moved``."""
    (workspace.path / "d").mkdir()
    (workspace.path / "d" / "file").write_text("as it was")
    (workspace.path / "other").write_text("other")
    workspace.mount()
    (workspace.path / "d" / "file").rename(workspace.path / "d" / "moved")
    (workspace.path / "other").write_text("one")
    workspace.checkpoint("one")
    workspace.unmount("--keep")
    (workspace.path / "d" / "file").write_text("changed outside")
    return workspace


def test_a_lost_file_is_never_brought_back_as_something_else(moved: Served) -> None:
    moved.mount()
    (moved.path / "d" / "moved").unlink()
    (moved.path / "other").write_text("two")
    moved.checkpoint("two")
    for arguments in (["undo"], ["restore", "one"], ["restore", "one", str(moved.path / "d")]):
        done = moved.run(*arguments, check=False)
        assert done.returncode == 6, done.stdout
        assert "d/moved cannot be brought back" in done.stderr
    assert (moved.path / "other").read_text() == "two"
    moved.json("restore", "one", str(moved.path / "other"))
    assert (moved.path / "other").read_text() == "one"
    assert os.listdir(moved.path / "d") == []


def test_paths_that_are_as_they_were_make_no_checkpoint(moved: Served) -> None:
    moved.mount()
    (moved.path / "unsaved").write_text("unsaved")
    done = moved.json("restore", "one", str(moved.path / "other"))
    assert done["changes"] == [] and done["saved"] is None
    assert done["head"] == done["from"] == moved.json("log")["head"]
    assert len(moved.json("log")["checkpoints"]) == 2


def test_who_cannot_read_is_told_why(moved: Served) -> None:
    moved.mount()
    with pytest.raises(OSError, match="Input/output error"):
        (moved.path / "d" / "moved").read_text()
    deadline = time.monotonic() + 5
    while not (health := moved.json("status")["health"]) and time.monotonic() < deadline:
        pass
    assert len(health) == 1 and "d/file was changed below the mount" in health[0]
    left = moved.unmount()
    assert left["lost"] == ["d/moved"]
    assert left["conflicts"] == ["d/file"]
    moved.mount()
    moved.json("restore", left["kept"], "--force")
    assert (moved.path / "d" / "file").read_text() == "changed outside"
