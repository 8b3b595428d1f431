"""What every Workspace must do, whichever way it is served: one suite for the fake and for the real ones.

A test class inherits ``WorkspaceContract`` and has two fixtures: ``ws``, a started Workspace over a directory that held
``a`` ("one\\n") and ``d/b`` ("two\\n"), and ``root``, the Path where that workspace is seen and changed now.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from store.errors import StoreError, UnknownCheckpointError
from vfs.workspace import Change, ConflictError, NothingToDoError, Workspace


@contextmanager
def refused(*kinds: type[StoreError]) -> Iterator[None]:
    """Expect one of ``kinds``, and that it tells a person something."""
    with pytest.raises(kinds) as caught:
        yield
    assert caught.value.message


def paths(changes: list[Change]) -> dict[str, str]:
    return {change.path: change.kind for change in changes}


class WorkspaceContract:
    """The suite."""

    def test_no_change_makes_no_checkpoint(self, ws: Workspace, root: Path) -> None:
        first = ws.checkpoint("nothing")
        again = ws.checkpoint()
        assert not first.created
        assert not again.created
        assert first.id == again.id == ws.status().head

    def test_checkpoint_tells_what_it_is(self, ws: Workspace, root: Path) -> None:
        base = ws.status().head
        (root / "n").write_text("new")
        made = ws.checkpoint("label", "session", "node")
        assert made.created
        assert (made.parent, made.label, made.session, made.node) == (base, "label", "session", "node")
        assert made.changed == 1
        row = ws.log().checkpoints[-1]
        assert (row.id, row.parent, row.label, row.session, row.node, row.changed) == (
            made.id,
            base,
            "label",
            "session",
            "node",
            1,
        )

    def test_undo_and_redo(self, ws: Workspace, root: Path) -> None:
        base = ws.status().head
        (root / "a").write_text("changed\n")
        (root / "n").write_text("new")
        one = ws.checkpoint().id
        undone = ws.undo()
        assert (undone.head, undone.origin, undone.saved) == (base, one, None)
        assert paths(undone.changes) == {"a": "overwrite", "n": "delete"}
        assert (root / "a").read_text() == "one\n"
        assert not (root / "n").exists()
        assert ws.log().redo == [one]
        redone = ws.redo()
        assert (redone.head, redone.origin) == (one, base)
        assert (root / "a").read_text() == "changed\n"
        assert (root / "n").read_text() == "new"

    def test_undo_of_unsaved_changes_goes_to_the_head(self, ws: Workspace, root: Path) -> None:
        base = ws.status().head
        (root / "a").write_text("unsaved\n")
        assert ws.status().dirty
        undone = ws.undo()
        assert undone.head == base
        assert undone.saved is not None
        assert (root / "a").read_text() == "one\n"
        assert not ws.status().dirty
        assert ws.redo().head == undone.saved
        assert (root / "a").read_text() == "unsaved\n"

    def test_nothing_to_undo_or_redo(self, ws: Workspace, root: Path) -> None:
        with refused(NothingToDoError):
            ws.undo()
        with refused(NothingToDoError):
            ws.redo()

    def test_several_steps(self, ws: Workspace, root: Path) -> None:
        base = ws.status().head
        made = []
        for number in range(3):
            (root / "a").write_text(f"{number}\n")
            made.append(ws.checkpoint().id)
        assert ws.undo(3).head == base
        assert ws.redo(2).head == made[1]
        assert (root / "a").read_text() == "1\n"

    def test_going_on_starts_a_branch_and_forgets_nothing(self, ws: Workspace, root: Path) -> None:
        base = ws.status().head
        (root / "a").write_text("left\n")
        left = ws.checkpoint("left").id
        ws.undo()
        (root / "a").write_text("right\n")
        right = ws.checkpoint("right").id
        parents = {row.id: row.parent for row in ws.log().checkpoints}
        assert parents[left] == parents[right] == base
        assert ws.log().redo == []
        assert ws.restore(left).head == left
        assert (root / "a").read_text() == "left\n"

    def test_names_of_checkpoints(self, ws: Workspace, root: Path) -> None:
        base = ws.status().head
        (root / "a").write_text("x\n")
        made = ws.checkpoint("the label").id
        for spec in (made, made[:6], "the label", "@"):
            assert ws.cat(spec, "a") == b"x\n"
        for spec in (base, "base", "@~1"):
            assert ws.cat(spec, "a") == b"one\n"
        for spec in ("nope", "0123456789ab", made[:3], "@~9"):
            with refused(UnknownCheckpointError):
                ws.cat(spec, "a")

    def test_preview_changes_nothing(self, ws: Workspace, root: Path) -> None:
        (root / "a").write_text("x\n")
        made = ws.checkpoint().id
        seen = ws.restore("base", dry_run=True)
        assert paths(seen.changes) == {"a": "overwrite"}
        assert ws.status().head == made
        assert (root / "a").read_text() == "x\n"
        assert seen.fingerprint
        assert ws.restore("base", fingerprint=seen.fingerprint).head != made

    def test_restore_stops_if_anything_moved_since_the_preview(self, ws: Workspace, root: Path) -> None:
        (root / "a").write_text("x\n")
        ws.checkpoint()
        seen = ws.restore("base", dry_run=True)
        (root / "n").write_text("meanwhile")
        with refused(ConflictError):
            ws.restore("base", fingerprint=seen.fingerprint)
        assert (root / "a").read_text() == "x\n"
        assert (root / "n").read_text() == "meanwhile"

    def test_restore_of_paths(self, ws: Workspace, root: Path) -> None:
        (root / "a").write_text("x\n")
        (root / "d" / "b").write_text("y\n")
        ws.checkpoint()
        ws.restore("base", ["d/b"])
        assert (root / "a").read_text() == "x\n"
        assert (root / "d" / "b").read_text() == "two\n"

    def test_restore_leaves_git_alone(self, ws: Workspace, root: Path) -> None:
        (root / ".git").mkdir()
        (root / ".git" / "HEAD").write_text("1")
        (root / "a").write_text("x\n")
        made = ws.checkpoint().id
        (root / ".git" / "HEAD").write_text("2")
        ws.restore("base")
        assert (root / ".git" / "HEAD").read_text() == "2"
        assert (root / "a").read_text() == "one\n"
        ws.restore(made, with_git=True)
        assert (root / ".git" / "HEAD").read_text() == "1"

    def test_diff(self, ws: Workspace, root: Path) -> None:
        (root / "a").write_text("one\nmore\n")
        (root / "n").write_text("new\n")
        os.unlink(root / "d" / "b")
        found = ws.diff()
        assert paths(found.changes) == {"a": "overwrite", "n": "create", "d/b": "delete"}
        assert found.patch is None
        assert found.lines is None
        patched = ws.diff(patch=True, stat=True)
        assert "+more" in (patched.patch or "")
        assert patched.lines == {"a": (1, 0), "n": (1, 0), "d/b": (0, 1)}
        made = ws.checkpoint().id
        assert ws.diff().changes == []
        assert paths(ws.diff("base", made).changes) == paths(found.changes)
        assert paths(ws.diff(made, "base").changes) == {"a": "overwrite", "n": "delete", "d/b": "create"}

    def test_kinds_of_changes(self, ws: Workspace, root: Path) -> None:
        os.rename(root / "a", root / "moved")
        os.chmod(root / "d" / "b", 0o600)
        changes = ws.diff().changes
        assert Change("moved", "rename", "a") in changes
        assert Change("d/b", "mode") in changes

    def test_file_becomes_directory_and_back(self, ws: Workspace, root: Path) -> None:
        os.unlink(root / "a")
        (root / "a").mkdir()
        (root / "a" / "inside").write_text("x")
        ws.checkpoint()
        assert paths(ws.undo().changes)["a"] == "type"
        assert (root / "a").read_text() == "one\n"

    def test_drift(self, ws: Workspace, root: Path) -> None:
        assert ws.drift().changes == []
        (root / "n").write_text("new")
        assert paths(ws.drift().changes) == {"n": "delete"}

    def test_cat_and_ls(self, ws: Workspace, root: Path) -> None:
        (root / "l").symlink_to("a")
        made = ws.checkpoint().id
        assert ws.cat(made, "d/b") == b"two\n"
        assert ws.cat(made, "d/b", 1, 2) == b"wo"
        assert ws.cat(made, "d/b", 4, 10) == b""
        rows = {row.name: row for row in ws.ls(made)}
        assert list(rows) == ["a", "d", "l"]
        assert [row.type for row in rows.values()] == ["file", "directory", "symlink"]
        assert rows["a"].size == 4
        assert rows["l"].target == "a"
        assert [row.name for row in ws.ls(made, "d")] == ["b"]
        for path in ("nope", "d/nope"):
            with refused(StoreError):
                ws.cat(made, path)
            with refused(StoreError):
                ws.ls(made, path)

    def test_names_that_are_no_text(self, ws: Workspace, root: Path) -> None:
        name = os.fsdecode(b"\xff\n\x01")
        (root / name).write_text("x")
        assert paths(ws.diff().changes) == {name: "create"}
        made = ws.checkpoint().id
        assert ws.cat(made, name) == b"x"

    def test_status(self, ws: Workspace, root: Path) -> None:
        status = ws.status()
        assert status.mounted
        assert not status.dirty
        assert status.undo
        (root / "n").write_text("new")
        status = ws.status()
        assert status.dirty
        assert status.changed == 1
        assert not status.undo

    @pytest.mark.parametrize("seed", range(3))
    def test_status_tells_what_is_possible(self, ws: Workspace, root: Path, seed: int) -> None:
        """After anything, undo and redo do what status said that they would: something, or nothing for that reason."""
        rolls = random.Random(seed)
        base = ws.status().head

        def tried(name: str) -> bool:
            status = ws.status()
            told, move = (status.undo, ws.undo) if name == "undo" else (status.redo, ws.redo)
            if not told:
                move()
                return True
            with refused(NothingToDoError):
                move()
            return False

        for step in range(50):
            match rolls.choice(("write", "write", "git", "checkpoint", "undo", "undo", "redo", "restore")):
                case "write":
                    (root / f"n{rolls.randrange(4)}").write_text(f"{step}")
                case "git":
                    (root / ".git").mkdir(exist_ok=True)
                    (root / ".git" / "HEAD").write_text(f"{step}")
                case "checkpoint":
                    ws.checkpoint()
                case "restore":
                    ws.restore(rolls.choice([base, ws.status().head]))
                case "undo" | "redo" as name:
                    tried(name)
        (root / "n").write_text("more")
        ws.checkpoint()
        back = sum(iter(lambda: tried("undo"), False))
        forth = sum(iter(lambda: tried("redo"), False))
        assert back and forth, "they are possible, until they are not"

    def test_log_of_a_session(self, ws: Workspace, root: Path) -> None:
        (root / "a").write_text("1")
        ws.checkpoint(session="s", node="1")
        (root / "a").write_text("2")
        other = ws.checkpoint(session="t", node="1").id
        (root / "a").write_text("3")
        ws.checkpoint(session="s", node="2")
        assert other not in [row.id for row in ws.log("s").checkpoints]
        assert other in [row.id for row in ws.log().checkpoints]
