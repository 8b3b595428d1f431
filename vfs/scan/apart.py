"""Files of the attic that are the workspace's still, under another name: from now on each is on its own.

An unmount that takes away one name of a hard-linked file puts it into the attic by rename. As long as mounts serve the
workspace nobody writes into such a file in place; while it is scanned everybody does, and what older checkpoints cite
would change with it. Owns giving the attic a copy, in the place of the shared file, with all its attributes.

A kill leaves at most one file that is nobody's, which the next run takes away. One thread; the store's lock is held.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator

from store.disk import Disk
from store.errors import StoreError
from vfs.trees.contents import copy_data

PREPARED = b"attic-copy"
"""The file in the workspace's part of the store in which a copy is made."""

_FILE = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def set_apart(disk: Disk, store_path: bytes, attic: bytes) -> list[str]:
    """Copy what the attic shares with others; returns, for people, what could not be."""
    prepared = os.path.join(store_path, PREPARED)
    if os.path.lexists(prepared):
        disk.unlink(prepared)
    names: dict[tuple[int, int], list[tuple[bytes, bytes]]] = {}
    links: dict[tuple[int, int], int] = {}
    for directory, name, status in _linked_files(attic):
        names.setdefault((status.st_dev, status.st_ino), []).append((directory, name))
        links[status.st_dev, status.st_ino] = status.st_nlink
    failed = []
    for inode, places in names.items():
        if len(places) == links[inode]:
            continue  # all its names are here
        try:
            _copy(disk, prepared, places)
        except (OSError, StoreError) as error:
            path = os.fsdecode(os.path.join(*places[0]))
            failed.append(f"{path} stays one file with one in the workspace, which must not be written to: {error}")
    return failed


def _linked_files(top: bytes) -> Iterator[tuple[bytes, bytes, os.stat_result]]:
    waiting = [top]
    while waiting:
        directory = waiting.pop()
        try:
            with os.scandir(directory) as found:
                entries = list(found)
        except OSError:
            continue  # closed to its owner, or too deep: it is as before
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                waiting.append(entry.path)
            elif stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                yield directory, entry.name, status


def _copy(disk: Disk, prepared: bytes, places: list[tuple[bytes, bytes]]) -> None:
    """One new file, in the place of all the names of one old one."""
    first = os.path.join(*places[0])
    source = os.open(first, _FILE)
    try:
        status = os.fstat(source)
        target = disk.create(prepared)
        try:
            os.ftruncate(target, status.st_size)
            copy_data(source, 0, target, 0, status.st_size)
        finally:
            os.close(target)
        if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
            os.chown(prepared, status.st_uid, status.st_gid)
        shutil.copystat(first, prepared, follow_symlinks=False)
        _flush(prepared)
        for directory, name in places:
            _put(disk, prepared, directory, name)
        disk.unlink(prepared)
    except BaseException:
        if os.path.lexists(prepared):
            disk.unlink(prepared)
        raise
    finally:
        os.close(source)


def _flush(path: bytes) -> None:
    """Content and attributes: what it replaces is on the device."""
    fd = os.open(path, _FILE)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _put(disk: Disk, prepared: bytes, directory: bytes, name: bytes) -> None:
    """The new file as ``name``, by rename; the directory keeps its times."""
    times = os.stat(directory)
    extra = prepared + b".new"
    if os.path.lexists(extra):
        disk.unlink(extra)
    disk.link(prepared, extra)
    disk.rename(extra, os.path.join(directory, name))
    disk.sync_dir(directory)
    os.utime(directory, ns=(times.st_atime_ns, times.st_mtime_ns))
