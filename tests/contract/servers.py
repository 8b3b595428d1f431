"""Mounts for the contract tests: a server process each, gone with its mount when the test ends, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Server:
    """A memory file system served at ``path`` by ``channel`` in a process of its own, as user id ``user`` (0: as is)."""

    def __init__(self, path: Path, channel: str = "direct", user: int = 0, seconds: float = 60, **options: Any) -> None:
        self.path = path
        self.channel = channel
        self._user = user
        ours, theirs = multiprocessing.Pipe()
        self._pipe = ours
        arguments = [str(theirs.fileno()), channel, str(path), str(user), repr(options)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.contract.serve", *arguments], pass_fds=(theirs.fileno(),), cwd=ROOT
        )
        theirs.close()
        # a test that hangs in a system call on the mount can only be freed by the end of its server
        self._watchdog = threading.Timer(seconds, self.process.kill)
        self._watchdog.daemon = True
        self._watchdog.start()
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def _answer(self) -> Any:
        try:
            fine, value = self._pipe.recv()
        except EOFError:
            raise AssertionError(f"the server is gone: {self.process.wait(10)}") from None
        assert fine, value
        return value

    def run(self, source: str) -> Any:
        """Evaluate ``source`` in the server, where ``fs`` and ``channel`` are."""
        self._pipe.send(source)
        return self._answer()

    def cpu(self) -> float:
        """Seconds of processor time the server has used."""
        return float(self.run("__import__('time').process_time()"))

    def close(self) -> None:
        """End the server and its mount."""
        self._watchdog.cancel()
        self._pipe.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        command = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
        if self.mounted():
            subprocess.run([*command, str(self.path)], check=False, capture_output=True, timeout=30)

    def mounted(self) -> bool:
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            return any(line.split(" ")[4] == str(self.path) for line in file)
