"""Stages for the agents' tests: an agent, a workspace, a way to serve it, with git or without."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agents import toolchain
from tests.agents.stage import Stage
from tests.conftest import lacking
from tests.served import Plyfs

MakeStage = Callable[..., Stage]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What takes long is for who asks for it: the same stories with the other agent, or in the other mode."""
    if item.get_closest_marker("long") and not os.environ.get("PLYFS_LONG"):
        pytest.skip("long: set PLYFS_LONG=1 to run it")


def git(workspace: Path, *words: str) -> str:
    """Run git in the workspace."""
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *identity, *words], cwd=workspace, check=True, capture_output=True, text=True)
    return done.stdout


def fill(workspace: Path, with_git: bool) -> None:
    """A small project with everything in it that sank others."""
    (workspace / "tracked.txt").write_text("v0\n")
    (workspace / "tracked2.txt").write_text("second\n")
    (workspace / "node_modules" / "pkg").mkdir(parents=True)
    (workspace / "node_modules" / "pkg" / "index.js").write_text("v0\n")
    (workspace / "olddir").mkdir()
    (workspace / "script.sh").write_text("#!/bin/sh\n")
    (workspace / "secret").write_text("s\n")
    (workspace / "secret").chmod(0o600)
    (workspace / "ignored.log").write_text("v0\n")
    (workspace / "link2").symlink_to("tracked2.txt")
    if with_git:
        (workspace / ".gitignore").write_text("node_modules/\n*.log\n")
        git(workspace, "init", "-q")
        git(workspace, "add", "-A")
        git(workspace, "commit", "-qm", "base")
        (workspace / "staged.txt").write_text("staged\n")
        git(workspace, "add", "staged.txt")


@pytest.fixture(scope="session")
def agents() -> None:
    """The agents are installed."""
    missing = toolchain.missing()
    if missing:
        lacking(f"{', '.join(missing)} (`make test` installs them)")


@pytest.fixture
def make_stage(agents: None, tmp_path: Path) -> Iterator[MakeStage]:
    """Make a stage; all of it is gone when the test ends."""
    made: list[Stage] = []
    commands: list[Plyfs] = []

    def make(kind: str, with_git: bool = False, mode: str = "fuse", settings: str = "", filled: bool = True) -> Stage:
        top = tmp_path / f"stage{len(made)}"
        workspace = top / "workspace"
        workspace.mkdir(parents=True)
        if filled:
            fill(workspace, with_git)
        plyfs = Plyfs(measured=False)
        commands.append(plyfs)
        stage = Stage(kind, plyfs, workspace, top, mode)
        stage.settings(settings)
        made.append(stage)
        return stage

    try:
        yield make
    finally:
        for stage in made:
            stage.close()
        for plyfs in commands:
            plyfs.close()
