"""The fake passes the contract of the real thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.workspace import FakeWorkspace
from tests.harness.workspace_contract import WorkspaceContract


class TestFake(WorkspaceContract):
    @pytest.fixture
    def ws(self, fake: FakeWorkspace) -> FakeWorkspace:
        return fake

    @pytest.fixture
    def root(self, directory: Path) -> Path:
        return directory


def test_a_successor_finds_the_checkpoints(directory: Path, tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    first = FakeWorkspace(str(directory), state)
    first.start()
    (directory / "a").write_text("x")
    made = first.checkpoint("kept").id
    second = FakeWorkspace(str(directory), state)
    second.start()
    assert second.notes() == ["recovered"]
    assert second.log() == first.log()
    assert second.status().head == made
