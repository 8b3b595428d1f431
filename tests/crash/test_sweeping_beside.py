"""A sweep beside a daemon takes nothing that the daemon still counts on, though no checkpoint speaks of it yet."""

from __future__ import annotations

import os

import pytest

from tests.served import Served

pytestmark = [pytest.mark.mounted, pytest.mark.crash]

KEPT = b"kept\n" * 100_000


def older_generation(workspace: Served) -> str:
    """A checkpoint that cites a base which an apply has replaced since: it is translated when it is gone to."""
    (workspace.path / "deep").mkdir()
    (workspace.path / "deep" / "big").write_bytes(KEPT)
    workspace.mount()
    with open(workspace.path / "deep" / "big", "r+b") as file:
        file.write(b"once")
    for number in range(80):
        (workspace.path / "deep" / f"{number}").write_text(f"{number}" * 100)
    first = workspace.checkpoint("first")
    for number in range(80):
        (workspace.path / "deep" / f"{number}").unlink()
    (workspace.path / "deep" / "big").write_bytes(b"short")
    workspace.remount()
    return first


def test_a_translated_tree_outlives_a_sweep(workspace: Served) -> None:
    first = older_generation(workspace)
    workspace.json("restore", first)
    workspace.plyfs.run("gc")
    assert (workspace.path / "deep" / "big").read_bytes() == b"once" + KEPT[4:]
    assert (workspace.path / "deep" / "17").read_text() == "17" * 100
    (workspace.path / "another").write_text("something")
    workspace.checkpoint("second", "--sync")
    workspace.plyfs.run("fsck")
    workspace.kill()
    assert (workspace.json("status"))["head"]
    assert (workspace.path / "deep" / "big").read_bytes() == b"once" + KEPT[4:]
    assert sorted(os.listdir(workspace.path / "deep")) == sorted(["big", *map(str, range(80))])


def test_what_a_daemon_counted_on_goes_after_it_has_left(workspace: Served) -> None:
    first = older_generation(workspace)
    workspace.json("diff", first, "--patch")
    assert workspace.plyfs.json("gc")["objects"] == 0
    workspace.unmount()
    assert workspace.plyfs.json("gc")["objects"] > 0
    assert workspace.plyfs.json("gc")["objects"] == 0
    workspace.plyfs.run("fsck")
