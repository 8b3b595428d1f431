"""kill -9 of the daemon at any moment: nothing that was answered is lost, and the next command mends the mount.

A worker logs outside the mount what it was about to do and what had been answered. After the kill the same operations
on a plain directory say how the tree must look; the one operation in flight may have happened or not.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.crash import worker
from tests.served import Served
from tests.treestate import capture

pytestmark = [pytest.mark.mounted, pytest.mark.crash]


def fill(path: Path) -> None:
    """A base with something of everything that the worker touches."""
    for directory in ("d0", "d0/d2", "d1"):
        (path / directory).mkdir()
    for index, name in enumerate(worker.NAMES[:12]):
        (path / name).write_bytes(worker.data(index, 3000 * index))
        (path / "d0" / name).write_bytes(worker.data(index, 100 * index))
    os.link(path / "n1", path / "d1" / "n1")
    os.symlink("n2", path / "d1" / "n2")


def answered(log: Path) -> tuple[list[worker.Operation], worker.Operation | None]:
    """The operations that were answered, and the one that was in flight."""
    done: list[worker.Operation] = []
    about: worker.Operation | None = None
    for line in log.read_text(encoding="utf-8").splitlines():
        what, operation = json.loads(line)
        about = operation if what == "about" else None
        if what == "done":
            done.append(operation)
    return done, about


def excused(lines: list[str], about: worker.Operation | None) -> bool:
    """True if only what the operation in flight touches differs: it is several requests, some of them answered."""
    if about is None:
        return False
    touched = [repr(name) for name in about[1:] if isinstance(name, str)]
    if about[0] in ("rmtree", "rename", "link", "unlink", "chmod", "truncate", "xattr", "patch"):
        touched += ["'gone", f"'{about[1]}", "links ("]  # a change of one name shows at the inode's other names too
    return all(any(name in line for name in touched) for line in lines)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", range(2))
def test_nothing_answered_is_lost(workspace: Served, tmp_path: Path, seed: int) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    fill(plain)
    fill(workspace.path)
    dice = random.Random(seed)
    workspace.mount()
    for round_ in range(4):
        log = tmp_path / f"log{round_}"
        command = [sys.executable, worker.__file__, str(workspace.path), str(log), str(seed * 100 + round_), "100000"]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            while not log.exists():
                time.sleep(0.01)
            for _ in range(dice.randrange(1, 5)):
                time.sleep(dice.uniform(0.05, 0.25))
                workspace.json("checkpoint")
            time.sleep(dice.uniform(0.0, 0.1))
            workspace.kill()
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert workspace.json("status")["mounted"]
        done, about = answered(log)
        assert len(done) > 20, "the worker has had time to work"
        for operation in done:
            worker.perform(str(plain), operation)
        now = capture(workspace.path, times=False)
        lines = now.differences(capture(plain, times=False))
        if lines and about is not None:
            worker.perform(str(plain), about)
            if now.differences(capture(plain, times=False)):
                assert excused(lines, about), f"after {len(done)} operations and {about}: {lines[:10]}"
                break  # the plain copy can no longer tell what is right
        else:
            assert not lines, f"after {len(done)} operations: {lines[:10]}"
    workspace.unmount("--keep")
    workspace.run("fsck")
