"""Where a workspace stands: ``head``, a small file replaced by rename, and the journals that tell it if that is lost.

Owns the file and its format. Does not own which checkpoints there are (``history``), nor what is made of a head that
names a lost one.

Concurrency: as ``history``.
"""

from __future__ import annotations

import os
from collections.abc import Container
from typing import Literal

import msgspec

from store.disk import Disk, read_file
from store.errors import DamagedError, FormatError
from store.format import FORMAT_VERSION
from store.frames import frame, scan
from store.journal import JournalHeader, read_journal
from store.refs import CheckpointId


class Head(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="head", kw_only=True):
    """Where the workspace stands.

    ``head`` is the checkpoint that the present state goes on from, ``redo`` the way forward, nearest first; ``epoch``
    the journal being written, ``generation`` the state of the base, ``base`` the checkpoint that the base directory
    equals, ``next_ino`` a number above every inode number given out so far. ``mounted`` is true from mount to clean
    unmount; ``left`` tells how the last unmount ended ("" if there was none).
    """

    version: int = FORMAT_VERSION
    head: CheckpointId
    base: CheckpointId
    epoch: int
    generation: int
    next_ino: int
    redo: tuple[CheckpointId, ...] = ()
    mounted: bool = False
    left: Literal["", "apply", "keep", "discard"] = ""


_encode = msgspec.msgpack.Encoder().encode
_heads = msgspec.msgpack.Decoder(Head)


class HeadFile:
    """The head recorded in ``directory``."""

    def __init__(self, directory: bytes, disk: Disk) -> None:
        self.path = os.path.join(directory, b"head")
        self._journals = os.path.join(directory, b"journal")
        self._disk = disk

    def write(self, head: Head, sync: bool) -> None:
        """Put ``head`` in the place of the one that is there. With ``sync`` it is on the device on return."""
        self._disk.replace(self.path, frame(_encode(head)), sync)

    def read(self) -> Head | None:
        """The head, None if there is none or a failure has torn it. Raises FormatError for another version."""
        name = os.fsdecode(self.path)
        try:
            frames = scan(read_file(self.path))
        except FileNotFoundError:
            return None
        if len(frames.payloads) != 1:
            return None
        try:
            head = _heads.decode(frames.payloads[0])
        except msgspec.DecodeError as error:
            raise FormatError(f"{name} is not of format version {FORMAT_VERSION}: {error}") from error
        if head.version != FORMAT_VERSION:
            raise FormatError(
                f"{name} is of format version {head.version}; this plyfs reads version {FORMAT_VERSION}",
                hint="use the plyfs release that wrote this store, or a newer one",
            )
        return head

    def newest_journal(self, known: Container[CheckpointId]) -> JournalHeader | None:
        """The first words of the newest journal that goes on from a ``known`` checkpoint, whose records would be lost
        with the head; None if there is none.
        """
        try:
            numbers = [int(name) for name in os.listdir(self._journals) if name.isdigit()]
        except FileNotFoundError:
            return None
        for number in sorted(numbers, reverse=True):
            try:
                header = read_journal(os.path.join(self._journals, b"%d" % number)).header
            except (FileNotFoundError, DamagedError):
                continue
            if header.head in known:
                return header
        return None
