"""The commands as a person or a script runs them: processes, JSON fields, exit statuses, with the fake behind."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness.commands import COMMANDS
from harness.version import VERSION
from tests.harness.conftest import FakePlyfs, until
from tests.served import Served


def failure(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The error object of a command that was run with --json."""
    value = json.loads(done.stdout)
    assert set(value) == {"error"}
    assert set(value["error"]) == {"code", "message", "hint"}
    error: dict[str, Any] = value["error"]
    return error


def test_a_session(workspace: Served, directory: Path) -> None:
    mounted = workspace.plyfs.json("mount", str(directory))
    assert {"workspace", "mountpoint", "mode", "channel", "head", "pid", "socket"} <= set(mounted)
    assert mounted["workspace"] == str(directory)
    base = mounted["head"]

    (directory / "a").write_text("changed\n")
    made = workspace.json("checkpoint", "-m", "turn 1", "--session", "s", "--node", "n", "--sync")
    assert set(made) == {"id", "parent", "created", "changed", "label", "session", "node", "seconds"}
    assert (made["parent"], made["created"], made["changed"]) == (base, True, 1)
    assert (made["label"], made["session"], made["node"]) == ("turn 1", "s", "n")
    again = workspace.json("checkpoint")
    assert (again["id"], again["created"]) == (made["id"], False)

    undone = workspace.json("undo")
    assert {"head", "from", "saved", "changes", "kept", "seconds"} <= set(undone)
    assert (undone["head"], undone["from"], undone["saved"], undone["kept"]) == (base, made["id"], None, [])
    assert undone["changes"] == [{"path": "a", "kind": "overwrite"}]
    assert (directory / "a").read_text() == "one\n"
    assert workspace.json("redo")["head"] == made["id"]

    log = workspace.json("log")
    assert {"head", "checkpoints"} <= set(log)
    assert {"id", "parent", "time", "label", "session", "node", "changed", "state"} <= set(log["checkpoints"][0])
    assert [row["id"] for row in log["checkpoints"]] == [base, made["id"]]
    assert [row["id"] for row in workspace.json("log", "-n", "1")["checkpoints"]] == [made["id"]]

    (directory / "n").write_text("x\n")
    assert workspace.json("diff")["changes"] == [{"path": "n", "kind": "create"}]
    assert "+x" in workspace.json("diff", "--patch")["patch"]
    assert workspace.json("diff", "base", "--stat")["lines"] == {"a": [1, 1], "n": [1, 0]}
    assert workspace.json("drift")["changes"] == [{"path": "n", "kind": "delete"}]

    status = workspace.json("status")
    wanted = {"workspace", "mode", "channel", "mounted", "head", "dirty", "changed", "store_bytes", "health", "writers"}
    assert wanted <= set(status)
    assert (status["dirty"], status["changed"]) == (True, 1)

    assert workspace.run("cat", "base:a").stdout == "one\n"
    assert base64.b64decode(workspace.json("cat", "base:d/b")["data"]) == b"two\n"
    assert [row["name"] for row in workspace.json("ls", "@")["entries"]] == ["a", "d"]
    assert workspace.run("ls", "@:d").stdout == "b\n"

    seen = workspace.json("restore", "base", "--dry-run")
    assert {change["path"] for change in seen["changes"]} == {"a", "n"}
    restored = workspace.json("restore", "base", "--fingerprint", seen["fingerprint"])
    assert restored["saved"] is not None
    unmounted = workspace.json("unmount", "--keep")
    assert (unmounted["how"], unmounted["head"]) == ("keep", base)
    assert workspace.plyfs.daemons() == []


