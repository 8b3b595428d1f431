"""Folding: bringing the pages up to date with the live inodes, so that the present is a value. Costs what has changed.

Runs under the tree's lock.
"""

from __future__ import annotations

import stat

from store.entries import below, link_key
from store.format import Absent, Directory, Entry, Inline, Linked, LinkTarget, Regular, Special, Symlink
from store.nodes import NO_CONTENT, Fresh, FreshDirectory, FreshRegular, settled
from vfs.live.content import original
from vfs.live.inode import DirectoryInode, FileInode, Inode, SymlinkInode
from vfs.live.pending import Pending
from vfs.live.records import Shown
from vfs.live.tree import Root, Tree


def fold(tree: Tree) -> Root:
    """Bring the pages up to date with the live inodes and return the tree as a value. Costs what has changed."""
    changed: list[Inode] = []
    if tree.dirty_links:
        rows: dict[bytes, Entry | None] = {}
        for key, inode in tree.dirty_links.items():
            if inode is None:
                rows[link_key(key)] = None
            else:
                rows[link_key(key)] = LinkTarget(_leaf_entry(tree, inode), inode.nlink)
                inode.dirty = False
                changed.append(inode)
        tree.dirty_links = {}
        tree.links = tree.pages.update(tree.links, rows)
    if tree.root.dirty:
        _fold_directory(tree, tree.root, changed)
    for inode in changed:
        if not inode.lookups:
            tree.evict(inode)
    entry = tree.root.entry
    assert isinstance(entry, Directory)
    return Root(entry, tree.links, tree.generation)


def _fold_directory(tree: Tree, directory: DirectoryInode, changed: list[Inode]) -> Directory:
    changes: dict[bytes, Entry | None] = {}
    for name, in_base in directory.delta.items():
        child = directory.children.get(name)
        if child is None:
            if directory.origin is None or in_base is False:
                changes[name] = None
            elif in_base or tree.base_status(below(directory.origin, name)) is not None:
                changes[name] = Absent()
            else:
                changes[name] = None
            directory.children.pop(name, None)
            continue
        tree.changed_since_fold += 1
        if child.linked:
            changes[name] = Linked(child.key)
        elif isinstance(child, DirectoryInode):
            if child.dirty:
                changes[name] = _fold_directory(tree, child, changed)
            else:
                changes[name] = child.entry if child.entry is not None else _directory_entry(tree, child)
        elif child.dirty or child.entry is None:
            changes[name] = _leaf_entry(tree, child)
            child.dirty = False
        else:
            changes[name] = child.entry
        changed.append(child)
    directory.page = tree.pages.update(directory.page, changes)
    directory.delta = {}
    directory.dirty = False
    return _directory_entry(tree, directory)


def _directory_entry(tree: Tree, directory: DirectoryInode) -> Directory:
    tree.xattrs_of(directory)
    attributes = directory.attributes()
    page = directory.page
    entry: Directory
    if page is None or page.ref is not None:
        ref = None if page is None else page.ref
        entry = Directory(attributes, directory.origin, directory.subdirectories, ref)
    else:
        entry = FreshDirectory(attributes, directory.origin, directory.subdirectories, None, Fresh(page))
    directory.entry = entry
    return entry


def _leaf_entry(tree: Tree, inode: Inode) -> Regular | Symlink | Special:
    tree.xattrs_of(inode)
    shown = tree.shown.get(inode.key)
    if shown is not None and shown.of_ns == inode.mtime_ns:  # that is its time now, whoever gave it
        tree.shown[inode.key] = Shown(shown.ino, shown.since_ns, None)
    entry: Regular | Symlink | Special
    if isinstance(inode, FileInode):
        entry = _file_entry(tree, inode)
    elif isinstance(inode, SymlinkInode):
        entry = Symlink(inode.attributes(), inode.target)
    else:
        entry = Special(inode.attributes(), stat.S_IFMT(inode.mode), inode.rdev)
    inode.entry = entry
    return entry


def _file_entry(tree: Tree, inode: FileInode) -> Regular:
    attributes = inode.attributes()
    if not inode.size:
        inode.rewritten = False
        return Regular(attributes, Inline(b""))
    if inode.rewritten:
        assert inode.extents is not None
        inode.rewritten = False
        return FreshRegular(attributes, NO_CONTENT, Fresh(Pending(inode.size, inode.extents.freeze())))
    before = None if inode.entry is None else settled(inode.entry)
    if isinstance(before, FreshRegular):
        return FreshRegular(attributes, NO_CONTENT, Fresh(before.fresh.value))
    if isinstance(before, Regular):
        return Regular(attributes, before.content)
    assert inode.origin is not None
    return Regular(attributes, original(tree, inode))
