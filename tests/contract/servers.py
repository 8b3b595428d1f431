"""Mounts for the contract tests: a server process each, gone with its mount when the tests end, however they end."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Server:
    """A file system (``memory`` or ``workspace``) served at ``path`` by ``channel`` in a process of its own.

    It runs as user id ``user`` (0: as we do), started by ``wrapper``, and is killed after ``seconds`` (see ``watch``),
    because a test that hangs in a system call on the mount can only be freed by the end of its server.
    """

    def __init__(
        self,
        path: Path,
        channel: str = "direct",
        user: int = 0,
        seconds: float = 60,
        wrapper: Sequence[str] = (),
        kind: str = "memory",
        **options: Any,
    ) -> None:
        self.path = path
        self.channel = channel
        ours, theirs = multiprocessing.Pipe()
        self._pipe = ours
        self.kind = kind
        arguments = [str(theirs.fileno()), kind, channel, str(path), str(user), repr(options)]
        self.process = subprocess.Popen(
            [*wrapper, sys.executable, "-m", "tests.contract.serve", *arguments], pass_fds=(theirs.fileno(),), cwd=ROOT
        )
        theirs.close()
        self._watchdog: threading.Timer | None = None
        self.watch(seconds)
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def watch(self, seconds: float) -> None:
        """Kill the server in so many seconds from now, unless called again."""
        self.unwatch()
        self._watchdog = threading.Timer(seconds, self.process.kill)
        self._watchdog.daemon = True
        self._watchdog.start()

    def unwatch(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()

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

    def alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        """End the server and its mount."""
        self.unwatch()
        self._pipe.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.mounted():
            command = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
            subprocess.run([*command, str(self.path)], check=False, capture_output=True, timeout=30)

    def mounted(self) -> bool:
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            return any(line.split(" ")[4] == str(self.path) for line in file)


class Pool:
    """One server for each file system and channel, made when first asked for and again if it has died."""

    def __init__(self) -> None:
        self._servers: dict[tuple[str, str], Server] = {}

    def server(self, kind: str, channel: str) -> Server:
        server = self._servers.get((kind, channel))
        if server is not None and not server.alive():
            server.close()
            server = None
        if server is None:
            path = open_directory()
            try:
                server = self._servers[kind, channel] = Server(path, channel, kind=kind)
            except BaseException:
                path.rmdir()
                raise
        return server

    def close(self) -> None:
        for server in self._servers.values():
            server.close()
            shutil.rmtree(server.path, ignore_errors=True)


def open_directory() -> Path:
    """A new directory that any user can reach (pytest's own are for one user)."""
    path = Path(tempfile.mkdtemp(prefix="plyfs-contract-"))
    path.chmod(0o755)
    return path


OPEN_DEVICE = (
    "unshare",
    "--mount",
    "sh",
    "-c",
    'd=$(mktemp -d) && mount -t tmpfs none "$d" && mknod -m 666 "$d/fuse" c 10 229 && mount --bind "$d/fuse" /dev/fuse'
    ' && umount -l "$d" && rmdir "$d" && exec "$@"',
    "sh",
)
"""Starts a program in a mount namespace of its own where any user may open /dev/fuse, as on an ordinary machine."""
