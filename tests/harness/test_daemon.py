"""The daemon's life, as processes: starting, dying, being mended, stopping."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import psutil
import pytest

from harness.client import Client, DaemonDiedError
from harness.endpoint import Endpoint
from harness.registry import Registry, process_start
from tests.harness.conftest import FakePlyfs, until
from tests.served import Served


def registry(plyfs: FakePlyfs) -> Registry:
    return Registry(str(plyfs.home / "run"))


def test_it_is_nobodys_child_and_private(workspace: Served, plyfs: FakePlyfs, directory: Path) -> None:
    mounted = workspace.mount()
    process = psutil.Process(mounted["pid"])
    assert process.ppid() != os.getpid()
    assert process.cwd() == "/"
    assert process.terminal() is None
    assert os.getsid(mounted["pid"]) != os.getsid(0)
    run = plyfs.home / "run"
    assert run.stat().st_mode & 0o777 == 0o700
    for path in run.iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
    assert str(directory) in " ".join(process.cmdline())


def test_sigterm_keeps_and_leaves_nothing_behind(workspace: Served, plyfs: FakePlyfs, directory: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        mounted = workspace.mount()
        (directory / ".busy").write_text("")
        os.kill(mounted["pid"], signal.SIGHUP)
        os.kill(mounted["pid"], number)
        until(lambda: process_start(mounted["pid"]) is None)  # noqa: B023
        assert registry(plyfs).all() == []
        left = {path.suffix for path in (plyfs.home / "run").iterdir()}
        assert left <= {".log", ".fake", ".store"}  # the last two are the fake's
        log = registry(plyfs).path(str(directory), "log")
        with open(log) as file:
            text = file.read()
        assert f"got signal {number.name}" in text
        assert "ERROR" not in text


@pytest.mark.crash
def test_kill_9_then_any_command_mends(workspace: Served, directory: Path) -> None:
    first = workspace.mount()
    (directory / "a").write_text("x")
    made = workspace.checkpoint("kept")
    for command in (["status"], ["log"], ["checkpoint"], ["undo"], ["diff"]):
        os.kill(workspace.json("status")["head"] and registry_pid(workspace), signal.SIGKILL)
        done = workspace.run(*command, "--json")
        assert "is dead; starting another" in done.stderr, command
        assert json.loads(done.stdout)
    assert registry_pid(workspace) != first["pid"]
    assert made in [row["id"] for row in workspace.json("log")["checkpoints"]]


def registry_pid(workspace: Served) -> int:
    entry = Registry(str(workspace.plyfs.home / "run")).read(str(workspace.path))
    assert entry is not None
    return entry.pid


@pytest.mark.crash
def test_mount_of_a_dead_one(workspace: Served) -> None:
    first = workspace.mount()
    os.kill(first["pid"], signal.SIGKILL)
    second = workspace.mount()
    assert second["pid"] != first["pid"]
    os.kill(second["pid"], signal.SIGKILL)
    assert workspace.unmount("--keep")["how"] == "keep"


@pytest.mark.crash
def test_many_meet_the_dead_one_at_once(workspace: Served) -> None:
    os.kill(workspace.mount()["pid"], signal.SIGKILL)
    command = workspace.plyfs.command("status", "-C", str(workspace.path), "--json")
    racers = [
        subprocess.Popen(command, env=workspace.plyfs.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(5)
    ]
    told = [racer.communicate(timeout=60) for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 5, told
    assert sum(b"starting another" in err for _, err in told) == 1
    assert len(workspace.plyfs.daemons()) == 1


@pytest.mark.crash
def test_killed_in_the_middle_of_a_request(workspace: Served, directory: Path) -> None:
    mounted = workspace.mount()
    (directory / ".slow").write_text("30")
    failed: list[Exception] = []

    def ask() -> None:
        try:
            Client(Endpoint(mounted["socket"])).call("diff")
        except DaemonDiedError as error:
            failed.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.3)
    started = time.monotonic()
    os.kill(mounted["pid"], signal.SIGKILL)
    thread.join(5)
    assert failed
    assert time.monotonic() - started < 2


@pytest.mark.crash
def test_a_harmless_command_is_asked_again(workspace: Served, directory: Path) -> None:
    mounted = workspace.mount()
    (directory / ".slow").write_text("2")
    command = workspace.plyfs.command("diff", "-C", str(directory), "--json")
    asking = subprocess.Popen(
        command, env=workspace.plyfs.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    time.sleep(0.7)
    os.kill(mounted["pid"], signal.SIGKILL)
    out, err = asking.communicate(timeout=60)
    assert asking.returncode == 0, err
    assert json.loads(out)["changes"] == []


def test_it_dies_while_it_starts(workspace: Served, directory: Path) -> None:
    (directory / ".die").write_text("")
    done = workspace.plyfs.run("mount", str(directory), check=False)
    assert done.returncode == 1
    assert "died before it served anything" in done.stderr
    assert ".log" in done.stderr
    (directory / ".die").unlink()
    assert workspace.mount()["head"]


def test_a_deaf_daemon_is_told_of(workspace: Served, plyfs: FakePlyfs, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness import doctor
    from harness.failure import PlyfsError
    from harness.terminal import Terminal

    mounted = workspace.mount()
    os.unlink(mounted["socket"])
    monkeypatch.setattr(doctor, "DEAF_SECONDS", 0.2)
    entry = registry(plyfs).read(str(workspace.path))
    assert entry is not None
    with pytest.raises(PlyfsError) as caught:
        doctor.revive(registry(plyfs), entry, Terminal())
    assert caught.value.code == "daemon_silent"
    assert str(mounted["pid"]) in caught.value.message


def test_a_frozen_daemon_is_told_of(workspace: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness import client
    from harness.failure import PlyfsError

    monkeypatch.setattr(client, "SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(client, "PROBE_SECONDS", 0.3)
    mounted = workspace.mount()
    os.kill(mounted["pid"], signal.SIGSTOP)
    try:
        with pytest.raises(PlyfsError) as caught:
            Client(Endpoint(mounted["socket"])).call("status")
    finally:
        os.kill(mounted["pid"], signal.SIGCONT)
    assert caught.value.code == "daemon_silent"


def test_stopping_while_asked(workspace: Served, directory: Path) -> None:
    """A command that comes while the daemon leaves waits for its end, and says that it is not mounted."""
    mounted = workspace.mount()
    (directory / ".slow").write_text("1")
    os.kill(mounted["pid"], signal.SIGTERM)
    until(lambda: "stopping" in _state(workspace))
    done = workspace.run("status", "--json", check=False)
    assert done.returncode in (5, 1), done
    assert json.loads(done.stdout)["error"]["code"] in ("not_mounted", "stopping", "daemon_died")


def _state(workspace: Served) -> str:
    entry = Registry(str(workspace.plyfs.home / "run")).read(str(workspace.path))
    return "stopping" if entry is None else entry.state


def test_foreground(workspace: Served, plyfs: FakePlyfs, directory: Path) -> None:
    process = subprocess.Popen(
        plyfs.command("mount", str(directory), "--foreground", "--json"),
        env=plyfs.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    value = json.loads(process.stdout.readline())
    assert value["pid"] == process.pid
    assert workspace.json("status")["mounted"]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "got signal SIGINT" in err
    assert registry(plyfs).all() == []


def test_foreground_that_is_refused(workspace: Served, plyfs: FakePlyfs, directory: Path) -> None:
    (directory / ".refuse").write_text("")
    done = plyfs.run("mount", str(directory), "--foreground", "--json", check=False)
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"] == "refused"


def test_the_log_rotates(workspace: Served, plyfs: FakePlyfs, directory: Path) -> None:
    path = Path(plyfs.environment["XDG_CONFIG_HOME"]) / "plyfs" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text("[log]\nmax_bytes = 10000\nfiles = 2\n")
    workspace.mount()
    (directory / ".broken").write_text("")
    client = Client(Endpoint(registry(plyfs).socket_path(str(directory))))
    for _ in range(40):
        with pytest.raises(Exception, match="a bug"):
            client.call("drift")
    logs = [item for item in (plyfs.home / "run").iterdir() if ".log" in item.name]
    assert 2 <= len(logs) <= 3
    assert all(item.stat().st_size <= 20000 for item in logs)
    assert all(item.stat().st_mode & 0o077 == 0 for item in logs)


def test_a_long_home(workspace: Served, plyfs: FakePlyfs, tmp_path: Path) -> None:
    home = tmp_path / ("long" * 40)
    home.mkdir()
    plyfs.environment["PLYFS_HOME"] = str(home)
    plyfs.home = home
    plyfs.environment["XDG_RUNTIME_DIR"] = str(plyfs.top)
    mounted = workspace.mount()
    assert len(mounted["socket"]) <= 100
    assert workspace.json("status")["mounted"]
    workspace.unmount("--keep")
    assert not os.path.exists(mounted["socket"])


def test_memory(workspace: Served) -> None:
    mounted = workspace.mount()
    assert psutil.Process(mounted["pid"]).memory_info().rss < 60 << 20
