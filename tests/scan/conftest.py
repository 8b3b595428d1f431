"""What the tests of scanner mode share: scanned workspaces in this process, and a way to let them die."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from store.disk import Disk
from vfs.scan.execute import Executor
from vfs.scan.platform import Platform
from vfs.scan.policy import Policy
from vfs.scan.scanned import ScannedWorkspace


class Scanned:
    """A directory, a home, and whatever serves the one from the other now."""

    def __init__(self, path: Path, home: Path) -> None:
        self.path = path
        self.home = home
        self.ws: ScannedWorkspace = None  # type: ignore[assignment]
        self.events: list[tuple[str, object]] = []

    def start(
        self,
        policy: Policy | None = None,
        executor: type[Executor] = Executor,
        platform: Platform | None = None,
        disk: Disk | None = None,
    ) -> ScannedWorkspace:
        """Serve the directory."""

        def hear(name: str, data: object) -> None:
            self.events.append((name, data))

        self.ws = ScannedWorkspace(
            str(self.path), str(self.home), policy or Policy(), hear, None, platform, executor, disk
        )
        self.ws.start()
        return self.ws

    def die(self) -> None:
        """What kill -9 leaves: open files are closed and locks let go, nothing else happens."""
        ws = self.ws
        ws.timeline.sealing.stop()
        ws.timeline.store.close()
        ws._lock.release()
        ws.timeline.platform.close(ws.timeline.top)
        ws._opened = False
        ws._over.set()

    def again(self, **arguments: Any) -> ScannedWorkspace:
        """End it cleanly and serve again."""
        self.ws.unmount("keep")
        self.ws.close()
        return self.start(**arguments)

    def stop(self) -> None:
        """End it, however it stands."""
        if self.ws is not None:
            self.ws.close()

    def write(self, name: str, data: str | bytes = "x") -> Path:
        """A file, with the directories above it."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return path

    def names(self) -> list[str]:
        """Everything below the directory but ``.git``."""
        found = []
        for top, directories, files in os.walk(self.path):
            directories[:] = [name for name in directories if name != ".git"]
            for name in directories + files:
                found.append(os.path.relpath(os.path.join(top, name), self.path))
        return sorted(found)


@pytest.fixture
def scanned(tmp_path: Path, private_home: Path) -> Iterator[Scanned]:
    """An empty directory that is not served yet."""
    path = tmp_path / "workspace"
    path.mkdir()
    one = Scanned(path, private_home)
    try:
        yield one
    finally:
        one.stop()


def kinds(changes: list[Any]) -> dict[str, str]:
    """Kinds by path."""
    return {change.path: change.kind for change in changes}
