"""The main job on Windows, step by step, through the command line: `python -m tests.windows.story`.

Plain asserts and the standard library alone, beside plyfs and what it needs, so that it runs wherever these do. It
makes a workspace and a store in a new temporary directory and removes them. Each step's name is printed; exits with 1
at the first that fails.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAIN = Path(__file__).resolve().parents[2] / "harness" / "__main__.py"

Tree = dict[str, bytes | None]


class Story:
    """A workspace on Windows and the steps that are tried on it."""

    def __init__(self) -> None:
        self.top = Path(tempfile.mkdtemp(prefix="plyfs-"))
        self.workspace = self.top / "work space"
        self.first = ""
        self.environment = {
            **os.environ, "PLYFS_HOME": str(self.top / "home"), "XDG_CONFIG_HOME": str(self.top / "config")
        }  # fmt: skip
        for name in ("a.txt", "d/b.txt", "d/c.txt", "deep/er/file.txt"):
            path = self.workspace / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"first\r\n")
        (self.workspace / "big.bin").write_bytes(bytes(range(256)) * 8000)
        (self.workspace / "empty").mkdir()
        os.chmod(self.workspace / "d" / "c.txt", stat.S_IREAD)

    def run(self, *words: str, status: int = 0, at: Path | None = None) -> dict[str, Any]:
        """A command's JSON; its exit status must be ``status``."""
        command = [sys.executable, str(MAIN), *words, "--json"]
        done = subprocess.run(
            command, cwd=at or self.workspace, env=self.environment, capture_output=True, stdin=subprocess.DEVNULL
        )
        assert done.returncode == status, (words, done.returncode, done.stdout, done.stderr.decode(errors="replace"))
        value: dict[str, Any] = json.loads(done.stdout)
        return value

    def tree(self) -> Tree:
        """Every path and its content; None for a directory."""
        found = self.workspace.rglob("*")
        return {path.relative_to(self.workspace).as_posix(): _content(path) for path in found}

    def mount(self) -> dict[str, Any]:
        return self.run("mount", str(self.workspace), "--mode", "scan")

    def close(self) -> None:
        """End what is left and remove everything."""
        try:
            self.run("unmount", "--keep")
        except AssertionError:
            pass
        for path in self.top.rglob("*"):
            if path.is_file():
                os.chmod(path, stat.S_IWRITE)
        shutil.rmtree(self.top, ignore_errors=True)

    # The steps

    def served_at_a_port(self) -> None:
        served = self.mount()
        assert served["mode"] == "scan", served
        assert served["socket"].startswith("127.0.0.1:"), served
        assert "token" not in served
        self.first = served["head"]
        assert self.run("mount", str(self.workspace), status=7)["error"]["code"] == "locked"
        assert self.run("status", at=self.workspace / "deep" / "er")["workspace"] == str(self.workspace)

    def undo_and_redo_are_exact(self) -> None:
        first = self.tree()
        (self.workspace / "a.txt").write_bytes(b"second\r\n")
        (self.workspace / "d" / "b.txt").unlink()
        (self.workspace / "deep").rename(self.workspace / "deeper")
        (self.workspace / "empty").rmdir()
        (self.workspace / "n" / "m").mkdir(parents=True)
        (self.workspace / "n" / "new.txt").write_text("new")
        (self.workspace / "\u00fcnic\u00f6de \U0001f600.txt").write_text("name")
        os.chmod(self.workspace / "d" / "c.txt", stat.S_IWRITE | stat.S_IREAD)
        made = self.run("checkpoint", "--label", "two")
        assert made["created"], made
        second = self.tree()
        assert self.run("undo")["kept"] == []
        assert self.tree() == first
        assert not os.stat(self.workspace / "d" / "c.txt").st_mode & stat.S_IWRITE
        assert self.run("drift")["changes"] == []
        assert self.run("redo")["head"] == made["id"]
        assert self.tree() == second
        assert os.stat(self.workspace / "d" / "c.txt").st_mode & stat.S_IWRITE
        assert not self.run("checkpoint")["created"]

    def one_path_comes_back(self) -> None:
        self.run("restore", "base", "d\\b.txt")
        assert (self.workspace / "d" / "b.txt").read_bytes() == b"first\r\n"
        assert not (self.workspace / "deep").exists()
        assert self.run("cat", "base:deep/er/file.txt")["size"] == 7
        assert [row["name"] for row in self.run("ls", "base:deep")["entries"]] == ["er"]

    def paths_are_shown_with_slashes(self) -> None:
        (self.workspace / "n" / "m" / "x").write_text("x")
        changes = self.run("diff")["changes"]
        assert {"path": "n/m/x", "kind": "create"} in changes, changes
        self.run("undo")

    def long_paths(self) -> None:
        long = "\\\\?\\" + str(self.workspace / "long")
        part = "x" * 100
        for _ in range(4):
            os.mkdir(long)
            long += "\\" + part
        with open(long, "wb") as file:
            file.write(b"deep down")
        self.run("checkpoint")
        assert any(len(change["path"]) > 300 for change in self.run("diff", "@~1", "@")["changes"])
        self.run("undo")
        assert not (self.workspace / "long").exists()
        self.run("redo")
        with open(long, "rb") as file:
            assert file.read() == b"deep down"
        self.run("undo")

    def a_file_that_is_held_open_is_named(self) -> None:
        (self.workspace / "held.txt").write_text("1")
        self.run("checkpoint")
        before = self.tree()
        with open(self.workspace / "held.txt", "rb"):
            told = self.run("undo", status=1)["error"]["message"]
            assert "held.txt" in told, told
        assert self.tree() == before, "what cannot be done as a whole is taken back"
        self.run("undo")
        assert not (self.workspace / "held.txt").exists()

    def names_that_differ_in_case_alone(self) -> None:
        (self.workspace / "case.txt").write_text("1")
        self.run("checkpoint")
        # By another name: some file systems take two names of one file for nothing to do.
        os.rename(self.workspace / "case.txt", self.workspace / "between")
        os.rename(self.workspace / "between", self.workspace / "Case.txt")
        made = self.run("checkpoint")
        assert made["created"]
        self.run("undo")
        assert "case.txt" in os.listdir(self.workspace)
        self.run("redo")
        assert "Case.txt" in os.listdir(self.workspace)

    def a_daemon_that_is_killed(self) -> None:
        (self.workspace / "a.txt").write_text("before the kill")
        made = self.run("checkpoint", "--sync")
        (self.workspace / "a.txt").write_text("after")
        _kill(self.daemon())
        status = self.run("status")
        assert status["head"] == made["id"], status
        assert status["dirty"], status
        self.run("undo")
        self.run("redo")
        self.run("undo")
        self.run("restore", made["id"])
        assert (self.workspace / "a.txt").read_text() == "before the kill"

    def a_daemon_that_is_killed_in_the_middle_of_a_restore(self) -> None:
        before = self.tree()
        start = self.run("checkpoint")["id"]
        for number in range(300):
            (self.workspace / f"many{number % 7}").mkdir(exist_ok=True)
            (self.workspace / f"many{number % 7}" / f"{number}.txt").write_text(f"{number}\n" * 50)
        made = self.run("checkpoint", "--sync")["id"]
        after = self.tree()
        for delay in (0.0, 0.1, 0.2, 0.4):
            pid = self.daemon()
            words = [sys.executable, str(MAIN), "restore", start]
            moving = subprocess.Popen(
                words, cwd=self.workspace, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            time.sleep(delay)
            _kill(pid)
            moving.wait()
            head = self.run("status")["head"]
            assert self.run("drift")["changes"] == []
            assert self.tree() == (before if head == start else after), (delay, head)
            self.run("restore", made)
        assert self.tree() == after
        self.run("restore", start)
        assert self.tree() == before

    def daemon(self) -> int:
        """The process that serves the workspace."""
        message = str(self.run("mount", str(self.workspace), status=7)["error"]["message"])
        return int(message.split("process ")[1].split()[0])

    def a_program_in_it(self) -> None:
        self.run("unmount")
        script = "import pathlib; pathlib.Path('made.txt').write_text('made'); raise SystemExit(3)"
        done = subprocess.run(
            [sys.executable, str(MAIN), "run", "--mode", "scan", "--", sys.executable, "-c", script],
            cwd=self.workspace, env=self.environment, capture_output=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 3, (done.returncode, done.stderr)
        assert (self.workspace / "made.txt").read_text() == "made"
        assert self.run("status")["mounted"] is False
        assert len(self.run("log")["checkpoints"]) > 5
        self.mount()
        self.run("restore", self.first)
        assert not (self.workspace / "made.txt").exists()

    def the_store_is_sound_and_can_be_collected(self) -> None:
        assert self.run("fsck")["sound"]
        config = self.top / "config" / "plyfs" / "config.toml"
        config.parent.mkdir(parents=True)
        config.write_text("[retention]\nkeep_last = 1\n")
        assert self.run("gc")["objects"] > 0
        assert self.run("fsck")["sound"]
        assert self.run("doctor")["healthy"]

    def unmounted_it_is_the_plain_directory(self) -> None:
        before = self.tree()
        self.run("unmount")
        assert self.tree() == before
        self.mount()
        assert self.run("drift")["changes"] == []
        self.run("unmount")


def _content(path: Path) -> bytes | None:
    return None if path.is_dir() else path.read_bytes()


def _kill(pid: int) -> None:
    """As the task manager ends a process: TerminateProcess. One that has ended already is no failure."""
    try:
        os.kill(pid, 9)
    except OSError:
        pass


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


STEPS: tuple[Callable[[Story], None], ...] = (
    Story.served_at_a_port,
    Story.undo_and_redo_are_exact,
    Story.one_path_comes_back,
    Story.paths_are_shown_with_slashes,
    Story.long_paths,
    Story.a_file_that_is_held_open_is_named,
    Story.names_that_differ_in_case_alone,
    Story.a_daemon_that_is_killed,
    Story.a_daemon_that_is_killed_in_the_middle_of_a_restore,
    Story.a_program_in_it,
    Story.the_store_is_sound_and_can_be_collected,
    Story.unmounted_it_is_the_plain_directory,
)


def main() -> int:
    """Run the steps; 1 at the first that fails."""
    story = Story()
    try:
        for step in STEPS:
            started = time.monotonic()
            step(story)
            _say(f"ok  {step.__name__.replace('_', ' ')}  {time.monotonic() - started:.1f} s")
    finally:
        story.close()
    _say("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
