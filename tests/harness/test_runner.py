"""``plyfs run``: statuses, signals, directory and terminal of the command."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.harness.conftest import FakePlyfs
from tests.served import Served


def start(workspace: Served, *words: str, **more: object) -> subprocess.Popen[str]:
    plyfs = workspace.plyfs
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        plyfs.command("run", "-C", str(workspace.path), "--", *words),
        env=plyfs.environment,
        cwd="/",
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **more,
    )


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_the_status_is_the_commands(workspace: Served, script: str, status: int) -> None:
    assert workspace.run("run", "--", "sh", "-c", script, check=False).returncode == status
    assert workspace.plyfs.daemons() == []


def test_where_it_runs(workspace: Served, plyfs: FakePlyfs, directory: Path) -> None:
    show = ("sh", "-c", "echo $PWD; pwd -P; echo made > made")
    assert plyfs.run("run", "-C", str(directory), "--", *show).stdout.split() == [str(directory)] * 2
    assert (directory / "made").exists()
    assert plyfs.run("run", "--", "pwd", cwd=directory).stdout == f"{directory}\n"
    below = plyfs.run("run", "-C", str(directory), "--", *show, cwd=directory / "d")
    assert below.stdout.split() == [f"{directory}/d"] * 2


def test_how_it_ends(workspace: Served, directory: Path) -> None:
    change = ("sh", "-c", "echo x > a; echo y > n")
    workspace.run("run", "--on-exit", "discard", "--", *change)
    assert (directory / "a").read_text() == "one\n"
    workspace.run("run", "--", *change)
    assert (directory / "a").read_text() == "x\n"


def test_what_cannot_be_run(workspace: Served, directory: Path) -> None:
    (directory / "plain").write_text("")
    done = workspace.run("run", "--", "no-such-command", check=False)
    assert (done.returncode, done.stderr.count("no-such-command")) == (127, 1)
    assert workspace.run("run", "--", str(directory / "plain"), check=False).returncode == 126
    assert workspace.run("run", check=False).returncode == 2
    assert workspace.plyfs.daemons() == []


def test_one_that_leaves_files_open(workspace: Served) -> None:
    done = workspace.run("run", "--", "sh", "-c", "touch .busy; exit 3", check=False)
    assert done.returncode == 3
    assert "stays mounted" in done.stderr
    assert workspace.json("status")["mounted"]
    assert workspace.run("run", "--", "true", check=False).returncode == 7


def test_busy_is_told_by_the_status_too(workspace: Served) -> None:
    assert workspace.run("run", "--", "touch", ".busy", check=False).returncode == 4


def test_options_of_the_command_are_its_own(workspace: Served) -> None:
    assert workspace.run("run", "--", "echo", "--json", "-C", "--help", "--").stdout == "--json -C --help --\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_passed_on(workspace: Served, number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo got; exit 5' {name}; echo ready; while :; do sleep 0.05; done"
    process = start(workspace, "sh", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (out, process.returncode) == ("got\n", 5), err
    assert workspace.plyfs.daemons() == []


def test_a_signal_that_ends_the_command_unmounts_too(workspace: Served) -> None:
    process = start(workspace, "sh", "-c", "echo ready; exec sleep 100")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 143
    assert workspace.plyfs.daemons() == []


class Console:
    """A terminal with plyfs run in it."""

    def __init__(self, workspace: Served, *words: str) -> None:
        plyfs = workspace.plyfs
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir("/")
            command = plyfs.command("run", "-C", str(workspace.path), "--", *words)
            os.execve(command[0], command, plyfs.environment)
        self.seen = b""

    def until(self, words: bytes) -> None:
        deadline = time.monotonic() + 30
        while words not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.fd], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.fd, 4096)
                except OSError:
                    break
        assert words in self.seen, self.seen

    def type(self, data: bytes) -> None:
        os.write(self.fd, data)

    def status(self) -> int:
        while select.select([self.fd], [], [], 5)[0]:
            try:
                if not os.read(self.fd, 4096):
                    break
            except OSError:
                break
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.fd)
        return code


def test_control_c_reaches_the_command_once(workspace: Served) -> None:
    console = Console(workspace, "bash", "-c", "n=0; trap 'n=$((n+1))' INT; echo ready; sleep 2; sleep 0.5; echo n=$n")
    console.until(b"ready")
    time.sleep(0.2)
    console.type(b"\x03")
    console.until(b"n=1")
    assert console.status() == 0
    assert workspace.plyfs.daemons() == []


def test_control_c_ends_a_command_that_does_not_mind(workspace: Served) -> None:
    console = Console(workspace, "sh", "-c", "echo ready; exec sleep 100")
    console.until(b"ready")
    time.sleep(0.2)
    console.type(b"\x03")
    assert console.status() == 130
    assert workspace.plyfs.daemons() == []


def test_the_terminal_is_the_commands(workspace: Served) -> None:
    console = Console(workspace, "sh", "-c", "test -t 0 && test -t 1 && echo tty; read line; echo got $line")
    console.until(b"tty")
    console.type(b"hello\n")
    console.until(b"got hello")
    assert console.status() == 0


def test_an_interactive_shell(workspace: Served) -> None:
    """A shell makes itself the foreground group; afterwards plyfs may still write and the terminal is its parent's."""
    console = Console(workspace, "bash", "--norc", "-i")
    console.until(b"$ " if os.geteuid() else b"# ")
    console.type(b"sleep 50 &\n")
    console.type(b"fg\n")
    console.until(b"sleep 50")
    time.sleep(0.3)
    console.type(b"\x03")
    console.type(b"echo still $((40+2))\n")
    console.until(b"still 42")
    console.type(b"exit 9\n")
    assert console.status() == 9
    assert workspace.plyfs.daemons() == []
