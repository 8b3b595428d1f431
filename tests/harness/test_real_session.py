"""The commands over real mounts: what no fake can show. The rest is shown with the fake, which is faster."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.client import Client
from harness.registry import Registry, process_start
from tests.harness.conftest import until
from tests.served import Plyfs, Served

pytestmark = pytest.mark.mounted


@pytest.fixture
def plyfs(compiled: Path) -> Iterator[Plyfs]:
    """The command, as it is."""
    command = Plyfs(environment={"PYTHONPYCACHEPREFIX": str(compiled)})
    command.environment.pop("PYTHONDONTWRITEBYTECODE", None)
    yield command
    command.close()


@pytest.fixture
def ws(plyfs: Plyfs, directory: Path) -> Served:
    """The directory, mounted."""
    workspace = Served(plyfs, directory)
    workspace.mount()
    return workspace


def pid_of(ws: Served) -> int:
    entry = Registry(str(ws.plyfs.home / "run")).read(str(ws.path))
    assert entry is not None
    return entry.pid


@pytest.mark.crash
def test_kill_9_and_the_next_command(ws: Served) -> None:
    (ws.path / "a").write_text("saved\n")
    made = ws.checkpoint("kept")
    (ws.path / "n").write_text("unsaved\n")
    os.kill(pid_of(ws), signal.SIGKILL)
    until(lambda: _is_dead(ws.path))
    done = ws.run("status", "--json")
    assert "is dead; starting another" in done.stderr
    status = json.loads(done.stdout)
    assert (status["head"], status["changed"]) == (made, 1)
    assert (ws.path / "a").read_text() == "saved\n"
    assert (ws.path / "n").read_text() == "unsaved\n"
    ws.unmount()
    assert (ws.path / "n").read_text() == "unsaved\n"


def _is_dead(path: Path) -> bool:
    try:
        os.stat(path)
    except OSError:
        return True
    return False


@pytest.mark.crash
def test_a_command_from_inside_a_dead_mount(ws: Served) -> None:
    code = (
        "import os, signal, subprocess, sys\n"
        "os.chdir(sys.argv[1])\n"
        "os.kill(int(sys.argv[2]), signal.SIGKILL)\n"
        "sys.exit(subprocess.run(sys.argv[3:]).returncode)"
    )
    import sys

    command = [sys.executable, "-P", "-m", "harness.cli", "status"]
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code, str(ws.path / "d"), str(pid_of(ws)), *command],
        env={**ws.plyfs.environment, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done
    assert "mounted    yes" in done.stdout


@pytest.mark.crash
def test_doctor_mends_a_dead_mount(ws: Served) -> None:
    os.kill(pid_of(ws), signal.SIGKILL)
    until(lambda: _is_dead(ws.path))
    found = ws.plyfs.json("doctor")
    ours = [finding for finding in found["findings"] if str(ws.path) in finding["subject"]]
    assert [(one["kind"], one["state"]) for one in ours] == [("daemon", "mended")]
    assert ws.json("status")["mounted"]


@pytest.mark.crash
def test_mount_over_a_dead_mount(ws: Served) -> None:
    (ws.path / "n").write_text("kept")
    os.kill(pid_of(ws), signal.SIGKILL)
    until(lambda: _is_dead(ws.path))
    ws.mount()
    assert (ws.path / "n").read_text() == "kept"


def test_looking_without_a_mount(ws: Served) -> None:
    (ws.path / "a").write_text("changed\n")
    one = ws.checkpoint("one")
    (ws.path / "d" / "b").unlink()
    two = ws.checkpoint("two")
    (ws.path / "n").write_text("unsaved")
    ws.unmount("--keep")
    status = ws.json("status")
    assert (status["mounted"], status["head"], status["dirty"]) == (False, two, True)
    assert [row["id"] for row in ws.json("log")["checkpoints"]][-2:] == [one, two]
    assert "you are here" in ws.run("log", "--graph").stdout
    assert ws.json("diff", "one", "two")["changes"] == [{"path": "d/b", "kind": "delete"}]
    assert "+changed" in ws.run("diff", "base", "one", "--patch").stdout
    assert ws.run("cat", "one:d/b").stdout == "two\n"
    assert ws.run("ls", "two").stdout == "a\nd/\n"
    for words in (["diff"], ["undo"], ["checkpoint"], ["drift"], ["unmount"]):
        done = ws.run(*words, "--json", check=False)
        assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (5, "not_mounted"), words
    ws.mount()
    assert (ws.path / "n").read_text() == "unsaved"
    ws.unmount("--apply")
    assert (ws.path / "n").read_text() == "unsaved"
    status = ws.json("status")
    assert (status["mounted"], status["dirty"], status["health"]) == (False, False, [])
    assert ws.run("cat", "one:d/b").stdout == "two\n"
    assert ws.plyfs.json("fsck")["sound"]
    assert ws.plyfs.json("gc")["checkpoints"] == []


def test_a_directory_put_in_its_place_is_another_workspace(ws: Served) -> None:
    ws.unmount()
    os.rename(ws.path, ws.path.parent / "elsewhere")
    ws.path.mkdir()
    done = ws.run("log", "--json", check=False)
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (5, "not_a_workspace")


def test_the_mount_is_taken_away_by_somebody_else(ws: Served) -> None:
    (ws.path / "n").write_text("kept")
    pid = pid_of(ws)
    subprocess.run(["umount", "-l", str(ws.path)], check=True)
    until(lambda: process_start(pid) is None)
    done = ws.run("status", "--json")
    assert not json.loads(done.stdout)["mounted"]
    ws.mount()
    assert (ws.path / "n").read_text() == "kept"


def test_sigterm_with_files_open(ws: Served) -> None:
    pid = pid_of(ws)
    with open(ws.path / "n", "w") as file:
        file.write("kept")
        file.flush()
        os.kill(pid, signal.SIGTERM)
        until(lambda: process_start(pid) is None)
        try:
            file.close()
        except OSError:
            pass
    assert not ws.is_mounted()
    ws.mount()
    assert (ws.path / "n").read_text() == "kept"


def test_busy_is_refused_and_names_the_process(ws: Served) -> None:
    with open(ws.path / "a"):
        done = ws.run("unmount", "--json", check=False)
    assert done.returncode == 4
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "conflict"
    assert str(os.getpid()) in error["message"]
    assert ws.json("status")["mounted"]
    ws.unmount()


def test_no_workspace_in_a_mounted_one(ws: Served, plyfs: Plyfs) -> None:
    for path in (ws.path / "d", ws.path.parent):
        done = plyfs.run("mount", str(path), "--json", check=False)
        assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (5, "not_a_workspace")
    stranger = Plyfs()
    try:
        done = stranger.run("mount", str(ws.path / "d"), "--json", check=False)
        assert done.returncode == 5
        assert "does not know" in json.loads(done.stdout)["error"]["message"]
        assert stranger.run("status", "-C", str(ws.path), check=False).returncode == 5
    finally:
        stranger.close()


def test_elsewhere(plyfs: Plyfs, directory: Path, tmp_path: Path) -> None:
    point = tmp_path / "point"
    point.mkdir()
    plyfs.owns(point)
    mounted = plyfs.json("mount", str(directory), "--at", str(point))
    assert (mounted["workspace"], mounted["mountpoint"]) == (str(directory), str(point))
    (point / "a").write_text("there\n")
    assert (directory / "a").read_text() == "one\n"
    for path in (point, point / "d", directory):
        assert plyfs.json("status", "-C", str(path))["changed"] == 1
    assert plyfs.json("restore", "base", "a", cwd=point)["changes"]
    plyfs.json("unmount", "-C", str(point), "--discard")
    assert list(point.iterdir()) == []
    assert (directory / "a").read_text() == "one\n"


def test_run(plyfs: Plyfs, directory: Path) -> None:
    plyfs.owns(directory)
    script = "pwd; echo x > a; rm d/b; exit 3"
    done = plyfs.run("run", "-C", str(directory), "--", "sh", "-c", script, check=False)
    assert (done.returncode, done.stdout) == (3, f"{directory}\n"), done.stderr
    assert (directory / "a").read_text() == "x\n"
    assert not (directory / "d" / "b").exists()
    plyfs.run("run", "-C", str(directory), "--on-exit", "discard", "--", "sh", "-c", "echo y > a")
    assert (directory / "a").read_text() == "x\n"
    assert plyfs.daemons() == []


def test_mount_is_quick_and_the_daemon_small(plyfs: Plyfs, directory: Path) -> None:
    import psutil

    workspace = Served(plyfs, directory)
    workspace.mount()
    workspace.unmount()
    best = 9.0
    for _ in range(3):
        started = time.monotonic()
        mounted = workspace.mount()
        best = min(best, time.monotonic() - started)
        assert psutil.Process(mounted["pid"]).memory_info().rss < 60 << 20
        workspace.unmount()
    assert best < 2.0, "0.35 s on a machine that does nothing else"


def test_plyfs_installed_in_the_workspace_that_it_serves(directory: Path, compiled: Path) -> None:
    """A project's own environment holds plyfs: the daemon must not read its code through its own mount."""
    import shutil
    import sys

    root = Path(__file__).resolve().parents[2]
    for package in ("harness", "store", "vfs"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(root / package, directory / "lib" / package, ignore=ignored)
    plyfs = Plyfs()
    plyfs.owns(directory)
    main = [sys.executable, "-P", str(directory / "lib" / "harness" / "__main__.py")]
    environment = {**plyfs.environment, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(directory / "lib")}
    try:
        for words in (
            ["mount", str(directory)],
            ["status"],
            ["checkpoint"],
            ["diff", "base", "--patch"],
            ["log", "--graph"],
            ["unmount"],
        ):
            where = [] if words[0] == "mount" else ["-C", str(directory)]
            done = subprocess.run(
                [*main, *words, *where], env=environment, cwd="/", capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, (words, done)
        log = Registry(str(plyfs.home / "run")).path(str(directory), "log")
        with open(log) as file:
            assert "plyfs is installed in the workspace" in file.read()
    finally:
        plyfs.close()


def test_what_a_daemon_says_is_translated_too(plyfs: Plyfs, tmp_path: Path) -> None:
    plyfs.environment |= {"LC_ALL": "zh_CN.UTF-8", "PYTHONUTF8": "1"}
    workspace = tmp_path / "ws"
    workspace.mkdir()
    at = ("-C", str(workspace))
    assert f"{workspace} 已由 plyfs 管理" in plyfs.run("mount", str(workspace)).stdout
    assert "没有可撤销的：这是第一个状态" in plyfs.run("undo", *at, check=False).stderr
    (workspace / "is missing").write_text("a file's name is no message\n")
    assert plyfs.run("diff", *at).stdout == "+ is missing\n"
    status = plyfs.run("status", *at).stdout
    assert "未保存     1 个路径\n" in status and "重做       没有撤销过\n" in status
    assert plyfs.json("status", *at)["redo"] == "nothing was undone"
    assert "有未保存的修改" in plyfs.run("log", *at).stderr
    assert "1 处修改已写入目录" in plyfs.run("unmount", *at).stdout


def test_what_other_programs_can_follow(ws: Served) -> None:
    """Everything that happens is told as it happens, and after each move ``status`` says what is possible now."""
    entry = Registry(str(ws.plyfs.home / "run")).read(str(ws.path))
    assert entry is not None
    listener, client = Client(entry.endpoint), Client(entry.endpoint)
    got: queue.Queue[dict[str, Any]] = queue.Queue()
    subscribed = threading.Event()

    def listen() -> None:
        for event in listener.events():
            got.put(event)

    def told(*names: str) -> list[dict[str, Any]]:
        """The data of the next events, which must be these; when a seal is done is its own affair."""
        found = []
        while len(found) < len(names):
            event = got.get(timeout=10)
            if event["event"] != "sealed" or "sealed" in names:
                found.append(event)
        assert [event["event"] for event in found] == list(names)
        return [event["data"] for event in found]

    def possible() -> tuple[bool, bool]:
        status = client.call("status")
        return status["undo"] == "", status["redo"] == ""

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    # The subscription is there when what is done after it is told of.
    while not subscribed.is_set():
        client.call("bind", {"session": "probe", "node": str(time.monotonic_ns())})
        try:
            got.get(timeout=0.05)
            subscribed.set()
        except queue.Empty:
            pass
    while not got.empty():
        got.get()

    base = client.call("status")["head"]
    assert client.call("status")["undo"] == "this is the first state"
    assert client.call("status")["redo"] == "nothing was undone"
    (ws.path / "n").write_text("new\n")
    assert possible() == (True, False)
    made = client.call("capture", {"session": "s", "node": "1"})
    head, checkpoint, state = told("head", "checkpoint", "state")
    assert head == {"head": made["id"]}
    assert checkpoint["id"] == made["id"]
    assert state == {"session": "s", "node": "1", "state": made["id"]}
    assert possible() == (True, False)
    again = client.call("capture", {"session": "s", "node": "1"})
    assert again["id"] == made["id"], "and nothing is told of what has not happened"
    back = client.call("undo")
    assert told("head", "restored") == [{"head": base}, back]
    assert possible() == (False, True)
    client.call("redo")
    assert told("head", "restored")[0] == {"head": made["id"]}
    assert possible() == (True, False)
    client.call("restore", {"checkpoint": base, "dry_run": True})
    client.call("restore", {"checkpoint": base})
    assert told("head", "restored")[0] == {"head": base}
    client.close()
    ws.unmount()
    assert told("unmounted")[0]["how"] == "apply"
    thread.join(10)
    assert not thread.is_alive(), "the stream ends with the daemon"
