"""The states that the base directory has been in: what was written over each, and how to see the old one in the new.

Owns the file ``generations`` of one workspace. Does not own translating trees from one generation to the next (vfs).

A ``Generation`` ends the state ``number``: ``applied`` is the tree that the base equals from then on, in terms of
generation ``number``; ``inverse`` is a tree in terms of generation ``number + 1`` that equals what the base was before.

Concurrency: as ``history``: any thread, one writing process.
"""

from __future__ import annotations

import os
import threading
from typing import Literal

import msgspec

from store.disk import Disk
from store.errors import FormatError, NoSpaceError
from store.frames import EventFile
from store.refs import LayerRef


class Generation(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="generation"):
    """The end of generation ``number`` at ``time_ns``, by an apply or by changes found outside."""

    number: int
    applied: LayerRef
    inverse: LayerRef
    time_ns: int
    cause: Literal["apply", "outside"]


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Generation)


class Generations:
    """The generations recorded in ``directory``. ``problems`` tells what reading had to leave out."""

    def __init__(self, directory: bytes, disk: Disk) -> None:
        self.path = os.path.join(directory, b"generations")
        self.problems: list[str] = []
        self._file = EventFile(self.path, "generations", disk)
        self._guard = threading.Lock()
        self._all: list[Generation] = []
        self._take(self._file.load())
        if self._file.torn:
            self.problems.append(f"{os.fsdecode(self.path)}: {self._file.torn} bytes of an unfinished record left out")

    def _take(self, payloads: list[bytes]) -> None:
        for payload in payloads:
            try:
                generation = _decoder.decode(payload)
            except msgspec.DecodeError as error:
                raise FormatError(f"{os.fsdecode(self.path)} has a record that is not of this format") from error
            if generation.number != len(self._all):
                raise FormatError(f"{os.fsdecode(self.path)} has no end of generation {len(self._all)}")
            self._all.append(generation)

    @property
    def current(self) -> int:
        """The number of the generation that the base is in now; the first is 0."""
        return len(self._all)

    def all(self) -> list[Generation]:
        """Every generation that has ended, in order."""
        with self._guard:
            return list(self._all)

    def since(self, number: int) -> list[Generation]:
        """The ends of generation ``number`` and of all after it: the steps from there to the present one."""
        with self._guard:
            return self._all[number:]

    def append(self, generation: Generation) -> None:
        """Record the end of the present generation, durably. Both layers are flushed before.

        Raises OSError or NoSpaceError; it may be asked for again then.
        """
        with self._guard:
            self._take(self._file.prepare())
            if self._all[-1:] == [generation]:  # the sync failed the time before: it is durable now
                return
            assert generation.number == len(self._all), "generations end in order"
            self._file.append(_encode(generation))
            self._all.append(generation)
            try:
                self._file.sync()
            except (OSError, NoSpaceError):
                self._file.doubt()
                raise

    def close(self) -> None:
        """Give the file up; it can still be read, and written again."""
        with self._guard:
            self._file.close()
