"""Since when the present base has been below a mount: what changed in it later, somebody else changed.

Owns the file ``overlaid`` of a workspace. Written when a generation of the base is first served.
"""

from __future__ import annotations

import os
import time

import msgspec

from store.errors import DamagedError
from store.home import WorkspaceStore
from store.whole import read_whole, write_whole


class Overlaid(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="overlaid"):
    """Generation ``generation`` has been served since ``since_ns``, by the clock that stamps files."""

    generation: int
    since_ns: int


def _path(store: WorkspaceStore) -> bytes:
    return os.path.join(store.path, b"overlaid")


def _read(store: WorkspaceStore) -> Overlaid | None:
    try:
        return msgspec.msgpack.decode(read_whole(_path(store)), type=Overlaid)
    except (FileNotFoundError, DamagedError, msgspec.DecodeError):
        return None


def begin(store: WorkspaceStore) -> None:
    """The present generation is about to be served; nothing happens if it was before."""
    generation = store.generations.current
    known = _read(store)
    if known is None or known.generation != generation:
        value = Overlaid(generation, time.clock_gettime_ns(time.CLOCK_REALTIME))
        write_whole(store.disk, _path(store), msgspec.msgpack.encode(value), sync=False)


def since(store: WorkspaceStore) -> int:
    """Nanoseconds since the epoch, 0 if it is not known."""
    known = _read(store)
    return known.since_ns if known is not None and known.generation == store.generations.current else 0
