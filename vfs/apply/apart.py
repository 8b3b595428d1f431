"""Files of the attic that are the workspace's still, under another name: from now on each is on its own.

An unmount that takes away one name of a hard-linked file puts it into the attic by rename. As long as mounts serve the
workspace nobody writes into such a file in place; while it is scanned everybody does, and what older checkpoints cite
would change with it. Owns giving the attic copies, in the places of the shared files, with all their attributes: all
are on the device before the first takes its place, so that a crash leaves each place with the one or the other.

One thread; the workspace's lock is held.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from store.disk import Disk
from store.errors import StoreError
from store.format import Attributes
from store.refs import Ino
from vfs import xattrs
from vfs.apply.effects import DIRECTORY_FLAGS, Effects, Site
from vfs.trees.host import parent
from vfs.trees.view import join

STAGE = b"apart"
"""The directory in the attic in which copies are made. What a kill leaves in it, the next run takes away."""


def set_apart(disk: Disk, attic: bytes) -> list[str]:
    """Copy what the attic shares with others; returns, for people, what could not be."""
    effects, site = Effects(disk), Site(os.open(attic, DIRECTORY_FLAGS))
    try:
        effects.remove_tree(site, STAGE)
        shared = _shared(attic)
        if not shared:
            return []
        failed = []
        made: list[tuple[bytes, list[bytes]]] = []
        effects.mkdir(site, STAGE)
        for number, names in enumerate(shared):
            copy = join(STAGE, b"%d" % number)
            try:
                effects.copy_file(site, names[0], site, copy)
                effects.set_attributes(site, copy, _attributes(os.path.join(attic, names[0])))
                made.append((copy, names))
            except (OSError, StoreError) as error:
                path = os.fsdecode(os.path.join(attic, names[0]))
                failed.append(f"{path} stays one file with one in the workspace, which must not be written to: {error}")
        effects.sync(site)
        for copy, names in made:
            for name in names:
                _put(effects, site, copy, name)
        effects.sync(site)
        effects.remove_tree(site, STAGE)
        return failed
    finally:
        site.forget()
        os.close(site.fd)


def _shared(attic: bytes) -> list[list[bytes]]:
    """The names in the attic, from its top, of each regular file that has names elsewhere too."""
    names: dict[tuple[int, int], list[bytes]] = {}
    links: dict[tuple[int, int], int] = {}
    for path, status in _linked_files(attic):
        inode = status.st_dev, status.st_ino
        names.setdefault(inode, []).append(path)
        links[inode] = status.st_nlink
    return [paths for inode, paths in names.items() if len(paths) < links[inode]]


def _linked_files(attic: bytes) -> Iterator[tuple[bytes, os.stat_result]]:
    waiting = [b""]
    while waiting:
        directory = waiting.pop()
        try:
            with os.scandir(os.path.join(attic, directory)) as found:
                entries = list(found)
        except OSError:
            continue  # closed to its owner, or too deep: it is as before
        for entry in entries:
            path = join(directory, entry.name)
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                waiting.append(path)
            elif stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                yield path, status


def _attributes(path: bytes) -> Attributes:
    status = os.lstat(path)
    mode, mtime_ns = stat.S_IMODE(status.st_mode), status.st_mtime_ns
    return Attributes(Ino(0), mode, status.st_uid, status.st_gid, mtime_ns, status.st_ctime_ns, xattrs.read(path))


def _put(effects: Effects, site: Site, copy: bytes, name: bytes) -> None:
    """The copy as ``name`` too, in the place of what is there; the directory keeps its time."""
    above = parent(name)[0]
    status = site.stat(above)
    assert status is not None, "it has just been listed"
    another = copy + b"-name"
    effects.link(site, copy, site, another)
    (old_fd, old), (new_fd, new) = site.at(another), site.at(name)
    effects.disk.rename(old, new, src_dir_fd=old_fd, dst_dir_fd=new_fd)
    effects.set_mtime(site, above, status.st_mtime_ns)