def test_what_a_person_sees(workspace: Served, directory: Path) -> None:
    done = workspace.plyfs.run("mount", str(directory))
    assert f"{directory} is served" in done.stdout
    (directory / "a").write_text("changed\n")
    assert "1 path" in workspace.run("checkpoint", "-m", "turn 1").stdout
    assert "nothing has changed" in workspace.run("checkpoint").stdout
    assert "turn 1" in workspace.run("log").stdout
    assert "you are here" in workspace.run("log", "--graph", "--ascii").stdout
    assert "~ a" in workspace.run("log", "--graph").stdout
    assert workspace.run("diff").stderr == "no difference\n"
    assert workspace.run("diff", "base", "--name-only").stdout == "a\n"
    assert "1 path changed" in workspace.run("undo").stdout
    assert "workspace  " in workspace.run("status").stdout
    assert "unmounted" in workspace.run("unmount").stdout


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (["undo"], 3, "nothing"),
        (["redo"], 3, "nothing"),
        (["undo", "0"], 2, "bad_request"),
        (["undo", "x"], 2, "usage"),
        (["restore"], 2, "usage"),
        (["restore", "nope"], 1, "unknown_checkpoint"),
        (["restore", "base", "--fingerprint", "old"], 4, "conflict"),
        (["restore", "base", "/etc/passwd"], 2, "usage"),
        (["cat", "@"], 2, "usage"),
        (["cat", ":a"], 2, "usage"),
        (["cat", "@:../a"], 2, "usage"),
        (["cat", "@:nope"], 1, "unknown_checkpoint"),
        (["diff", "--stat", "--patch"], 2, "usage"),
        (["unmount"], 4, "conflict"),
        (["unmount", "--apply", "--keep"], 2, "usage"),
        (["drift"], 1, "internal"),
        (["flie"], 2, "usage"),
        (["checkpoint", "extra"], 2, "usage"),
    ],
)
def test_exit_statuses(workspace: Served, directory: Path, words: list[str], status: int, code: str) -> None:
    workspace.plyfs.json("mount", str(directory))
    (directory / ".busy").write_text("")
    (directory / ".broken").write_text("")
    done = workspace.run(*words, "--json", check=False)
    assert done.returncode == status, done
    error = failure(done)
    assert error["code"] == code
    assert error["message"]
    plain = workspace.run(*words, check=False)
    assert plain.returncode == status
    assert plain.stdout == ""
    assert plain.stderr.startswith("plyfs: ")
    assert "Traceback" not in plain.stderr


def test_damage_is_status_6(workspace: Served, directory: Path) -> None:
    (directory / "damaged").write_text("")
    workspace.plyfs.json("mount", str(directory))
    done = workspace.run("restore", "base", "--json", check=False)
    assert (done.returncode, failure(done)["code"]) == (6, "damaged")


def test_not_a_workspace(plyfs: FakePlyfs, directory: Path) -> None:
    for command in ("checkpoint", "undo", "log", "status", "diff", "drift", "unmount"):
        done = plyfs.run(command, "-C", str(directory), "--json", check=False)
        assert (done.returncode, failure(done)["code"]) == (5, "not_a_workspace"), command
    for path in ("/", str(directory / "a"), str(directory / "none")):
        done = plyfs.run("mount", path, "--json", check=False)
        assert (done.returncode, failure(done)["code"]) == (5, "not_a_workspace"), path


def test_a_second_daemon_is_refused(workspace: Served, directory: Path) -> None:
    first = workspace.plyfs.json("mount", str(directory))
    done = workspace.plyfs.run("mount", str(directory), "--json", check=False)
    assert (done.returncode, failure(done)["code"]) == (7, "locked")
    assert str(first["pid"]) in failure(done)["message"]
    assert workspace.json("status")["mounted"]


