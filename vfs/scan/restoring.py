"""The record of the one restore that may be under way in a scanned workspace: what makes it resumable.

Owns the file ``scan/restore`` in the workspace's store. It is there from before the first effect on the workspace
until the head has moved: ``staging``, nothing of the user's has been touched, and what was staged is cleared away;
``moving``, it is finished, however far it came; ``returning``, somebody has chosen that it be taken back. Does not own
the effects (``execute``) nor finding out what is left to do: that is worked out anew, by looking (``moves``).

Concurrency: the workspace's lock.
"""

from __future__ import annotations

import os
from typing import Literal

import msgspec

from store.disk import Disk, make_directories, read_file
from store.errors import FormatError
from store.refs import CheckpointId, LayerRef
from store.whole import read_whole, write_whole
from vfs.scan.platform import Handle, Platform
from vfs.trees.view import join

RECORD_VERSION = 2


class Restoring(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="restoring"):
    """A restore. ``present`` and ``onto`` are the trees before and after; ``target`` is the checkpoint
    that becomes the head, or with ``picked`` paths the one they come from; ``redo`` the way forward afterwards;
    ``saved`` the checkpoint of what was unsaved; ``origin``, ``way`` and ``baseline`` are the head before, the way
    forward from there, and what the head stood for in the directory. ``places`` are the directories in which something
    of ours may stand under a name that begins with ``prefix``; ``moves`` are (source, slot, final path).
    """

    version: int
    state: Literal["staging", "moving", "returning"]
    prefix: str
    target: CheckpointId
    picked: tuple[bytes, ...] | None
    redo: tuple[CheckpointId, ...]
    saved: CheckpointId | None
    origin: CheckpointId
    way: tuple[CheckpointId, ...]
    baseline: LayerRef
    present: LayerRef
    onto: LayerRef
    places: tuple[bytes, ...]
    moves: tuple[tuple[bytes, bytes, bytes], ...]


class RestoreFile:
    """The record in ``directory``."""

    def __init__(self, directory: bytes, disk: Disk) -> None:
        self._directory = directory
        self._path = os.path.join(directory, b"restore")
        self._disk = disk

    def write(self, record: Restoring, sync: bool) -> None:
        """From now on this is under way. Raises NoSpaceError."""
        make_directories(self._disk, self._directory)
        write_whole(self._disk, self._path, msgspec.msgpack.encode(record), sync)

    def read(self) -> Restoring | None:
        """What is under way. Raises DamagedError or FormatError."""
        try:
            if not read_file(self._path).strip(b"\0"):
                return None  # made just before a power failure
            data = read_whole(
                self._path,
                what="it tells how a restore that was interrupted goes on",
                hint="remove that file; what the restore had moved aside lies under names that begin with .plyfs-",
            )
        except FileNotFoundError:
            return None
        try:
            record = msgspec.msgpack.decode(data, type=Restoring)
        except msgspec.DecodeError as error:
            raise FormatError(
                f"{os.fsdecode(self._path)} cannot be read: {error}",
                hint="finish the restore with the plyfs release that began it",
            ) from error
        if record.version != RECORD_VERSION:
            raise FormatError(f"a restore of format version {record.version}; this plyfs knows {RECORD_VERSION}")
        return record

    def choose(self, state: Literal["moving", "returning"]) -> None:
        """From now on what is under way is to be finished, or taken back. Whoever calls holds the store's lock."""
        record = self.read()
        if record is not None and record.state not in ("staging", state):
            self.write(msgspec.structs.replace(record, state=state), sync=True)

    def end(self) -> None:
        """Nothing is under way any more."""
        try:
            self._disk.unlink(self._path)
        except FileNotFoundError:
            pass


def clear_away(platform: Platform, top: Handle, record: Restoring) -> None:
    """Bring what was moved aside to its final path, or back, and remove all else that was staged."""
    site = _Site(platform, top)
    for source, slot, path in sorted(record.moves, key=lambda row: (row[2].count(b"/"), row[2])):
        if site.exists(slot) and not (site.move(slot, path) or site.move(slot, source)):
            site.move(slot, _rescued(slot, source))  # both places are taken, or gone: it stays where it can be seen
    slots = {slot for _, slot, _ in record.moves}
    for place in record.places:
        site.remove_ours(place, record.prefix, slots)


def _rescued(slot: bytes, source: bytes) -> bytes:
    """A name beside ``slot`` that tells what it was."""
    name = source.rpartition(b"/")[2] + b"." + slot.rpartition(b"/")[2].lstrip(b".")
    return join(slot.rpartition(b"/")[0], name)


class _Site:
    """A few effects by path, following no link."""

    def __init__(self, platform: Platform, top: Handle) -> None:
        self._platform = platform
        self._top = top

    def _open(self, directory: bytes) -> Handle | None:
        handle = self._top
        for name in os.fsdecode(directory).split("/") if directory else ():
            try:
                inner = self._platform.open_directory(handle, name)
            except OSError:
                return None
            finally:
                if handle != self._top:
                    self._platform.close(handle)
            handle = inner
        return handle

    def _close(self, handle: Handle | None) -> None:
        if handle is not None and handle != self._top:
            self._platform.close(handle)

    def exists(self, path: bytes) -> bool:
        """True if there is anything."""
        head, _, name = path.rpartition(b"/")
        handle = self._open(head)
        try:
            if handle is None:
                return False
            self._platform.stat(handle, os.fsdecode(name))
            return True
        except OSError:
            return False
        finally:
            self._close(handle)

    def move(self, source: bytes, path: bytes) -> bool:
        """Move, unless something is there or its directory is not."""
        if not path or self.exists(path):
            return False
        head, _, name = source.rpartition(b"/")
        new_head, _, new = path.rpartition(b"/")
        handle, target = self._open(head), self._open(new_head)
        try:
            if handle is None or target is None:
                return False
            self._platform.rename(handle, os.fsdecode(name), target, os.fsdecode(new))
            return True
        except OSError:
            return False
        finally:
            self._close(handle)
            self._close(target)

    def remove_ours(self, directory: bytes, prefix: str, keep: set[bytes]) -> None:
        """Remove files whose name begins with ``prefix``, save those to ``keep``: what they hold is the user's."""
        handle = self._open(directory)
        if handle is None:
            return
        try:
            for name in [entry.name for entry in self._platform.entries(handle)]:
                if name.startswith(prefix) and join(directory, os.fsencode(name)) not in keep:
                    try:
                        self._platform.unlink(handle, name)
                    except OSError:  # a directory that could not be moved: the user's, so it stays
                        continue
        finally:
            self._close(handle)
