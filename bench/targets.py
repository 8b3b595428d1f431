"""What a workload runs on: a plain directory, or one of the file systems that put a writable layer over it.

Owns mounting and unmounting. A target is opened over a prepared base directory and gives the directory to work in.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Protocol

import psutil

from bench.samples import FUSE_OVERLAYFS, PLAIN
from tests.served import Plyfs, mounts_below, unmount_below


class Target(Protocol):
    """One column of the table."""

    name: str

    def lacking(self) -> str:
        """Why it cannot be measured on this machine; empty if it can."""
        ...

    def open(self, base: Path, scratch: Path) -> Path:
        """Serve ``base`` and return where; ``scratch`` is an empty directory on the same disk."""
        ...

    def close(self) -> None:
        """Stop serving, whatever state it is in."""
        ...


class Plain:
    """The directory itself."""

    name = PLAIN

    def lacking(self) -> str:
        """Never."""
        return ""

    def open(self, base: Path, scratch: Path) -> Path:
        """As it is."""
        return base

    def close(self) -> None:
        """Nothing to do."""


class Overlay:
    """A mount of an upper directory over the base; ``kind`` is the kernel's or the FUSE implementation."""

    def __init__(self, kind: str) -> None:
        self.name = kind
        self._point: Path | None = None

    def lacking(self) -> str:
        """Needs root for the kernel's, and the program for the other."""
        if self.name == FUSE_OVERLAYFS:
            return "" if shutil.which(FUSE_OVERLAYFS) else "no fuse-overlayfs"
        known = "\toverlay\n" in Path("/proc/filesystems").read_text()
        return "" if known and os.geteuid() == 0 else "needs root and a kernel with overlay"

    def open(self, base: Path, scratch: Path) -> Path:
        """Mount over ``base``."""
        for name in ("upper", "work", "merged"):
            (scratch / name).mkdir()
        self._point = scratch / "merged"
        options = f"lowerdir={base},upperdir={scratch / 'upper'},workdir={scratch / 'work'}"
        if self.name == FUSE_OVERLAYFS:
            command = [FUSE_OVERLAYFS, "-o", options, str(self._point)]
        else:
            command = ["mount", "-t", "overlay", "overlay", "-o", options, str(self._point)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        return self._point

    def close(self) -> None:
        """Unmount and wait until the server, if there is one, has gone."""
        if self._point is None:
            return
        servers = _holding(self._point)
        unmount_below(self._point)
        psutil.wait_procs(servers, timeout=20)
        self._point = None


def _holding(point: Path) -> list[psutil.Process]:
    """The fuse-overlayfs processes that serve ``point``."""
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] == FUSE_OVERLAYFS and str(point) in (process.info["cmdline"] or []):
            found.append(process)
    return found


class Served:
    """plyfs in place over the base, through one channel."""

    def __init__(self, channel: str) -> None:
        self.name = f"plyfs {channel}"
        self.channel = channel
        self.plyfs: Plyfs | None = None
        self.socket = ""
        self.pid = 0

    def lacking(self) -> str:
        """Needs /dev/fuse, and the pyfuse3 package for that channel."""
        if not os.access("/dev/fuse", os.W_OK):
            return "no usable /dev/fuse"
        if self.channel == "pyfuse3":
            from importlib.util import find_spec

            return "" if find_spec("pyfuse3") else "no package pyfuse3"
        return ""

    def open(self, base: Path, scratch: Path) -> Path:
        """Mount over ``base``."""
        self.plyfs = Plyfs(self.channel, measured=False, top=scratch)
        self.plyfs.owns(base)
        answer = self.plyfs.json("mount", str(base), "--channel", self.channel, timeout=300)
        self.socket, self.pid = answer["socket"], answer["pid"]
        return base

    def close(self) -> None:
        """Drop what was done; the base is the bench's own copy."""
        if self.plyfs is None:
            return
        for root in self.plyfs.roots:
            for point in mounts_below(root):
                self.plyfs.run("unmount", "-C", point, "--discard", "--lazy", check=False, timeout=300)
        deadline = time.monotonic() + 60
        while self.plyfs.daemons() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.plyfs.close()
        self.plyfs = None


def all_targets() -> list[Target]:
    """Every column, in the order of the table."""
    return [Plain(), Overlay("overlayfs"), Overlay(FUSE_OVERLAYFS), Served("direct"), Served("pyfuse3")]