def test_two_mounts_at_once(workspace: Served, directory: Path) -> None:
    command = [*workspace.plyfs.command("mount", str(directory)), "--json"]
    racers = [
        subprocess.Popen(command, env=workspace.plyfs.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    answers = [racer.communicate(timeout=60) for racer in racers]
    assert sorted(racer.returncode for racer in racers) == [0, 7, 7, 7], answers


def test_the_workspace_is_found_from_below(workspace: Served, directory: Path) -> None:
    plyfs = workspace.plyfs
    plyfs.json("mount", str(directory))
    for cwd in (directory, directory / "d"):
        assert plyfs.json("status", cwd=cwd)["workspace"] == str(directory)
    assert plyfs.json("-C", str(directory / "d"), "status")["workspace"] == str(directory)
    (directory / "d" / "b").write_text("x\n")
    assert plyfs.json("restore", "base", "b", cwd=directory / "d")["changes"] == [{"path": "d/b", "kind": "overwrite"}]
    (directory / "d" / "b").write_text("y\n")
    plyfs.json("-C", str(directory), "restore", "base", "d/b")
    assert (directory / "d" / "b").read_text() == "two\n"
    (directory / "d" / "b").write_text("z\n")
    plyfs.json("restore", "base", str(directory / "d" / "b"), "-C", str(directory))
    assert (directory / "d" / "b").read_text() == "two\n"


def test_mount_from_below_serves_the_whole_again(workspace: Served, directory: Path) -> None:
    plyfs = workspace.plyfs
    done = plyfs.json("mount", cwd=directory)
    assert done["workspace"] == str(directory)
    assert plyfs.run("mount", cwd=directory / "d", check=False).returncode == 7


def test_names_that_are_no_text(workspace: Served, directory: Path) -> None:
    name = os.fsdecode(b"\xff\nx")
    workspace.plyfs.json("mount", str(directory))
    (directory / name).write_text("data")
    assert workspace.json("diff")["changes"] == [{"path": name, "kind": "create"}]
    workspace.json("checkpoint")
    assert workspace.run("cat", f"@:{name}").stdout == "data"
    assert workspace.run("diff", "base", "--name-only").stdout == '"\\377\\nx"\n'


def test_cat_of_much(workspace: Served, directory: Path) -> None:
    data = os.urandom((2 << 20) + 17)
    (directory / "big").write_bytes(data)
    workspace.plyfs.json("mount", str(directory))
    done = subprocess.run(
        workspace.plyfs.command("cat", "-C", str(directory), "@:big"),
        env=workspace.plyfs.environment,
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == data


def test_a_reader_that_goes_away(workspace: Served, directory: Path) -> None:
    (directory / "big").write_bytes(b"x" * (4 << 20))
    workspace.plyfs.json("mount", str(directory))
    reader = subprocess.Popen(
        workspace.plyfs.command("cat", "-C", str(directory), "@:big"),
        env=workspace.plyfs.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert reader.stdout is not None
    reader.stdout.read(10)
    reader.stdout.close()
    assert reader.stderr is not None
    assert reader.stderr.read() == b""
    assert reader.wait(20) == 141


def test_refused_by_what_serves(workspace: Served, directory: Path) -> None:
    done = workspace.plyfs.run("mount", str(directory), "--mode", "scan", "--json", check=False)
    assert (done.returncode, failure(done)["code"]) == (1, "refused")
    (directory / ".refuse").write_text("")
    done = workspace.plyfs.run("mount", str(directory), "--json", check=False)
    assert (done.returncode, failure(done)["hint"]) == (1, "remove it")
    until(lambda: workspace.plyfs.daemons() == [])


def test_a_bad_configuration(workspace: Served, directory: Path) -> None:
    path = Path(workspace.plyfs.environment["XDG_CONFIG_HOME"]) / "plyfs" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text("[mount]\nchanel = 'direct'\n")
    done = workspace.plyfs.run("mount", str(directory), "--json", check=False)
    assert (done.returncode, failure(done)["code"]) == (2, "config")
    assert f"{path}:2" in failure(done)["message"]
    for command in ("config", "gc"):
        assert workspace.run(command, check=False).returncode == 2
    path.write_text("[mount]\nchannel = 'direct'\n[restore]\nwith_git = true\n")
    assert workspace.json("config")["settings"]["mount"]["channel"] == "direct"
    assert 'channel = "direct"' in workspace.run("config").stdout
    (directory / ".git").mkdir()
    (directory / ".git" / "HEAD").write_text("1")
    workspace.mount()
    (directory / ".git" / "HEAD").write_text("2")
    workspace.json("restore", "base")
    assert (directory / ".git" / "HEAD").read_text() == "1", "the configuration asks for it"


def test_help_and_version(plyfs: FakePlyfs) -> None:
    text = plyfs.run("--help").stdout
    for name in COMMANDS:
        assert f"\n  {name} " in text
        shown = plyfs.run(name, "--help")
        assert shown.stdout.startswith(f"usage: plyfs {name} ")
        assert shown.stderr == ""
    assert max(len(line) for line in text.splitlines()) <= 120
    assert plyfs.run("--version").stdout == f"plyfs {VERSION}\n"
    nothing = plyfs.run(check=False)
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert "did you mean 'checkpoint'" in plyfs.run("chekpoint", check=False).stderr


def test_gc_and_fsck_of_an_empty_store(plyfs: FakePlyfs) -> None:
    assert plyfs.json("fsck")["sound"]
    swept = plyfs.json("gc", "--dry-run")
    assert (swept["objects"], swept["dry_run"]) == (0, True)
    assert "sound" in plyfs.run("fsck").stdout
    assert "0 objects" in plyfs.run("gc").stdout


def test_a_workspace_with_modules_of_the_same_names(workspace: Served, directory: Path) -> None:
    for name in ("json", "store", "harness", "trio", "msgspec", "logging"):
        (directory / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    assert workspace.plyfs.json("mount", cwd=directory)["mode"] == "fuse"
    assert workspace.plyfs.json("status", cwd=directory)["mounted"]


def test_commands_start_fast(workspace: Served, directory: Path) -> None:
    """Under 2.5 times what Python itself takes; the least of several runs each, against what else the machine does."""
    plyfs = workspace.plyfs
    plyfs.json("mount", str(directory))
    commands = {
        "python": [sys.executable, "-c", "pass"],
        "help": plyfs.command("--help"),
        "status": plyfs.command("status", "-C", str(directory)),
    }
    best = dict.fromkeys(commands, 1e9)
    for _ in range(12):
        for name, command in commands.items():
            started = time.perf_counter()
            subprocess.run(command, env=plyfs.environment, stdout=subprocess.DEVNULL, check=True)
            best[name] = min(best[name], time.perf_counter() - started)
    assert best["help"] < 2.5 * best["python"], best
    assert best["status"] < 2.5 * best["python"], best


def test_a_home_that_is_relative(workspace: Served, directory: Path, tmp_path: Path) -> None:
    plyfs = workspace.plyfs
    plyfs.environment["PLYFS_HOME"] = "home"
    (directory / "a").write_text("x")
    mounted = plyfs.json("mount", str(directory), cwd=tmp_path)
    assert mounted["socket"].startswith(f"{tmp_path}/home/run/")
    assert plyfs.json("status", "-C", str(directory), cwd=tmp_path)["mounted"]
    assert plyfs.json("unmount", "-C", "ws", "--keep", cwd=tmp_path)["how"] == "keep"


def test_the_daemon_holds_nothing_of_its_starter_open(workspace: Served, directory: Path) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    done = subprocess.run(
        [*workspace.plyfs.command("mount", str(directory))],
        env=workspace.plyfs.environment,
        close_fds=False,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0
    os.close(writer)
    assert os.read(reader, 1) == b"", "the pipe has no writer any more"
    os.close(reader)


def test_without_stdout(workspace: Served, directory: Path) -> None:
    workspace.mount()
    words = " ".join(workspace.plyfs.command("status", "-C", str(directory)))
    done = subprocess.run(
        ["sh", "-c", f"{words} >&-; echo $?; {words} --nope 2>&-; echo $?"],
        env=workspace.plyfs.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("0\n2\n", "")
