"""Which processes use a mount, or a directory: open files, working directories, roots, programs, mappings.

A path alone does not tell: who was in the directory before the mount covered it is still below. So the mount's number
is compared, where the process sees the same mounts as this one. Reads /proc only and opens nothing but handles, so it
cannot wait for the server that asks. Linux; elsewhere nothing is known.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from vfs.channels.mountinfo import mount_at

_FLAGS = re.compile(rb"^flags:\s*([0-7]+)$", re.MULTILINE)
_MOUNT = re.compile(rb"^mnt_id:\s*([0-9]+)$", re.MULTILINE)


class User(NamedTuple):
    """One process: ``paths`` it uses there; ``writing`` if one of them is open for writing, which comes first then."""

    pid: int
    command: str
    paths: list[bytes]
    writing: bool

    def __str__(self) -> str:
        more = f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else ""
        return f"{self.command} (pid {self.pid}): {os.fsdecode(self.paths[0])}{more}"


def users(point: bytes) -> list[User]:
    """The processes that use something at or below the mount point ``point``, as far as this user may see. This one is
    left out.
    """
    mount = mount_at(point)
    return [] if mount is None else _users(point, mount.id)


def users_of_directory(path: bytes, fd: int) -> list[User]:
    """The same for a directory that is no mount: ``fd`` has it open."""
    mount = _number(_MOUNT, b"/proc/self/fdinfo/%d" % fd, 10)
    return [] if mount < 0 else _users(path, mount)


def _users(point: bytes, mount: int) -> list[User]:
    found = []
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        if pid != os.getpid():
            user = _Process(pid, point, mount).user()
            if user is not None:
                found.append(user)
    return found


class _Process:
    """One process, seen through /proc."""

    def __init__(self, pid: int, point: bytes, mount: int) -> None:
        self._pid = pid
        self._base = b"/proc/%d/" % pid
        self._point = point
        self._prefix = point.rstrip(b"/") + b"/"
        self._mount = mount

    def user(self) -> User | None:
        """What it uses of the mount, None for nothing, or if it ended meanwhile or is not ours to see."""
        try:
            self._same_mounts = os.readlink(self._base + b"ns/mnt") == os.readlink(b"/proc/self/ns/mnt")
            paths, writing = self._open_files()
            places = self._places()
            paths = ([*paths, *places] if writing else [*places, *paths]) or self._mappings()
            if not paths:
                return None
            with open(self._base + b"comm", "rb") as comm:
                return User(self._pid, os.fsdecode(comm.read().strip()), paths, writing)
        except OSError:
            return None

    def _is_below(self, path: bytes) -> bool:
        return path == self._point or path.startswith(self._prefix)

    def _places(self) -> list[bytes]:
        """Its working directory, root and program."""
        found = []
        for link in (b"cwd", b"root", b"exe"):
            target = _target(self._base + link)
            if self._is_below(target) and (not self._same_mounts or self._mount_of(link) == self._mount):
                found.append(target)
        return found

    def _mount_of(self, link: bytes) -> int:
        handle = os.open(self._base + link, os.O_PATH | os.O_CLOEXEC)
        try:
            return _number(_MOUNT, b"/proc/self/fdinfo/%d" % handle, 10)
        finally:
            os.close(handle)

    def _open_files(self) -> tuple[list[bytes], bool]:
        """Its open files there, and whether one of them is open for writing."""
        found: list[bytes] = []
        writing = False
        for fd in os.listdir(self._base + b"fd"):
            target = _target(self._base + b"fd/" + fd)
            if not self._is_below(target):
                continue
            info = self._base + b"fdinfo/" + fd
            if self._same_mounts and _number(_MOUNT, info, 10) != self._mount:
                continue
            if _number(_FLAGS, info, 8) & (os.O_WRONLY | os.O_RDWR):
                writing = True
                found.insert(0, target)
            else:
                found.append(target)
        return found, writing

    def _mappings(self) -> list[bytes]:
        """A file there that it has mapped, if it has one. Mappings of what lies below the mount count too."""
        with open(self._base + b"maps", "rb") as maps:
            for line in maps:
                at = line.find(b"/")
                if at >= 0 and line[at:].startswith(self._prefix):
                    return [line[at:].rstrip(b"\n")]
        return []


def _target(link: bytes) -> bytes:
    try:
        return os.readlink(link)
    except OSError:
        return b""


def _number(pattern: re.Pattern[bytes], path: bytes, base: int) -> int:
    """The number that ``pattern`` finds in a file of /proc, -1 for none."""
    try:
        with open(path, "rb") as info:
            match = pattern.search(info.read())
    except OSError:
        return -1
    return -1 if match is None else int(match[1], base)
