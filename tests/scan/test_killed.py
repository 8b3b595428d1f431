"""kill -9 of real processes at every step of a restore: the next command brings exactly the old or exactly the new."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from harness.config import Config
from harness.serving import ServedWorkspace, ServeOptions, open_workspace
from tests.model.machine import memory_directory
from tests.scan.conftest import Scanned
from tests.scan.dying import Mortals
from tests.scan.test_interrupted import fill, rework, state
from tests.served import Plyfs, Served
from vfs.scan.policy import Policy

pytestmark = [pytest.mark.crash, pytest.mark.root]


def add(scanned: Scanned) -> None:
    """More than every user may make: another owner, closed directories and files, attributes."""
    scanned.write("closed/inner/file", "closed").chmod(0o000)
    scanned.write("owned", "owned").chmod(0o4755)
    os.chown(scanned.path / "owned", 12, 34)
    (scanned.path / "owned").chmod(0o4755)
    (scanned.path / "closed/inner").chmod(0o000)
    scanned.write("shared/one", "shared")
    os.link(scanned.path / "shared/one", scanned.path / "shared/two")


def change(scanned: Scanned) -> None:
    """Change that, too."""
    top = scanned.path
    (top / "closed/inner/file").write_text("reopened")
    (top / "closed/inner").chmod(0o711)
    os.chown(top / "owned", 56, 78)
    (top / "owned").chmod(0o2711)
    os.unlink(top / "shared/two")
    (top / "shared/two").symlink_to("one")
    os.link(top / "shared/one", top / "shared/three")
    (top / "shared/one").write_text("shared still")


class Doomed:
    """A workspace whose last checkpoint changed everything, and the processes that die while they undo that."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.path = served.path
        scanned = Scanned(self.path, served.plyfs.home)
        fill(scanned)
        add(scanned)
        ws = scanned.start(Policy(max_bytes=Config().scan.max_file_bytes))
        self.new = state(self.path)
        rework(scanned)
        change(scanned)
        self.made = ws.checkpoint().id
        self.old = state(self.path)
        assert self.new.differences(self.old)
        ws.unmount()
        scanned.stop()
        self.mortals = Mortals(self.path, served.plyfs.home)

    def serve(self) -> ServedWorkspace:
        """As the daemon of the next command does."""
        options = ServeOptions(str(self.path), None, "scan", "auto", str(self.served.plyfs.home), Config())
        workspace = open_workspace(options, lambda name, data: None)
        workspace.start()
        return workspace

    def has_moved(self) -> bool:
        """True if anything but what is staged beside it is not as it was."""
        return any(".plyfs-" not in line for line in state(self.path).differences(self.old))

    def is_new(self) -> bool:
        """True if the workspace is exactly as it will be; else it is exactly as it was."""
        found = state(self.path)
        if not found.differences(self.new):
            return True
        assert not found.differences(self.old), (found.differences(self.new), found.differences(self.old))
        return False


@pytest.fixture
def doomed(plyfs: Plyfs, tmp_path: Path) -> Iterator[Doomed]:
    """In memory, if there is a place for it: what a killed process wrote is there without reaching a device."""
    memory = memory_directory()
    top = Path(tempfile.mkdtemp(prefix="plyfs-killed-", dir=memory)) if memory else tmp_path
    plyfs.home = top / "home"
    plyfs.environment["PLYFS_HOME"] = str(plyfs.home)
    (top / "workspace").mkdir()
    one = Doomed(Served(plyfs, top / "workspace"))
    try:
        yield one
    finally:
        one.mortals.close()
        plyfs.kill_daemons()
        if memory:
            shutil.rmtree(top)


@pytest.mark.timeout(240)
def test_after_every_effect(doomed: Doomed) -> None:
    ways = set()
    for after in count(1):
        if not doomed.mortals.killed("undo", after):
            break
        moved = doomed.has_moved()
        ws = doomed.serve()
        new = doomed.is_new()
        ways.add((moved, new))
        assert (ws.status().head != doomed.made) == new, after
        assert not ws.status().dirty, (after, ws.diff().changes)
        if not new:
            ws.undo()
            assert doomed.is_new(), after
        assert ws.redo().head == doomed.made
        assert not doomed.is_new(), after
        ws.close()
    assert after > 100
    assert ways == {(False, False), (False, True), (True, True)}


@pytest.mark.timeout(240)
def test_again_while_that_is_settled(doomed: Doomed) -> None:
    """Those that settle it are killed, too, each one effect later than the one before."""
    most = 0
    for after in count(40, 31):
        if not doomed.mortals.killed("undo", after):
            break
        deaths = 0
        while doomed.mortals.killed("start", deaths + 1):
            deaths += 1
        most = max(most, deaths)
        new = doomed.is_new()
        ws = doomed.serve()
        assert doomed.is_new() == new == (ws.status().head != doomed.made), after
        assert not ws.status().dirty, after
        if not new:
            ws.undo()
        ws.redo()
        assert not doomed.is_new(), after
        ws.close()
    assert most > 20


COMMANDS = [["status"], ["doctor", "--finish"], ["doctor", "--go-back"]]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[-1])
def test_the_next_command(doomed: Doomed, words: list[str]) -> None:
    """The real one, which finds that the daemon is dead."""
    served = doomed.served
    seen = set()
    served.plyfs.run("mount", str(doomed.path), "--mode", "scan")
    for after in count(12, 43):
        served.kill()
        if not doomed.mortals.killed("undo", after):
            break
        moved = doomed.has_moved()
        served.run(*words) if words == ["status"] else served.plyfs.run(*words, check=False)
        new = doomed.is_new()
        seen.add((moved, new))
        assert not served.json("status")["dirty"]
        if not new:
            served.run("undo")
            assert doomed.is_new(), after
        served.run("redo")
        assert not doomed.is_new(), after
    assert (False, False) in seen
    assert {new for moved, new in seen if moved} == {words[-1] != "--go-back"}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", range(2))
def test_the_daemon_in_the_middle_of_a_command(workspace: Served, seed: int) -> None:
    """The client is told, and does not hang; the next command brings one of the two states, and all goes on."""
    dice = random.Random(seed)
    top = workspace.path
    for number in range(150):
        (top / f"d{number % 7}").mkdir(exist_ok=True)
        (top / f"d{number % 7}/f{number}").write_text(f"first {number}")
    workspace.plyfs.run("mount", str(top), "--mode", "scan")
    states = {"first": state(top)}
    for number in range(0, 150, 2):
        (top / f"d{number % 7}/f{number}").write_text(f"second {number}")
    shutil.rmtree(top / "d1")
    os.rename(top / "d2", top / "moved")
    made = workspace.checkpoint()
    states["second"] = state(top)
    took = time.monotonic()
    workspace.run("undo")
    workspace.run("redo")
    took = (time.monotonic() - took) / 2
    for _ in range(5):
        command = subprocess.Popen(
            [*workspace.plyfs.command("undo", "-C", str(top), "--json")],
            env={**workspace.plyfs.environment, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        time.sleep(dice.uniform(0.2, 1.0) * took)
        for process in workspace.plyfs.daemons():
            if process.pid != command.pid:
                process.kill()
        out, err = command.communicate(timeout=30)
        assert "Traceback" not in err
        status = workspace.json("status")
        assert not status["dirty"]
        now = "second" if status["head"] == made else "first"
        assert not state(top).differences(states[now])
        assert command.returncode or now == "first", out
        workspace.run("redo" if now == "first" else "undo")
        assert not state(top).differences(states["second" if now == "first" else "first"])
        if now == "second":
            workspace.run("redo")
    workspace.run("fsck")
