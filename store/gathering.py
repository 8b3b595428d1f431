"""Packs that are being made: objects that were put together with many others and have no name on the disk yet.

Owns the writers between the first object and their place among the packs, and what a killed process left of its own.
Does not own a pack's form (``packs``), nor what is already there and need not be put (``objects``).

Concurrency: any thread. Asking for an object waits for a writer only if the object is in there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from blake3 import blake3

from store.disk import Disk
from store.inventory import Inventory
from store.packs import LOOSE_FIRST, PACK_BYTES, Packs, PackWriter
from store.refs import BlobRef, NodeRef

ABANDONED_NS = 60 * 1_000_000_000
"""What a process that is gone was writing is left alone for so long."""


class OpenPacks:
    """The packs that this process is making. ``new_name`` gives paths for temporary files; ``sync`` flushes each."""

    def __init__(
        self, disk: Disk, packs: Packs, inventory: Inventory, new_name: Callable[[], bytes], sync: bool
    ) -> None:
        self._disk = disk
        self._packs = packs
        self._inventory = inventory
        self._new_name = new_name
        self._sync = sync
        self._guard = threading.Lock()
        self._open: tuple[PackWriter, ...] = ()
        """Objects are added to the last."""
        self._has_dropped = False

    def __contains__(self, ref: bytes) -> bool:
        return any(ref in pack for pack in self._open)

    def get(self, ref: bytes) -> bytes | None:
        """The bytes of an object that is in one of them, None if it is in none."""
        for pack in self._open:
            data = pack.get(ref)
            if data is not None:
                return data
        return None

    def add(self, ref: bytes, data: bytes | memoryview) -> bool:
        """Add an object; True if it is time to place them. Raises NoSpaceError, and has not added it then."""
        with self._guard:
            if not self._open or self._open[-1].is_ended:
                self._drop_abandoned()
                self._open += (self._new(),)
            pack = self._open[-1]
            pack.add(ref, data)
        return pack.size > PACK_BYTES

    def add_all(self, objects: Iterable[tuple[bytes, bytes]]) -> None:
        """Add objects to a pack of their own, all or none. Raises NoSpaceError, and what ``objects`` raises."""
        pack = self._new()
        try:
            for ref, data in objects:
                pack.add(ref, data)
        except BaseException:
            pack.discard()
            raise
        with self._guard:
            self._open = (pack, *self._open)

    def place(self, placed: Callable[[list[bytes], bytes], None]) -> None:
        """Make objects of all that was added; ``placed`` is told the objects and the path of each pack.

        Raises NoSpaceError or OSError, and may be called again.
        """
        if not self._open:
            return
        with self._guard:
            for pack in self._open:
                if pack.names():
                    path = pack.place(self._packs.directory)
                    self._packs.add(path)
                    placed(pack.names(), path)
                else:
                    pack.discard()
                self._open = tuple(other for other in self._open if other is not pack)

    def _new(self) -> PackWriter:
        return PackWriter(self._disk, self._new_name(), self._sync)

    def _drop_abandoned(self) -> None:
        """Remove packs that were being made when their process was killed: they may be long. Once in a process."""
        if self._has_dropped:
            return
        self._has_dropped = True
        for path in self._inventory.abandoned(ABANDONED_NS):
            try:
                self._disk.unlink(path)
            except (FileNotFoundError, PermissionError):  # somebody else did, or has it open (Windows)
                pass


class Gathering:
    """Puts objects, the first ``alone`` (which tells whether it was new) and all others ``together``. Any thread."""

    def __init__(
        self,
        alone: Callable[[bytes, bytes | memoryview], bool],
        together: Callable[[bytes, bytes | memoryview], None],
    ) -> None:
        self._alone = alone
        self._together = together
        self._left = LOOSE_FIRST

    def put_blob(self, data: bytes | memoryview) -> BlobRef:
        """Store a piece of content and return its name. Raises NoSpaceError."""
        return BlobRef(self._put(data))

    def put_node(self, data: bytes) -> NodeRef:
        """Store a page, chunk list or layer and return its name. Raises NoSpaceError."""
        return NodeRef(self._put(data))

    def _put(self, data: bytes | memoryview) -> bytes:
        ref = blake3(data).digest()
        if self._left <= 0:
            self._together(ref, data)
        elif self._alone(ref, data):
            self._left -= 1
        return ref
