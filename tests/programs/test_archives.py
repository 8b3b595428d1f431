"""tar and rsync in and out of a mount change nothing: not a mode, a time, a link, an attribute, or a hole's bytes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import need_programs
from tests.programs.conftest import Shell
from tests.programs.intricate import build
from tests.served import Served
from tests.treestate import assert_same, capture

TAR = ("tar", "--xattrs", "--xattrs-include=*", "--acls", "--sparse", "--numeric-owner", "--format=posix")
RSYNC = ("rsync", "-aHAX", "--numeric-ids", "--sparse", "--delete")


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """The intricate tree, in a plain directory."""
    path = tmp_path / "original"
    path.mkdir()
    build(path)
    return path


def test_tar(original: Path, plain: Shell, inside: Shell, mounted: Served, tmp_path: Path) -> None:
    """Out of a plain directory, into a mount, out of the mount, into a plain directory, all the same."""
    need_programs("tar")
    wanted = capture(original)
    # tar archives no sockets.
    del wanted.paths["socket"]
    inside.run(*TAR, "-C", original, "-cf", tmp_path / "one.tar", ".")
    inside.run(*TAR, "-xpf", tmp_path / "one.tar")
    assert_same(capture(mounted.path), wanted, "after tar into the mount")
    inside.run(*TAR, "-C", mounted.path, "-cf", tmp_path / "two.tar", ".")
    plain.run(*TAR, "-xpf", tmp_path / "two.tar")
    assert_same(capture(plain.cwd), wanted, "after tar out of the mount")
    assert (mounted.path / "sparse").stat().st_blocks * 512 < 2 << 20
    mounted.unmount()
    assert_same(capture(mounted.path), wanted, "after unmount")


def test_rsync(original: Path, plain: Shell, inside: Shell, mounted: Served) -> None:
    """After a copy rsync itself finds nothing to do, with checksums, in either direction."""
    need_programs("rsync")
    wanted = capture(original)
    inside.run(*RSYNC, f"{original}/", f"{mounted.path}/")
    assert_same(capture(mounted.path), wanted, "after rsync into the mount")
    again = (*RSYNC, "--dry-run", "--itemize-changes", "--checksum")
    assert inside.run(*again, f"{original}/", f"{mounted.path}/") == ""
    plain.run(*RSYNC, f"{mounted.path}/", f"{plain.cwd}/")
    assert_same(capture(plain.cwd), wanted, "after rsync out of the mount")
    mounted.remount()
    assert_same(capture(mounted.path), wanted, "after another mount")
    assert inside.run(*again, f"{original}/", f"{mounted.path}/") == ""


def test_checkpoint_and_restore(original: Path, inside: Shell, mounted: Served) -> None:
    """Removing the whole tree and undoing that brings back all of it but the times of what had been removed."""
    need_programs("rsync")
    inside.run(*RSYNC, f"{original}/", f"{mounted.path}/")
    mounted.checkpoint("all")
    wanted = capture(mounted.path, times=False)
    inside.run("find", ".", "-mindepth", "1", "-delete")
    assert os.listdir(mounted.path) == []
    mounted.checkpoint("nothing")
    mounted.run("undo")
    assert_same(capture(mounted.path, times=False), wanted, "after undo")
