"""Where the bytes of a live file are: in the base, in the store, or in working data.

Owns the reading of a file's extents from its entry, once they are asked for. All of it runs under the tree's lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from store.entries import content_size
from store.format import Chunked, Content, Original, Regular
from store.nodes import FreshRegular, settled
from vfs.live.extents import Extents
from vfs.live.inode import FileInode
from vfs.live.pending import Pending
from vfs.live.sources import OriginSource

if TYPE_CHECKING:
    from vfs.live.tree import Tree


def set_content_facts(tree: Tree, inode: FileInode, value: Regular) -> None:
    """Size and blocks of a file with the content of ``value``; its extents are read when they are needed."""
    inode.extents = None
    inode.rewritten = False
    if isinstance(value, FreshRegular):
        pending = value.fresh.value
        assert isinstance(pending, Pending)
        inode.size = pending.size
        inode.blocks = blocks_of(sum(run.end - run.start for run in pending.runs))
        return
    inode.size = content_size(value.content)
    inode.blocks = blocks_of(inode.size)
    if isinstance(value.content, Chunked):
        inode.extents = tree.sources.extents(value.content)
        inode.blocks = blocks_of(inode.extents.covered)
    elif isinstance(value.content, Original):
        status = tree.base_status(value.content.origin)
        if status is not None:
            inode.blocks = status.st_blocks


def original(tree: Tree, inode: FileInode) -> Content:
    """The content of a file that nobody has written to since it was in the base."""
    assert inode.origin is not None
    status = tree.base_status(inode.origin)
    mtime = inode.mtime_ns if status is None else status.st_mtime_ns
    return Original(inode.origin, inode.size, mtime)


def base_source(tree: Tree, inode: FileInode) -> OriginSource:
    """The one source of a file that is just what the base has."""
    source = inode.base
    if source is None:
        origin = inode.origin
        assert origin is not None
        mtime = inode.mtime_ns
        if tree.shown or inode.dirty:  # it may show another time than the base has
            status = tree.base_status(origin)
            mtime = mtime if status is None else status.st_mtime_ns
        source = inode.base = OriginSource(tree.sources, origin, inode.size, mtime)
    return source


def content_of(tree: Tree, inode: FileInode) -> Extents:
    """The extents of ``inode``, read if that has not been done. Raises FsError(EIO) for a damaged store."""
    if inode.extents is None:
        entry = None if inode.entry is None else settled(inode.entry)
        if isinstance(entry, FreshRegular):
            pending = entry.fresh.value
            assert isinstance(pending, Pending)
            inode.extents = Extents(pending.runs)
        elif isinstance(entry, Regular):
            inode.extents = _stored_extents(tree, inode, entry.content)
        elif inode.origin is not None:
            inode.extents = _stored_extents(tree, inode, original(tree, inode))
        else:
            inode.extents = Extents()
    return inode.extents


def _stored_extents(tree: Tree, inode: FileInode, content: Content) -> Extents:
    """The extents of ``content``; the holes of a sparse base file stay holes, so that they cost no space either."""
    if isinstance(content, Original) and inode.blocks * 512 < content.size:
        return Extents(tree.sources.data_runs(content))
    return tree.sources.extents(content)


def blocks_of(length: int) -> int:
    """512-byte blocks for ``length`` bytes in pages of 4096."""
    return (length + 4095) // 4096 * 8
