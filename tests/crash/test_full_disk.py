"""A full disk in the store: ENOSPC to who writes, every checkpoint intact, and all goes on once space is freed."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.served import Plyfs, Served, Watchdog

pytestmark = [pytest.mark.mounted, pytest.mark.crash, pytest.mark.root]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    point = tmp_path / "small"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", point], check=True)
    yield point
    subprocess.run(["umount", "-l", point], check=True)


@pytest.fixture
def cramped(small: Path, tmp_path: Path) -> Iterator[Served]:
    """A served workspace whose store is on the small file system."""
    command = Plyfs(top=small)
    watchdog = Watchdog(command, 100)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "a").write_text("first")
    served = Served(command, workspace)
    served.mount()
    try:
        yield served
    finally:
        watchdog.cancel()
        command.close()


def fill(path: Path) -> None:
    """Write until the store is full."""
    with open(path, "wb", buffering=0) as file, pytest.raises(OSError) as caught:
        while True:
            file.write(os.urandom(1 << 20))
    assert caught.value.errno == errno.ENOSPC


def test_a_full_store_loses_nothing_and_goes_on(cramped: Served) -> None:
    path = cramped.path
    (path / "a").write_text("second")
    one = cramped.checkpoint("one")
    fill(path / "big")
    failed = cramped.run("checkpoint", "-m", "two", "--json", check=False)
    assert failed.returncode == 1 and '"no_space"' in failed.stdout
    assert cramped.run("undo", check=False).returncode == 1, "an undo would have to save the present first"
    assert (path / "a").read_text() == "second"
    (path / "big").unlink()
    for _ in range(50):  # the space comes back when the removal is durable
        try:
            (path / "d").write_bytes(os.urandom(1 << 20))
            break
        except OSError as error:
            assert error.errno == errno.ENOSPC
            subprocess.run(["sleep", "0.1"], check=True)
    three = cramped.checkpoint("three")
    log = cramped.json("log")
    assert [row["id"] for row in log["checkpoints"]][-2:] == [one, three], "what failed has left nothing behind"
    cramped.run("undo")
    assert sorted(os.listdir(path)) == ["a"]
    cramped.run("undo")
    assert (path / "a").read_text() == "first"
    cramped.unmount("--keep")
    assert "sound" in cramped.run("fsck").stdout


def test_a_full_directory_is_served_again_and_can_be_kept(small: Path) -> None:
    """The store has room, the real directory's file system has not: the unmount changes nothing and says so."""
    command = Plyfs()
    watchdog = Watchdog(command, 100)
    workspace = small / "workspace"
    workspace.mkdir()
    (workspace / "a").write_text("first")
    served = Served(command, workspace)
    try:
        served.mount()
        (workspace / "a").write_text("second")
        for number in range(8):
            (workspace / f"big{number}").write_bytes(os.urandom(4 << 20))
        made = served.checkpoint("much")
        failed = served.run("unmount", check=False)
        assert failed.returncode == 1 and "served again" in failed.stderr and "--keep" in failed.stderr
        assert served.is_mounted() and (workspace / "a").read_text() == "second"
        served.unmount("--keep")
        assert os.listdir(workspace) == ["a"] and (workspace / "a").read_text() == "first", "nothing half done"
        served.mount()
        assert served.json("log")["head"] == made
        for number in range(8):
            (workspace / f"big{number}").unlink()
        served.unmount()
        assert os.listdir(workspace) == ["a"] and (workspace / "a").read_text() == "second"
        served.plyfs.run("fsck")
    finally:
        watchdog.cancel()
        command.close()
