"""``make demo``: the main job of plyfs on a real project, with every claim checked. Exits with 1 if one does not hold.

Everything happens in a temporary directory with a store of its own; nothing is left behind.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.demo import project
from tests.demo.stage import Stage
from tests.served import Plyfs, mounts_below
from tests.treestate import TreeState, capture


class Story:
    """The demo's course. ``states`` keeps the exact tree after each turn, for comparison when it comes back."""

    def __init__(self, plyfs: Plyfs, top: Path) -> None:
        self._plyfs = plyfs
        self._top = top
        self._stage = Stage(plyfs, top)
        self._states: dict[str, TreeState] = {}

    def run(self) -> int:
        """The number of claims that did not hold."""
        self._mount()
        self._turns()
        self._undo_and_redo()
        self._branch()
        self._restore_one_path()
        self._crash()
        self._unmount()
        return self._stage.failed

    def _move(self, name: str, *command: str, lines: int = 6) -> None:
        """Run a command that brings back the tree of ``name``, and check that it did, touching only what differs."""
        left = capture(self._top)
        self._stage.command(*command, lines=lines)
        found, wanted = capture(self._top), self._states[name]
        self._stage.same(found.untimed(), wanted.untimed(), f"the tree is exactly as it was after {name!r}")
        plain_left, plain_found = left.untimed().paths, found.untimed().paths
        moved = [
            path
            for path, facts in left.paths.items()
            if plain_left[path] == plain_found.get(path) and found.paths[path] != facts
        ]
        self._stage.check(not moved, "files that did not differ kept their times", "\n".join(moved[:10]))

    def _mount(self) -> None:
        stage, top = self._stage, self._top
        project.create(top)
        files = sum(len(names) for _, _, names in os.walk(top))
        stage.chapter(
            "Mount",
            f"""A clone of this repository ({files} files) lies in {top}. plyfs serves that same directory from now on:
            same paths, same files, same git.""",
        )
        before = capture(top)
        stage.command("mount", ".")
        stage.check(str(top) in mounts_below(top), "the project's own path is the mount")
        self._states["the start"] = capture(top)
        stage.same(self._states["the start"], before, "mounted, the tree is the same to the nanosecond")
        if (top / ".git").exists():
            environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
            status = subprocess.run(
                ["git", "status", "--porcelain"], cwd=top, env=environment, capture_output=True, check=False
            )
            stage.check(status.returncode == 0 and not status.stdout, "git status is clean", str(status))

    def _turns(self) -> None:
        stage, top = self._stage, self._top
        stage.chapter(
            "Three turns",
            """A scripted agent works in the mount with ordinary programs. After each turn its host asks for a
            checkpoint, which takes a few milliseconds whatever the turn did.""",
        )
        for name, turn in (
            ("edit and build", project.edit_and_build),
            ("install packages", project.install_dependencies),
            ("a turn gone wrong", project.go_wrong),
        ):
            turn(top, stage.act)
            stage.command("checkpoint", "-m", name)
            self._states[name] = capture(top)
        stage.command("log", "--graph")
        stage.command("diff", "@~1", "@", "--stat", lines=12)

    def _undo_and_redo(self) -> None:
        stage = self._stage
        stage.chapter(
            "Undo and redo",
            """The last turn deleted sources, moved a directory and put a symlink in its place, changed modes, wrote
            a big file and broke node_modules. One command takes all of it back; another brings it again.""",
        )
        self._move("install packages", "undo", lines=12)
        self._move("the start", "undo", "2")
        self._move("a turn gone wrong", "redo", "3")

    def _branch(self) -> None:
        stage, top = self._stage, self._top
        stage.chapter(
            "Another way",
            """Going on from an earlier state starts a branch. Nothing is forgotten: every checkpoint can still be
            reached.""",
        )
        self._move("edit and build", "undo", "2")
        project.take_another_way(top, stage.act)
        stage.command("checkpoint", "-m", "another way")
        self._states["another way"] = capture(top)
        stage.command("log", "--graph")
        self._move("a turn gone wrong", "restore", "a turn gone wrong")
        self._move("another way", "restore", "another way")

    def _restore_one_path(self) -> None:
        stage, top = self._stage, self._top
        stage.chapter("One path only", "Any path of any checkpoint can be read, or brought back, by itself.")
        stage.command("cat", "edit and build:NOTES.md")
        stage.command("restore", "edit and build", "NOTES.md")
        found, wanted = capture(top).untimed(), self._states["another way"].untimed()
        wanted.paths["NOTES.md"] = self._states["edit and build"].untimed().paths["NOTES.md"]
        stage.same(found, wanted, "NOTES.md is back and nothing else changed")

    def _crash(self) -> None:
        stage, top = self._stage, self._top
        stage.chapter(
            "kill -9",
            """The agent goes on working, and the daemon is killed in the middle of it, with changes that no checkpoint
            holds. The next plyfs command finds the dead mount, serves it again, and nothing is lost.""",
        )
        project.keep_working(top, stage.act)
        before = capture(top)
        print(f"  $ kill -9 {' '.join(str(process.pid) for process in self._plyfs.daemons())}")
        self._plyfs.kill_daemons()
        try:
            os.listdir(top)
            stage.check(False, "without its daemon the mount answers with an error")
        except OSError as error:
            stage.check(error.errno == errno.ENOTCONN, f"without its daemon the mount says: {error.strerror}")
        stage.command("status", "-C", str(top))
        stage.same(
            capture(top).untimed(), before.untimed(), "everything is there again, also what was not checkpointed"
        )

    def _unmount(self) -> None:
        stage, top = self._stage, self._top
        stage.chapter(
            "Unmount",
            """A clean unmount writes the tree into the real directory, so that the project stays as it was seen. The
            checkpoints stay in the store for the next mount.""",
        )
        before = capture(top)
        stage.command("unmount", "-C", str(top))
        stage.check(not mounts_below(top), "nothing is mounted there any more")
        stage.same(capture(top), before, "the real directory is what the mount showed")
        for _ in range(50):
            if not self._plyfs.daemons():
                break
            time.sleep(0.1)
        stage.check(not self._plyfs.daemons(), "no process is left")


def main() -> int:
    """The exit status: 0 if every claim held."""
    started = time.monotonic()
    top = Path(tempfile.mkdtemp(prefix="plyfs-demo-"))
    plyfs = Plyfs()
    plyfs.owns(top)
    try:
        failed = Story(plyfs, top / "project").run()
    finally:
        plyfs.close()
        shutil.rmtree(top)
    seconds = time.monotonic() - started
    if failed:
        print(f"\n{failed} claims did not hold ({seconds:.0f} s).")
        return 1
    print(f"\nEvery claim held ({seconds:.0f} s). The demo's directory and store are removed again.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
