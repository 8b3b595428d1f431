"""What stands under a name in a sealed or folded tree: overrides before the base, hard links through the link table.

Owns that question for the code that changes trees (``swap``, ``graft``); ``view`` has it for those who only look. Pure
functions; they may read the base.
"""

from __future__ import annotations

import stat
from typing import NamedTuple, TypeAlias

from store.entries import below, link_key
from store.errors import FormatError
from store.format import (
    Absent,
    Content,
    Directory,
    Entry,
    Linked,
    LinkTarget,
    Origin,
    Original,
    Regular,
    Special,
    Symlink,
)
from store.nodes import NO_CONTENT, FreshRegular, Page, settled
from store.refs import Ino
from vfs.live.pending import Pending
from vfs.live.tree import Tree

Present: TypeAlias = Regular | Directory | Symlink | Special


class Found(NamedTuple):
    """An inode as a tree has it, and how many names it has; 0 if it is no hard link."""

    inode: Present
    links: int

    @property
    def key(self) -> Ino:
        """The number by which trees know the inode."""
        return self.inode.attributes.ino


def effective(tree: Tree, links: Page | None, directory: Directory, page: Page | None, name: bytes) -> Found | None:
    """What ``name`` is in a directory of a tree whose link table is ``links``, None for nothing."""
    return resolve(tree, links, directory.origin, name, tree.pages.get(page, name) if page is not None else None)


def resolve(tree: Tree, links: Page | None, origin: Origin | None, name: bytes, override: Entry | None) -> Found | None:
    """As ``effective``, for an override already looked up."""
    if override is None:
        return None if origin is None else _of_base(tree, links, below(origin, name))
    value = settled(override)
    if isinstance(value, Absent):
        return None
    if isinstance(value, Linked):
        found = row(tree, links, value.ino)
        if found is None:
            raise FormatError(f"inode {value.ino} is missing from the link table")
        return found
    assert not isinstance(value, LinkTarget)
    return Found(value, 0)


def row(tree: Tree, links: Page | None, key: Ino) -> Found | None:
    """What the link table says of an inode."""
    entry = tree.pages.get(links, link_key(key))
    if entry is None:
        return None
    entry = settled(entry)
    if not isinstance(entry, LinkTarget):
        raise FormatError(f"the link table has no inode for {key}")
    value = settled(entry.inode)
    assert isinstance(value, Regular | Symlink | Special)
    return Found(value, entry.links)


def _of_base(tree: Tree, links: Page | None, origin: Origin) -> Found | None:
    status = tree.base_status(origin)
    if status is None:
        return None
    if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
        found = row(tree, links, tree.base.ino(status)) if links is not None else None
        return found or Found(tree.base.entry(origin), status.st_nlink)
    return Found(tree.base.entry(origin), 0)


def same_content(tree: Tree, a: Present, b: Present) -> bool:
    """True if both have certainly the same type and content, whatever their attributes."""
    if isinstance(a, Regular) and isinstance(b, Regular):
        if isinstance(a, FreshRegular) and isinstance(b, FreshRegular) and a.fresh.value is b.fresh.value:
            return True
        content, other = _content(a), _content(b)
        return content is not None and (content == other or _same_file(tree, content, other))
    if isinstance(a, Symlink) and isinstance(b, Symlink):
        return a.target == b.target
    if isinstance(a, Special) and isinstance(b, Special):
        return (a.file_type, a.rdev) == (b.file_type, b.rdev)
    return isinstance(a, Directory) and isinstance(b, Directory)


def _same_file(tree: Tree, a: Content | None, b: Content | None) -> bool:
    """True if both are what one file of the base has, cited by two of its names."""
    if not isinstance(a, Original) or not isinstance(b, Original) or (a.size, a.mtime_ns) != (b.size, b.mtime_ns):
        return False
    one, other = tree.base_status(a.origin), tree.base_status(b.origin)
    return one is not None and other is not None and tree.base.ino(one) == tree.base.ino(other)


def _content(entry: Regular) -> Content | None:
    """The stored form of a file's content, None if it has none yet."""
    if isinstance(entry, FreshRegular):
        pending = entry.fresh.value
        assert isinstance(pending, Pending)
        return pending.content
    content = entry.content
    return NO_CONTENT if isinstance(content, Original) and not content.size else content
