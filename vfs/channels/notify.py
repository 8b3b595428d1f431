"""Telling the kernel what it must forget, on the direct channel.

Owns the messages and the choice among them; writing them is the channel's, from a thread that answers no requests.
Pure functions.

Entries are dropped one by one (about 3 us each) rather than by FUSE_NOTIFY_INC_EPOCH as long as that is affordable:
the epoch makes every cached name of the mount be looked up again (20 us and more each, paid by whoever comes next),
and the kernel detaches what is mounted below a directory whose name it drops (d_invalidate), so a sandbox's bind
mounts inside the workspace would fall off although nothing changed there.

Even then the names follow one by one: a READDIRPLUS that was answered just before the change and is taken in just after
the epoch gives its names the new epoch (Linux 6.16 to 6.18, fuse_direntplus_link reads it only then), and they would
stay wrong. So the epoch makes a big change seen at once, the names make it certain.
"""

from __future__ import annotations

from collections.abc import Iterator

from store.refs import Ino
from vfs.channel import Invalidations, Negotiated
from vfs.channels import wire

EPOCH_ENTRIES = 50_000
"""From so many changed names on, one epoch comes first, since the names take a while (7 us each)."""


def messages(invalidations: Invalidations, negotiated: Negotiated) -> Iterator[bytes]:
    """Everything to write to the device, in order: names first, so that a lookup after it finds the new inode."""
    names = len(invalidations.entries) + len(invalidations.removed)
    if negotiated.epoch and (invalidations.everything or names > EPOCH_ENTRIES):
        yield epoch()
    for parent, child, name in invalidations.removed:
        yield removed(parent, child, name)
    for parent, name in invalidations.entries:
        yield entry(parent, name)
    for parent in parents(invalidations):
        yield inode(parent)
    for ino in invalidations.contents:
        yield inode(ino)
    for ino in invalidations.attributes:
        yield attributes(ino)


def parents(invalidations: Invalidations) -> list[Ino]:
    """Directories whose listing and times changed: the kernel drops those with a name only if it had the name."""
    named = [parent for parent, _ in invalidations.entries] + [parent for parent, _, _ in invalidations.removed]
    return list(dict.fromkeys(named))


def epoch() -> bytes:
    """Every name, present or absent, must be looked up again."""
    return wire.OUT_HEADER.pack(wire.OUT_SIZE, wire.NOTIFY_CODE_INC_EPOCH, 0)


def entry(parent: int, name: bytes, flags: int = 0) -> bytes:
    """``name`` in ``parent`` must be looked up again, and the parent listed and asked for its attributes again."""
    size = wire.NOTIFY_INVAL_ENTRY.size + len(name) + 1
    return wire.NOTIFY_INVAL_ENTRY.pack(size, wire.NOTIFY_CODE_INVAL_ENTRY, 0, parent, len(name), flags) + name + b"\0"


def removed(parent: int, child: int, name: bytes) -> bytes:
    """As ``entry``; besides, if ``name`` was ``child``, that inode has no link any more."""
    size = wire.NOTIFY_DELETE.size + len(name) + 1
    return wire.NOTIFY_DELETE.pack(size, wire.NOTIFY_CODE_DELETE, 0, parent, child, len(name), 0) + name + b"\0"


def inode(ino: int) -> bytes:
    """Attributes, ACLs, and pages or listing of ``ino``."""
    return wire.NOTIFY_INVAL_INODE.pack(wire.NOTIFY_INVAL_INODE.size, wire.NOTIFY_CODE_INVAL_INODE, 0, ino, 0, 0)


def attributes(ino: int) -> bytes:
    """Attributes and ACLs of ``ino``; its pages stay."""
    return wire.NOTIFY_INVAL_INODE.pack(wire.NOTIFY_INVAL_INODE.size, wire.NOTIFY_CODE_INVAL_INODE, 0, ino, -1, 0)
