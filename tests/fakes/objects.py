"""An object store in memory, for tests that are not about the store."""

from __future__ import annotations

import os

from store.errors import DamagedError, MissingError
from store.objects import Opened
from store.refs import BlobRef, NodeRef, digest


class MemoryObjects:
    """The part of ``store.objects.Objects`` that trees use, over a dict. Tests may damage ``data`` directly."""

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}
        self.flushed = 0

    def put_node(self, data: bytes) -> NodeRef:
        ref = digest(data)
        self.data[ref] = bytes(data)
        return NodeRef(ref)

    def put_blob(self, data: bytes) -> BlobRef:
        return BlobRef(self.put_node(data))

    def get_node(self, ref: NodeRef) -> bytes:
        return self._get(ref)

    def read_blob(self, ref: BlobRef, size: int) -> bytes:
        data = self._get(ref)
        if len(data) != size:
            raise DamagedError(f"object {ref.hex()} has another size")
        return data

    def open_blob(self, ref: BlobRef, size: int) -> Opened:
        data = self.read_blob(ref, size)
        fd = os.memfd_create("blob")
        os.write(fd, b"before" + data + b"after")
        return Opened(fd, len(b"before"))

    def has(self, ref: bytes) -> bool:
        return ref in self.data

    def flush(self) -> None:
        self.flushed += 1

    def _get(self, ref: bytes) -> bytes:
        try:
            data = self.data[ref]
        except KeyError:
            raise MissingError(f"object {ref.hex()} is missing") from None
        if digest(data) != ref:
            raise DamagedError(f"object {ref.hex()} is damaged")
        return data
