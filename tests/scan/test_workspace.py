"""The scanned workspace passes the contract that the fake and the mounted one pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.config import Config
from harness.serving import ServedWorkspace, ServeOptions, open_workspace
from tests.harness.workspace_contract import WorkspaceContract
from vfs.workspace import Workspace


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a little in it."""
    top = tmp_path / "project"
    (top / "d").mkdir(parents=True)
    (top / "a").write_text("one\n")
    (top / "d" / "b").write_text("two\n")
    return top


class TestScanned(WorkspaceContract):
    @pytest.fixture
    def ws(self, directory: Path, private_home: Path) -> Iterator[ServedWorkspace]:
        options = ServeOptions(str(directory), None, "scan", "auto", str(private_home), Config())
        workspace = open_workspace(options, lambda name, data: None)
        workspace.start()
        try:
            yield workspace
        finally:
            workspace.unmount("keep", lazy=True)
            workspace.close()

    @pytest.fixture
    def root(self, ws: ServedWorkspace, directory: Path) -> Path:
        return directory

    def test_restore_leaves_git_alone(self, ws: Workspace, root: Path) -> None:
        """A scan never has ``.git``: not even when asked for is it touched."""
        (root / ".git").mkdir()
        (root / ".git" / "HEAD").write_text("1")
        (root / "a").write_text("x\n")
        made = ws.checkpoint().id
        (root / ".git" / "HEAD").write_text("2")
        ws.restore("base")
        assert (root / "a").read_text() == "one\n"
        assert [row.path for row in ws.restore(made, with_git=True).kept] == [".git"]
        assert (root / ".git" / "HEAD").read_text() == "2"
        assert (root / "a").read_text() == "x\n"
