"""How restored inodes show themselves, kept beside the journals so that the next mount shows them so too.

Owns the files ``EPOCH.shown`` in a workspace's journal directory: the numbers and times under which inodes that a
restore brought back or changed are seen, which the tree itself does not hold. Written when a restore begins the epoch,
and once more when a mount ends with its changes kept. Losing one loses no content: those files then show the times of
their checkpoints, and numbers of their own.
"""

from __future__ import annotations

import os

import msgspec

from store.disk import read_file
from store.errors import NoSpaceError
from store.format import Origin
from store.refs import Ino
from vfs.live.epochs import Epochs
from vfs.live.records import Shown
from vfs.live.tree import Tree

VERSION = 1
SUFFIX = b".shown"


class Identities(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="identities"):
    """``shown`` by the tree's number of each inode, ``origins`` where the base has some of them; ``reborn`` the
    directories that came back, with when (ns).
    """

    version: int
    shown: tuple[tuple[Ino, Shown], ...]
    origins: tuple[tuple[Ino, Origin], ...]
    reborn: tuple[tuple[Ino, int], ...]


def save(epochs: Epochs, tree: Tree) -> None:
    """Keep what ``tree`` shows in its epoch; what no journal needs any more goes. A full disk is no failure."""
    value = Identities(
        VERSION, tuple(tree.shown.items()), tuple(tree.shown_origins.items()), tuple(tree.reborn.items())
    )
    there = _on_disk(epochs)
    oldest = min(epochs.on_disk(), default=tree.epoch)
    needed = max((number for number in there if number < oldest), default=0)  # what it started from may be needed too
    for number in there:
        if number < needed:
            epochs.disk.unlink(_path(epochs, number))
    try:
        epochs.disk.replace(_path(epochs, tree.epoch), msgspec.msgpack.encode(value), sync=False)
    except NoSpaceError:
        clear(epochs)


def load(epochs: Epochs, tree: Tree, before: int = 0, exactly: int = -1) -> None:
    """Let ``tree`` show what was kept for the last epoch ``before`` one, or for ``exactly`` one."""
    known = [number for number in _on_disk(epochs) if number == exactly or number < before]
    if not known:
        return
    try:
        value = msgspec.msgpack.decode(read_file(_path(epochs, max(known))), type=Identities)
    except (FileNotFoundError, msgspec.DecodeError):
        return
    if value.version == VERSION:
        tree.shown = dict(value.shown)
        tree.shown_origins = dict(value.origins)
        tree.reborn = dict(value.reborn)
        tree.next_ino = max([tree.next_ino, *(shown.ino + 1 for _, shown in value.shown)])


def clear(epochs: Epochs, after: int = -1) -> None:
    """Forget what was shown ``after`` an epoch: what is served next has nothing to do with it."""
    for number in _on_disk(epochs):
        if number > after:
            epochs.disk.unlink(_path(epochs, number))


def _path(epochs: Epochs, epoch: int) -> bytes:
    return epochs.path(epoch) + SUFFIX


def _on_disk(epochs: Epochs) -> list[int]:
    names = (name.removesuffix(SUFFIX) for name in os.listdir(epochs.directory) if name.endswith(SUFFIX))
    return [int(name) for name in names if name.isdigit()]
