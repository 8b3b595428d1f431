"""A state machine: whatever is done to the directory between calls, each checkpoint is what was there, and going
back to it brings exactly that.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.scan.conftest import Scanned
from tests.treestate import TreeState, capture
from vfs.workspace import NothingToDoError

NAMES = ["a", "b", "c"]
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
contents = st.sampled_from([b"", b"x", b"y", b"z" * 200, b"w" * 200])


class ScannedModel(RuleBasedStateMachine):
    """One workspace. ``known`` is what it was at each checkpoint, ``head`` and ``redo`` where it should stand."""

    def __init__(self) -> None:
        super().__init__()
        self.top = Path(tempfile.mkdtemp(prefix="plyfs-model-"))
        path = self.top / "workspace"
        path.mkdir()
        self.one = Scanned(path, self.top / "home")
        self.ws = self.one.start()
        self.head = self.ws.status().head
        self.known: dict[str, TreeState] = {self.head: self.now()}
        self.parent: dict[str, str | None] = {self.head: None}
        self.redo: list[str] = []

    def now(self) -> TreeState:
        return capture(self.one.path, times=False)

    def dirty(self) -> bool:
        return bool(self.now().differences(self.known[self.head]))

    def real(self, path: str) -> Path | None:
        """The place, if no link leads to it."""
        place = self.one.path
        for name in path.split("/")[:-1]:
            place = place / name
            if place.is_symlink() or not place.is_dir():
                return None
        return place / path.split("/")[-1]

    # What a user does

    @rule(path=paths, data=contents)
    def write(self, path: str, data: bytes) -> None:
        place = self.real(path)
        if place is not None and not place.is_symlink() and not place.is_dir():
            place.write_bytes(data)

    @rule(path=paths)
    def mkdir(self, path: str) -> None:
        place = self.real(path)
        if place is not None and not os.path.lexists(place):
            place.mkdir()

    @rule(path=paths)
    def remove(self, path: str) -> None:
        place = self.real(path)
        if place is None or not os.path.lexists(place):
            return
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink()

    @rule(path=paths, to=paths)
    def rename(self, path: str, to: str) -> None:
        source, target = self.real(path), self.real(to)
        if source is not None and target is not None and os.path.lexists(source):
            try:
                os.rename(source, target)
            except OSError:
                pass

    @rule(path=paths, to=paths)
    def link(self, path: str, to: str) -> None:
        source, target = self.real(path), self.real(to)
        if source is not None and target is not None and source.is_file() and not source.is_symlink():
            try:
                os.link(source, target)
            except OSError:
                pass

    @rule(path=paths, pointing=st.sampled_from(NAMES))
    def symlink(self, path: str, pointing: str) -> None:
        place = self.real(path)
        if place is not None and not os.path.lexists(place):
            place.symlink_to(pointing)

    @rule(path=paths, mode=st.sampled_from([0o600, 0o644, 0o755]))
    def chmod(self, path: str, mode: int) -> None:
        place = self.real(path)
        if place is not None and os.path.lexists(place) and not place.is_symlink():
            place.chmod(mode | (0o700 if place.is_dir() else 0))

    # What plyfs does

    @rule()
    def checkpoint(self) -> None:
        made = self.ws.checkpoint()
        if made.created:
            self.parent[made.id] = self.head
            self.head = made.id
            self.redo = []
            self.known[made.id] = self.now()
        else:
            assert made.id == self.head

    def saved(self, id: str | None) -> None:
        if id is not None:
            self.parent[id] = self.head

    @rule(count=st.integers(1, 2))
    def undo(self, count: int) -> None:
        before = self.now()
        try:
            done = self.ws.undo(count)
        except NothingToDoError:
            assert self.parent[self.head] is None
            return
        self.saved(done.saved)
        if done.saved is not None:
            self.known[done.saved] = before
        self.arrived(done.head)

    @rule(count=st.integers(1, 2))
    def redo_steps(self, count: int) -> None:
        before = self.now()
        try:
            done = self.ws.redo(count)
        except NothingToDoError:
            assert not self.ws.log().redo
            return
        self.saved(done.saved)
        if done.saved is not None:
            self.known[done.saved] = before
        self.arrived(done.head)

    @rule(index=st.integers(0, 99))
    def restore(self, index: int) -> None:
        target = list(self.known)[index % len(self.known)]
        before = self.now()
        done = self.ws.restore(target)
        self.saved(done.saved)
        if done.saved is not None:
            self.known[done.saved] = before
        assert done.head == target
        self.arrived(target)

    def arrived(self, head: str) -> None:
        self.head = head
        assert self.known[head].differences(self.now()) == []

    @rule()
    def restart(self) -> None:
        self.ws = self.one.again()

    @rule()
    def killed(self) -> None:
        self.one.die()
        self.ws = self.one.start()

    @precondition(lambda self: self.ws is not None)
    @invariant()
    def stands_where_it_should(self) -> None:
        assert self.ws.resolve("@") == self.head

    def teardown(self) -> None:
        self.one.stop()
        shutil.rmtree(self.top)


TestScannedModel = ScannedModel.TestCase
TestScannedModel.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
