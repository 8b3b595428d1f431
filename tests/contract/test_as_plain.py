"""What was there before the mount behaves as in a plain directory, and is the same after every way of coming back.

Each case of ``plain_cases`` runs in a plain directory and in a mount over an equal one: the answers and the trees must
be equal. Then a move there and back through checkpoints, a remount and a killed daemon must not change the tree.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import treestate
from tests.conftest import may_make_devices
from tests.contract.plain_cases import CASES, DEEP, RENAME_EXCHANGE, renameat2
from tests.contract.servers import Server, open_directory
from tests.served import Served

SECONDS = 100
SKIPPED = frozenset({"sparse", DEEP})
"""Not looked into: 6 GiB, and paths that are too long for one call."""

pytestmark = [pytest.mark.mounted, pytest.mark.timeout(120)]


def wanted_cases() -> list[str]:
    root, devices = os.geteuid() == 0, may_make_devices(Path(tempfile.gettempdir()))
    return [
        name for name, case in CASES.items() if (root or not case.root) and (devices or case.fill.__name__ != "devices")
    ]


def fill(top: Path) -> None:
    """A directory for each case, filled."""
    for name in wanted_cases():
        (top / name).mkdir()
        CASES[name].fill(top / name)


def state(top: Path, times: bool = False) -> treestate.TreeState:
    return treestate.capture(top, skip=SKIPPED, times=times)


def numbers(top: Path) -> dict[str, int]:
    """Inode numbers by path."""
    found = {}
    for folder, folders, _ in os.walk(top):
        folders[:] = [name for name in folders if name != DEEP]
        with os.scandir(folder) as entries:
            for entry in entries:
                number = found[os.path.relpath(entry.path, top)] = os.lstat(entry.path).st_ino
                assert entry.inode() == number, entry.path
    return found


class Pair:
    """A plain directory, and a mount over one filled in the same way."""

    def __init__(self, channel: str) -> None:
        self.plain, self.mount = open_directory(), open_directory()
        fill(self.plain)
        fill(self.mount)
        self.server = Server(self.mount, channel, kind="workspace", seconds=SECONDS)

    def close(self) -> None:
        self.server.close()
        for top in (self.plain, self.mount):
            shutil.rmtree(top, ignore_errors=True)


@pytest.fixture(scope="module", params=["direct", "pyfuse3"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    if request.param == "pyfuse3":
        pytest.importorskip("pyfuse3")
    both = Pair(request.param)
    try:
        yield both
    finally:
        both.close()


@pytest.mark.parametrize("name", CASES)
def test_as_in_a_plain_directory(pair: Pair, name: str) -> None:
    if name not in wanted_cases():
        pytest.skip("needs root, or the right to make devices")
    if name == "data_and_holes_are_found" and pair.server.channel == "pyfuse3":
        pytest.skip("pyfuse3 has no lseek: the kernel says that a file is all data")
    server, act = pair.server, CASES[name].act
    server.watch(SECONDS)
    plain, mounted = pair.plain / name, pair.mount / name
    first = state(mounted, times=True)
    start = server.run("workspace.checkpoint().id")
    assert act(mounted) == act(plain)
    changed = state(mounted, times=True)
    treestate.assert_same(state(mounted), state(plain), "after the case")
    end = server.run("workspace.checkpoint().id")
    treestate.assert_same(state(mounted, times=True), changed, "after a checkpoint")
    server.run(f"workspace.restore({start!r}, with_git=True)")
    treestate.assert_same(state(mounted), first.untimed(), "after going back")
    server.run(f"workspace.restore({end!r}, with_git=True)")
    treestate.assert_same(state(mounted), changed.untimed(), "after going forth")
    server.unwatch()


def test_a_remount_a_killed_daemon_and_an_unmount_change_nothing(workspace: Served, tmp_path: Path) -> None:
    top, plain = workspace.path, tmp_path / "plain"
    plain.mkdir()
    fill(top)
    fill(plain)
    workspace.mount()
    for name in wanted_cases():
        assert CASES[name].act(top / name) == CASES[name].act(plain / name)
    before, known = state(top, times=True), numbers(top)
    treestate.assert_same(state(top), state(plain), "after the cases")
    workspace.kill()
    workspace.run("status")
    treestate.assert_same(state(top, times=True), before, "after a kill")
    assert numbers(top) == known
    workspace.unmount("--keep")
    workspace.mount()
    treestate.assert_same(state(top, times=True), before, "after a remount")
    assert numbers(top) == known
    workspace.unmount("--apply")
    treestate.assert_same(state(top, times=True), before, "after the unmount")


def test_an_exchange_of_a_file_and_a_directory_survives_a_checkpoint(pair: Pair) -> None:
    """Both names are in the base, and neither is what it was there."""
    top = pair.mount / "names_are_exchanged"
    (top / "x").mkdir()
    (top / "x/in").touch()
    (top / "y").write_bytes(b"y")
    pair.server.run("workspace.checkpoint()")
    renameat2(top / "x", top / "y", RENAME_EXCHANGE)
    pair.server.run("workspace.checkpoint()")
    assert (top / "x").read_bytes() == b"y"
    assert os.listdir(top / "y") == ["in"]
