"""Small questions about entries: what they are called in link tables and in bases, how big, of which type.

Pure functions over ``store.format``.
"""

from __future__ import annotations

import stat

from store.format import Content, Directory, Inline, Origin, Regular, Special, Symlink
from store.refs import Ino


def link_key(ino: Ino) -> bytes:
    """The link table's key of an inode."""
    return ino.to_bytes(8, "big")


def below(origin: Origin, name: bytes) -> Origin:
    """The origin of ``name`` in the directory at ``origin``."""
    return Origin(origin.tree, origin.path + b"/" + name if origin.path else name)


def content_size(content: Content) -> int:
    """The number of bytes of ``content``."""
    return len(content.data) if isinstance(content, Inline) else content.size


def entry_type(entry: Regular | Directory | Symlink | Special) -> int:
    """S_IFMT's bits of what ``entry`` is, shifted right by 12."""
    match entry:
        case Regular():
            return stat.S_IFREG >> 12
        case Directory():
            return stat.S_IFDIR >> 12
        case Symlink():
            return stat.S_IFLNK >> 12
        case Special():
            return entry.file_type >> 12
