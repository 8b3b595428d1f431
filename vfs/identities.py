"""How restored inodes show themselves, kept from one mount to the next.

Owns the file ``identities`` of a workspace: the numbers and times under which inodes that a restore brought back or
changed are seen, which the tree itself does not hold. Written when a mount ends with its changes kept; good for the
epoch that it names only. Losing it loses no content: those files then show the times of their checkpoints.
"""

from __future__ import annotations

import os

import msgspec

from store.disk import Disk, read_file
from store.refs import Ino
from vfs.records import Shown
from vfs.tree import Tree

VERSION = 1


class Identities(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="identities"):
    """``shown`` by the tree's number of each inode; ``reborn`` the directories that came back, with when (ns)."""

    version: int
    epoch: int
    shown: tuple[tuple[Ino, Shown], ...]
    reborn: tuple[tuple[Ino, int], ...]


def _path(directory: bytes) -> bytes:
    return os.path.join(directory, b"identities")


def save(directory: bytes, disk: Disk, tree: Tree) -> None:
    """Keep what ``tree`` shows. Raises NoSpaceError."""
    value = Identities(VERSION, tree.epoch, tuple(tree.shown.items()), tuple(tree.reborn.items()))
    disk.replace(_path(directory), msgspec.msgpack.encode(value), sync=False)


def load(directory: bytes, tree: Tree) -> None:
    """Let ``tree`` show what was kept for its epoch, if anything was."""
    try:
        value = msgspec.msgpack.decode(read_file(_path(directory)), type=Identities)
    except (FileNotFoundError, msgspec.DecodeError):
        return
    if value.version == VERSION and value.epoch == tree.epoch:
        tree.shown.update(value.shown)
        tree.reborn.update(value.reborn)
        tree.next_ino = max([tree.next_ino, *(shown.ino + 1 for _, shown in value.shown)])
