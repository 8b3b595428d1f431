"""Real processes that kill themselves with SIGKILL after effect number N, on the store or on the workspace.

Run as ``python -m tests.scan.dying WORKSPACE HOME``: for each line ``ACT N`` of its input it forks a process that
serves the workspace and acts, and answers ``killed``, or ``done`` if there were fewer effects. ``undo`` counts the
effects of an undo, ``start`` those of starting to serve, which settles what was interrupted.

Concurrency: one process at a time serves the workspace. Forking costs less than starting Python for each.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path

from harness.config import Config
from tests.scan.conftest import Scanned
from tests.scan.stopping import FaultyPlatform
from tests.store.faulty_disk import FaultyDisk
from vfs.scan.policy import Policy


class KillingDisk(FaultyDisk):
    """After effect number ``stop_after`` the process is no more."""

    def _after(self, name: str) -> None:
        self.effects.append(name)
        if self._stop_after is not None and len(self.effects) >= self._stop_after:
            os.kill(os.getpid(), signal.SIGKILL)

    def begin(self, stop_after: int) -> None:
        """Count from now on; every other process is killed in the middle of an append, if that is its last effect."""
        self.effects.clear()
        self._stop_after, self._torn = stop_after, stop_after % 2 == 0


def act(what: str, stop_after: int, workspace: Path, home: Path) -> None:
    """Serve, do ``what`` and die, or come to the end of it."""
    disk = KillingDisk()
    one = Scanned(workspace, home)
    if what == "start":
        disk.begin(stop_after)
    ws = one.start(Policy(max_bytes=Config().scan.max_file_bytes), platform=FaultyPlatform(disk), disk=disk)
    if what == "undo":
        disk.begin(stop_after)
        ws.undo()
    disk.begin(1 << 30)
    one.stop()


def main() -> None:
    """Answer each line."""
    workspace, home = map(Path, sys.argv[1:])
    for line in sys.stdin:
        what, after = line.split()
        child = os.fork()
        if not child:
            try:
                act(what, int(after), workspace, home)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print({-signal.SIGKILL: "killed", 0: "done"}.get(status, f"exit {status}"), flush=True)  # noqa: T201


class Mortals:
    """The processes, for a test: ``close`` it."""

    def __init__(self, workspace: Path, home: Path) -> None:
        repository = str(Path(__file__).resolve().parents[2])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.scan.dying", workspace, home],
            cwd=repository,
            env={**os.environ, "PYTHONPATH": repository},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )

    def killed(self, what: str, after: int) -> bool:
        """True if a process was killed after so many effects of ``what``, False if it came to its end."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{what} {after}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        assert answer in ("killed", "done"), answer
        return answer == "killed"

    def close(self) -> None:
        """No more of them."""
        self._process.communicate(timeout=60)


if __name__ == "__main__":
    main()
