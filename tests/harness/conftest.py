"""What the tests of the harness share: a fake workspace, a server thread, and plyfs with a fake behind it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes.workspace import FakeWorkspace
from tests.harness.serving_thread import ServerThread
from tests.served import Plyfs, Served

FAKE_MAIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_main.py")


def until(condition: Callable[[], object], seconds: float = 10) -> None:
    """Wait until ``condition`` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class FakePlyfs(Plyfs):
    """The command, whose daemon serves a plain directory."""

    def __init__(self, cache: Path) -> None:
        super().__init__(environment={"PYTHONPYCACHEPREFIX": str(cache)})
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-P", FAKE_MAIN, *arguments]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the processes of all tests keep their compiled modules."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A small directory to serve."""
    path = tmp_path / "ws"
    path.mkdir()
    (path / "a").write_text("one\n")
    (path / "d").mkdir()
    (path / "d" / "b").write_text("two\n")
    return path


@pytest.fixture
def fake(directory: Path) -> FakeWorkspace:
    """The fake, started."""
    workspace = FakeWorkspace(str(directory))
    workspace.start()
    return workspace


@pytest.fixture
def served(fake: FakeWorkspace) -> Iterator[ServerThread]:
    """A socket with the fake behind it."""
    thread = ServerThread(fake)
    yield thread
    thread.close()


@pytest.fixture
def plyfs(compiled: Path) -> Iterator[FakePlyfs]:
    """The command with the fake behind it."""
    command = FakePlyfs(compiled)
    yield command
    command.close()


@pytest.fixture
def workspace(plyfs: FakePlyfs, directory: Path) -> Served:
    """The directory, not served yet."""
    return Served(plyfs, directory)
