"""Making inodes live: from an entry of the tree, from a row of its link table, or from what the base has.

Owns which number such an inode shows and since when, after restores that brought it back. Does not own how it is found
(``tree``) nor where its bytes are (``content``). Everything here runs under the tree's lock.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from store.entries import link_key
from store.format import Absent, Directory, Entry, Linked, LinkTarget, Origin, Regular, Special, Symlink
from store.nodes import settled
from store.refs import Ino
from vfs.errors import FsError
from vfs.live.content import set_content_facts
from vfs.live.inode import DirectoryInode, FileInode, Inode, SpecialInode, SymlinkInode
from vfs.live.records import UNKNOWN_TIME, Shown

if TYPE_CHECKING:
    from vfs.live.tree import Tree


def identify(
    tree: Tree, directory: DirectoryInode | None, key: Ino, ctime_ns: int, mtime_ns: int | None
) -> tuple[Ino, int | None]:
    """The number of an inode that is made live, and the mtime that it shows (None: its entry's).

    ``directory``, if it was brought back by a restore, brought back all that had been in it; but not what was put
    there since, which the change time tells. ``mtime_ns`` is None for directories.
    """
    shown = tree.shown.get(key)
    reborn = directory.reborn_ns if directory is not None else 0
    if reborn > ctime_ns and (shown is None or shown.since_ns < reborn):
        shown = tree.shown[key] = Shown(tree.new_ino(), reborn, mtime_ns)
    if (key if shown is None else shown.ino) in tree.inodes:  # an inode without a name goes by that number still
        since, of = (0, None) if shown is None else (shown.since_ns, shown.of_ns)
        shown = tree.shown[key] = Shown(tree.new_ino(), since, of)
    if shown is None:
        return key, None
    if shown.of_ns == UNKNOWN_TIME and mtime_ns is not None:
        shown = tree.shown[key] = Shown(shown.ino, shown.since_ns, mtime_ns)
    return shown.ino, shown.since_ns if mtime_ns is not None and shown.of_ns == mtime_ns else None


def rebirth(tree: Tree, directory: DirectoryInode | None, key: Ino, ctime_ns: int) -> int:
    """When a restore brought back the directory that trees know by ``key``, or one above it; 0 for never."""
    when = tree.reborn.get(key, 0)
    if directory is not None and directory.reborn_ns > max(when, ctime_ns):
        when = tree.reborn[key] = directory.reborn_ns
    return when


def listed_ino(tree: Tree, directory: DirectoryInode, name: bytes, key: Ino, ctime_ns: int = 0) -> Ino:
    """The number that a listing gives for a name that is not live: the one that it will have when looked up."""
    shown = tree.shown.get(key)
    since = 0 if shown is None else shown.since_ns
    if directory.reborn_ns <= max(since, ctime_ns):
        number = key if shown is None else shown.ino
        live = tree.inodes.get(number)
        if live is None or (live.linked and live.nlink):  # another of its names
            return number
    inode = tree.lookup(directory.ino, name)
    if inode is None:  # it has just gone from the base
        return key
    tree.evict(inode)
    return inode.ino


def from_entry(tree: Tree, directory: DirectoryInode, entry: Entry) -> Inode | None:
    match settled(entry):
        case Absent():
            return None
        case Linked(key):
            return linked_inode(tree, key)
        case Regular() | Directory() | Symlink() | Special() as value:
            return from_value(tree, directory, value)
        case LinkTarget():
            raise FsError(errno.EIO, "a row of the link table stands in a directory")


def from_value(tree: Tree, directory: DirectoryInode | None, value: Regular | Directory | Symlink | Special) -> Inode:
    inode: Inode
    attributes = value.attributes
    key, mode, ctime_ns = attributes.ino, attributes.mode, attributes.ctime_ns
    if isinstance(value, Directory):
        ino, _ = identify(tree, directory, key, ctime_ns, None)
        inode = DirectoryInode(ino, stat.S_IFDIR | mode)
        inode.reborn_ns = rebirth(tree, directory, key, ctime_ns)
        fill_directory(tree, inode, value)
        tree.inodes[ino] = inode
        return inode
    ino, mtime = identify(tree, directory, key, ctime_ns, attributes.mtime_ns)
    match value:
        case Regular():
            inode = FileInode(ino, stat.S_IFREG | mode)
            set_content_facts(tree, inode, value)
        case Symlink():
            inode = SymlinkInode(ino, stat.S_IFLNK | 0o777, value.target)
        case Special():
            inode = SpecialInode(ino, value.file_type | mode)
            inode.rdev = value.rdev
    inode.key = key
    inode.show(attributes)
    inode.entry = value
    if mtime is not None:
        inode.mtime_ns = inode.ctime_ns = mtime
    tree.inodes[ino] = inode
    return inode


def fill_directory(tree: Tree, inode: DirectoryInode, value: Directory) -> None:
    """Let ``inode`` be what ``value`` says; its live children are not looked at."""
    value_now = settled(value)
    assert isinstance(value_now, Directory)
    inode.show(value_now.attributes)
    inode.key = value_now.attributes.ino
    inode.entry = value_now
    inode.origin = value_now.origin
    inode.page = tree.pages.page_of(value_now)
    inode.subdirectories = value_now.subdirectories
    inode.base_links = 2
    inode.size = 4096
    inode.blocks = 8
    if inode.origin is not None:
        status = tree.base_status(inode.origin)
        if status is not None:
            inode.base_links = status.st_nlink
            inode.size = status.st_size
            inode.blocks = status.st_blocks
    inode.count_links()


def from_base(tree: Tree, directory: DirectoryInode, origin: Origin, status: os.stat_result) -> Inode:
    key = tree.base.ino(status)
    mode = status.st_mode
    linked = status.st_nlink > 1 and not stat.S_ISDIR(mode)
    if linked:
        live = tree.live_link(key)
        if live is not None:
            return live
        row = tree.pages.get(tree.links, link_key(key)) if tree.links is not None else None
        if row is not None:
            return linked_inode(tree, key)
    # A file with several names has not come back because one of them has.
    parent = None if linked else directory
    times = status.st_ctime_ns, None if stat.S_ISDIR(mode) else status.st_mtime_ns
    ino, mtime = identify(tree, parent, key, *times)
    inode: Inode
    if stat.S_ISREG(mode):
        inode = FileInode(ino, mode)
    elif stat.S_ISDIR(mode):
        inode = DirectoryInode(ino, mode)
        inode.base_links = status.st_nlink
        inode.reborn_ns = rebirth(tree, directory, key, status.st_ctime_ns)
    elif stat.S_ISLNK(mode):
        inode = SymlinkInode(ino, mode, tree.base.readlink(origin))
    else:
        inode = SpecialInode(ino, mode)
        inode.rdev = status.st_rdev
    inode.key = key
    inode.nlink = status.st_nlink
    if linked:
        inode.linked = True
        tree.linked[key] = inode
    inode.uid = status.st_uid
    inode.gid = status.st_gid
    inode.size = status.st_size
    inode.blocks = status.st_blocks
    inode.atime_ns = status.st_atime_ns
    inode.mtime_ns = status.st_mtime_ns
    inode.ctime_ns = status.st_ctime_ns
    inode.origin = origin
    if mtime is not None:
        inode.mtime_ns = inode.ctime_ns = mtime
    tree.inodes[ino] = inode
    return inode


def linked_inode(tree: Tree, key: Ino) -> Inode:
    """The inode of a row of the link table. Raises FsError(EIO) if the row is missing."""
    live = tree.live_link(key)
    if live is not None:
        return live
    row = tree.pages.get(tree.links, link_key(key))
    if row is not None:
        row = settled(row)
    if not isinstance(row, LinkTarget):
        raise FsError(errno.EIO, f"inode {key} is missing from the link table")
    value = settled(row.inode)
    assert isinstance(value, Regular | Symlink | Special)
    inode = from_value(tree, None, value)
    inode.linked = True
    inode.nlink = row.links
    tree.linked[key] = inode
    return inode
