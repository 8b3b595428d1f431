"""The real ``plyfs`` command with a home of its own, for tests, the demo and the bench; and the workspaces it serves.

Owns the daemons and mounts that its commands leave behind: ``close`` ends every one of them, whatever state they are
in, and touches none of anybody else. Does not use plyfs itself to find them, so that a broken plyfs is cleaned up too.

Concurrency: one test owns one ``Plyfs``. A watchdog thread kills its daemons when a test hangs in a system call on the
mount, which nothing else could interrupt.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

_ESCAPE = re.compile(r"\\([0-7]{3})")


def mounts_below(*roots: Path) -> list[str]:
    """Mount points at or below ``roots``, deepest first. Reads only /proc, so a dead mount cannot hang it."""
    found = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), line.split(" ")[4])
            if any(point == str(root) or point.startswith(f"{root}/") for root in roots):
                found.append(point)
    return sorted(found, key=len, reverse=True)


def unmount_below(*roots: Path) -> list[str]:
    """Detach every mount below ``roots``; returns those that there were."""
    points = mounts_below(*roots)
    for point in points:
        command = ["umount", "-l", point] if os.geteuid() == 0 else ["fusermount3", "-u", "-z", point]
        subprocess.run(command, check=False, capture_output=True, timeout=30)
    return points


class CommandError(AssertionError):
    """A command that should have succeeded did not; the message holds what it printed."""


class Plyfs:
    """The command. ``home`` is its store and runtime directory, made short because socket paths are.

    ``measured`` False keeps its processes out of a coverage measurement, which would slow them several times; ``top``
    is where the home is made, if the disk matters. ``user`` runs it as another user, which root may ask for.
    """

    def __init__(
        self,
        channel: str | None = None,
        environment: Mapping[str, str] | None = None,
        measured: bool = True,
        top: Path | None = None,
        user: int | None = None,
    ) -> None:
        self.top = Path(tempfile.mkdtemp(prefix="plyfs-", dir=top))
        self.prefix: list[str] = []
        if user is not None:
            os.chown(self.top, user, user)
            self.prefix = _as_user(user)
        self.home = self.top / "home"
        self.channel = channel or os.environ.get("PLYFS_TEST_CHANNEL", "auto")
        self.roots: list[Path] = [self.top]
        dropped = ("PLYFS_",) if measured else ("PLYFS_", "COVERAGE_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        self.environment = {
            **kept,
            "PLYFS_HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.top / "config"),
            "NO_COLOR": "1",
            **({} if user is None else {"HOME": str(self.top), "PYTHONDONTWRITEBYTECODE": "1"}),
            **(environment or {}),
        }

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs plyfs with ``arguments``: installed beside this Python, else its module."""
        installed = Path(sys.executable).with_name("plyfs")
        return [str(installed), *arguments] if installed.exists() else [sys.executable, "-m", "harness.cli", *arguments]

    def run(
        self, *arguments: str, cwd: Path | None = None, check: bool = True, timeout: float = 60, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run one command to its end. ``check`` makes a failing one raise CommandError."""
        here = str(Path(__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, [here, self.environment.get("PYTHONPATH", "")]))
        done = subprocess.run(
            [*self.prefix, *self.command(*arguments)],
            cwd=cwd or "/",
            env={**self.environment, "PYTHONPATH": path},
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=timeout,
            check=False,
        )
        if check and done.returncode != 0:
            raise CommandError(f"plyfs {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def json(self, *arguments: str, cwd: Path | None = None, check: bool = True, timeout: float = 60) -> Any:
        """The object that ``plyfs --json`` prints."""
        done = self.run(*arguments, "--json", cwd=cwd, check=check, timeout=timeout)
        return json.loads(done.stdout)

    def owns(self, root: Path) -> None:
        """Mounts at or below ``root`` are this command's, to be taken away in ``close``."""
        self.roots.append(root)

    def daemons(self) -> list[psutil.Process]:
        """Living processes that have this home in their environment, except this one's own children by hand."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid != os.getpid() and process.environ().get("PLYFS_HOME") == str(self.home):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def kill_daemons(self) -> None:
        """SIGKILL to each, and wait until they are gone."""
        victims = self.daemons()
        for process in victims:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(victims, timeout=10)

    def stop_daemons(self, patience: float) -> None:
        """Let them end by themselves for ``patience`` seconds (they write coverage data then), else kill them."""
        for process in (processes := self.daemons()):
            try:
                process.terminate()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(processes, timeout=patience)
        self.kill_daemons()

    def close(self) -> list[str]:
        """End all daemons, detach all mounts, remove the home; returns the mounts that were still there."""
        left = unmount_below(*self.roots)
        self.stop_daemons(3)
        unmount_below(*self.roots)
        shutil.rmtree(self.top, onerror=_make_writable)
        return left


def _as_user(user: int) -> list[str]:
    """The start of a command line that runs as ``user``; with the right to read everything if this interpreter lies in
    root's own directory.
    """
    prefix = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    # Through a shell, because setpriv's own exec still has root's rights.
    probe = [*prefix, "sh", "-c", f"exec '{sys.executable}' -c 'import psutil'"]
    if subprocess.run(probe, cwd="/", capture_output=True, check=False).returncode != 0:
        prefix += ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
    return prefix


def _make_writable(function: Any, path: str, _: Any) -> None:
    os.chmod(os.path.dirname(path), 0o700)
    if os.path.isdir(path) and not os.path.islink(path):
        os.chmod(path, 0o700)
    function(path)


class Served:
    """One workspace: ``path`` is the real directory, and the mount while it is served."""

    def __init__(self, plyfs: Plyfs, path: Path) -> None:
        self.plyfs = plyfs
        self.path = path
        plyfs.owns(path)

    def run(self, *arguments: str, check: bool = True, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """``plyfs COMMAND -C PATH ...`` from outside the workspace."""
        return self.plyfs.run(arguments[0], "-C", str(self.path), *arguments[1:], check=check, timeout=timeout)

    def json(self, *arguments: str, check: bool = True, timeout: float = 60) -> Any:
        """The object that the command prints with ``--json``."""
        return json.loads(self.run(*arguments, "--json", check=check, timeout=timeout).stdout)

    def mount(self, *options: str) -> Any:
        """Serve it."""
        return self.plyfs.json("mount", str(self.path), "--channel", self.plyfs.channel, *options)

    def unmount(self, how: str = "--apply", timeout: float = 300) -> Any:
        """Stop serving."""
        return self.json("unmount", how, timeout=timeout)

    def remount(self, how: str = "--apply") -> Any:
        """Stop serving, and serve again."""
        self.unmount(how)
        return self.mount()

    def checkpoint(self, label: str | None = None, *options: str) -> str:
        """A checkpoint's id."""
        named = ["-m", label] if label else []
        return str(self.json("checkpoint", *named, *options)["id"])

    def is_mounted(self) -> bool:
        """True while something is mounted at the path."""
        return str(self.path) in mounts_below(self.path)

    def kill(self) -> None:
        """kill -9 of the daemon."""
        self.plyfs.kill_daemons()


class Watchdog:
    """Kills the daemons of a ``Plyfs`` after ``seconds``: the calls that hang on its mounts then fail with ENOTCONN."""

    def __init__(self, plyfs: Plyfs, seconds: float) -> None:
        self._plyfs = plyfs
        self.fired = False
        self._timer = threading.Timer(seconds, self._fire)
        self._timer.daemon = True
        self._started = time.monotonic()
        self._timer.start()

    def _fire(self) -> None:
        self.fired = True
        seconds = time.monotonic() - self._started
        print(f"watchdog: killing the daemons of {self._plyfs.home} after {seconds:.0f} s", file=sys.stderr)  # noqa: T201
        self._plyfs.kill_daemons()

    def cancel(self) -> None:
        """The test has ended by itself."""
        self._timer.cancel()
