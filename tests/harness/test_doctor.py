"""The doctor, over what crashes leave."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from tests.harness.conftest import FakePlyfs
from tests.served import Served


def kinds(found: dict[str, list[dict[str, str]]]) -> dict[str, str]:
    return {finding["kind"]: finding["state"] for finding in found["findings"] if "/ply" in finding["subject"] or True}


def test_a_healthy_store(workspace: Served, plyfs: FakePlyfs) -> None:
    assert plyfs.run("doctor").stdout == "all is well\n"
    workspace.mount()
    assert plyfs.json("doctor") == {"healthy": True, "findings": []}


@pytest.mark.crash
def test_a_dead_daemon(workspace: Served, plyfs: FakePlyfs) -> None:
    mounted = workspace.mount()
    os.kill(mounted["pid"], signal.SIGKILL)
    found = plyfs.json("doctor")
    assert found["healthy"]
    assert kinds(found) == {"daemon": "mended"}
    assert workspace.json("status")["mounted"]
    assert plyfs.json("doctor")["findings"] == []


@pytest.mark.crash
def test_a_dead_daemon_whose_workspace_is_gone(workspace: Served, plyfs: FakePlyfs, directory: Path) -> None:
    mounted = workspace.mount()
    os.kill(mounted["pid"], signal.SIGKILL)
    os.rename(directory, directory.parent / "moved")
    done = plyfs.run("doctor", check=False)
    assert done.returncode == 1
    assert "failed" in done.stdout
    assert plyfs.run("doctor").stdout == "all is well\n", "it is buried, and not mended for ever"


def test_leftovers(workspace: Served, plyfs: FakePlyfs) -> None:
    workspace.mount()
    run = plyfs.home / "run"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(run / "0123456789abcdef.sock"))
    for name in ("0123456789abcdef.owner.lock", "0123456789abcdef.starter.lock", "0123456789abcdef.json.77.new"):
        (run / name).write_text("")
    run.chmod(0o755)
    found = plyfs.json("doctor")
    assert found["healthy"]
    assert sorted(finding["kind"] for finding in found["findings"]) == ["leftover", "leftover", "lock", "lock", "mode"]
    assert not list(run.glob("0123456789abcdef*"))
    assert workspace.json("status")["mounted"], "what is in use stays"
    assert plyfs.json("doctor")["findings"] == []


def test_a_frozen_daemon(workspace: Served, plyfs: FakePlyfs) -> None:
    mounted = workspace.mount()
    os.kill(mounted["pid"], signal.SIGSTOP)
    try:
        done = plyfs.run("doctor", check=False, timeout=60)
    finally:
        os.kill(mounted["pid"], signal.SIGCONT)
    assert done.returncode == 1
    assert f"kill {mounted['pid']}" in done.stdout
