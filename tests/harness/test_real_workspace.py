"""The mounted workspace passes the contract that the fake passes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.config import Config
from harness.serving import ServedWorkspace, ServeOptions, open_workspace
from tests.harness.workspace_contract import WorkspaceContract

pytestmark = pytest.mark.mounted


class TestMounted(WorkspaceContract):
    @pytest.fixture
    def ws(self, directory: Path, private_home: Path) -> Iterator[ServedWorkspace]:
        channel = os.environ.get("PLYFS_TEST_CHANNEL", "auto")
        options = ServeOptions(str(directory), None, "fuse", channel, str(private_home), Config())  # type: ignore[arg-type]
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
