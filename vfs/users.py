"""Which processes use a mount: open files, working directories, roots, programs, mappings.

Reads /proc only, never the mount itself, so it cannot wait for the server that asks. Linux; elsewhere nothing is known.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

_FLAGS = re.compile(rb"^flags:\s*([0-7]+)$", re.MULTILINE)


class User(NamedTuple):
    """One process: ``paths`` it uses below the mount, ``writing`` if one of them is open for writing."""

    pid: int
    command: str
    paths: list[bytes]
    writing: bool

    def __str__(self) -> str:
        more = f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else ""
        return f"{self.command} (pid {self.pid}): {os.fsdecode(self.paths[0])}{more}"


def users(point: bytes) -> list[User]:
    """The processes that use something at or below ``point``, as far as this user may see. This one is left out."""
    found = []
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except FileNotFoundError:
        return []
    for pid in pids:
        if pid != os.getpid():
            user = _user(pid, point)
            if user is not None:
                found.append(user)
    return found


def _user(pid: int, point: bytes) -> User | None:
    base = b"/proc/%d/" % pid
    prefix = point.rstrip(b"/") + b"/"
    paths: list[bytes] = []
    writing = False
    try:
        for link in (b"cwd", b"root", b"exe"):
            target = _target(base + link)
            if target == point or target.startswith(prefix):
                paths.append(target)
        for fd in os.listdir(base + b"fd"):
            target = _target(base + b"fd/" + fd)
            if target == point or target.startswith(prefix):
                paths.append(target)
                writing = writing or _is_writing(base, fd)
        if not paths:
            with open(base + b"maps", "rb") as maps:
                for line in maps:
                    at = line.find(b"/")
                    if at >= 0 and line[at:].startswith(prefix):
                        paths.append(line[at:].rstrip(b"\n"))
                        break
        if not paths:
            return None
        with open(base + b"comm", "rb") as comm:
            command = os.fsdecode(comm.read().strip())
    except OSError:  # it ended meanwhile, or is not ours to see
        return None
    return User(pid, command, paths, writing)


def _target(link: bytes) -> bytes:
    try:
        return os.readlink(link)
    except OSError:
        return b""


def _is_writing(base: bytes, fd: bytes) -> bool:
    try:
        with open(base + b"fdinfo/" + fd, "rb") as info:
            match = _FLAGS.search(info.read())
    except OSError:
        return False
    return match is not None and int(match[1], 8) & (os.O_WRONLY | os.O_RDWR) != 0
