"""The attic of a workspace: numbered folders with what applies replaced in the base.

Owns their names and how one is removed. Does not own what is put in (the apply, in vfs) nor which are needed
(``sweep``).

A folder is removed by taking it apart from above: each directory in it is first moved up into the attic itself. So
neither its depth nor the length of its paths matters, and what a kill leaves has a name of its own, to go later.

Concurrency: one process, the holder of the workspace's lock.
"""

from __future__ import annotations

import os
import stat
from itertools import count

from store.disk import PRIVATE_DIRECTORY, Disk

LEFT = b"removing-"
"""How the name of a directory that is being taken apart begins."""


def folders(attic: bytes) -> list[int]:
    """The numbers of the folders, in order."""
    return sorted(int(name) for name in os.listdir(attic) if name.isdigit())


def folder_path(attic: bytes, number: int) -> bytes:
    """Where folder ``number`` lies."""
    return os.path.join(attic, b"%d" % number)


def remove_folder(disk: Disk, attic: bytes, number: int) -> None:
    """Remove a folder and all in it, also where its modes forbid that to its owner. No symbolic link is followed."""
    remove_leftovers(disk, attic)
    disk.rename(folder_path(attic, number), os.path.join(attic, LEFT + b"0"))
    remove_leftovers(disk, attic)


def remove_leftovers(disk: Disk, attic: bytes) -> int:
    """Remove what an interrupted removal left; returns the number of directories that it left."""
    waiting = [name for name in os.listdir(attic) if name.startswith(LEFT)]
    found = len(waiting)
    if not waiting:
        return 0
    numbers = count(1 + max(int(name[len(LEFT) :]) for name in waiting))
    attic_fd = os.open(attic, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while waiting:
            name = waiting.pop()
            waiting += _empty(disk, attic_fd, name, numbers)
            disk.rmdir(name, dir_fd=attic_fd)
    finally:
        os.close(attic_fd)
    return found


def _empty(disk: Disk, attic_fd: int, name: bytes, numbers: count[int]) -> list[bytes]:
    """Take everything out of a directory of the attic; the names that the directories in it have now."""
    moved = []
    _make_accessible(disk, name, attic_fd)
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=attic_fd)
    try:
        for below in os.listdir(fd):
            inner = os.fsencode(below)
            if stat.S_ISDIR(os.stat(inner, dir_fd=fd, follow_symlinks=False).st_mode):
                _make_accessible(disk, inner, fd)
                new = LEFT + b"%d" % next(numbers)
                disk.rename(inner, new, src_dir_fd=fd, dst_dir_fd=attic_fd)
                moved.append(new)
            else:
                disk.unlink(inner, dir_fd=fd)
    finally:
        os.close(fd)
    return moved


def _make_accessible(disk: Disk, name: bytes, dir_fd: int) -> None:
    """Let the owner list and change a directory."""
    mode = stat.S_IMODE(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode)
    if mode & PRIVATE_DIRECTORY != PRIVATE_DIRECTORY:
        disk.chmod(name, mode | PRIVATE_DIRECTORY, dir_fd=dir_fd)
