"""The extension's way to a daemon that listens at a port, as on Windows: with the token that the registry has."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.registry import Entry, Registry, process_start
from harness.systems import system
from tests.agents import toolchain
from tests.fakes.workspace import FakeWorkspace
from tests.harness.serving_thread import ServerThread

pytestmark = [pytest.mark.agents, pytest.mark.timeout(60)]

SCRIPT = """
const { Workspace } = await import(process.argv[1]);
const workspace = new Workspace(process.argv[2]);
const attached = await workspace.attach();
const told = { attached, failure: workspace.failure?.message };
if (attached) told.status = await workspace.call("status");
console.log(JSON.stringify(told));
process.exit(0);
"""


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerThread]:
    monkeypatch.setattr(system, "LOCAL_SOCKETS", False)
    (tmp_path / "ws").mkdir()
    workspace = FakeWorkspace(str(tmp_path / "ws"))
    workspace.start()
    thread = ServerThread(workspace)
    yield thread
    thread.close()


@pytest.mark.parametrize("knows", [True, False])
def test_the_extension_at_a_port(agents: None, served: ServerThread, tmp_path: Path, knows: bool) -> None:
    where = served.endpoint
    token = where.token if knows else "0" * 64
    registry = Registry(str(tmp_path / "home" / "run"))
    registry.create()
    path = str(tmp_path / "ws")
    pid = os.getpid()
    registry.write(Entry(path, path, where.address, pid, process_start(pid), "scan", None, "ready", {}, token))
    done = subprocess.run(
        [str(toolchain.NODE), "--input-type=module", "-e", SCRIPT, str(toolchain.EXTENSION / "src/workspace.ts"), path],
        env={**os.environ, "PLYFS_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    assert told["attached"] is knows, (told, done.stderr)
    if knows:
        assert told["status"]["workspace"]
    else:
        assert "token" in told["failure"]
