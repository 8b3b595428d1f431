"""Turns that change hundreds of files, which are stored in packs: killed while they are stored, swept, checked."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.served import Served

pytestmark = [pytest.mark.mounted, pytest.mark.crash]

FILES = 300


def turn(path: Path, number: int) -> dict[str, bytes]:
    """Write every file anew; what is there then."""
    for index in range(FILES):
        (path / f"d{index % 7}").mkdir(exist_ok=True)
        (path / f"d{index % 7}" / f"{index}").write_bytes(b"%d of %d\n" % (index, number) * (20 + index))
    return tree(path)


def tree(path: Path) -> dict[str, bytes]:
    """Every file's content."""
    return {
        os.path.relpath(os.path.join(directory, name), path): Path(directory, name).read_bytes()
        for directory, _, names in os.walk(path)
        for name in names
    }


def packs(workspace: Served) -> list[str]:
    return os.listdir(Path(workspace.plyfs.environment["PLYFS_HOME"]) / "objects" / "packs")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("mode", ["fuse", "scan"])
def test_killed_while_storing(workspace: Served, mode: str) -> None:
    dice = random.Random(mode)
    first = turn(workspace.path, 0)
    workspace.mount("--mode", mode)
    seen = {workspace.json("status")["head"]: first}
    for number in range(1, 4):
        expected = turn(workspace.path, number)
        seen[workspace.checkpoint()] = expected
        time.sleep(dice.uniform(0, 0.15))
        workspace.kill()
        if mode == "scan":
            workspace.mount("--mode", mode)
        workspace.json("status")
        assert tree(workspace.path) == expected
    for id in dice.sample(sorted(seen), len(seen)):
        workspace.json("restore", id)
        assert tree(workspace.path) == seen[id]
    end = workspace.checkpoint(None, "--sync")
    assert packs(workspace)
    workspace.unmount()
    assert "sound" in workspace.run("fsck").stdout
    before = set(packs(workspace))
    config = Path(workspace.plyfs.environment["XDG_CONFIG_HOME"]) / "plyfs" / "config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text("[retention]\nkeep_last = 1\n")
    swept = workspace.plyfs.json("gc")
    assert swept["objects"] > FILES
    assert set(packs(workspace)) < before
    assert "sound" in workspace.run("fsck").stdout
    workspace.mount("--mode", mode)
    for row in workspace.json("log")["checkpoints"]:
        workspace.json("restore", row["id"])
        assert tree(workspace.path) == seen[row["id"]]
    assert end in [row["id"] for row in workspace.json("log")["checkpoints"]]
