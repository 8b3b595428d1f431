"""The identifiers of the store: one distinct type for each, so that none is passed for another.

Owns nothing; every value here is immutable and may be shared between threads.
"""

from __future__ import annotations

from typing import NewType

from blake3 import blake3

BlobRef = NewType("BlobRef", bytes)
"""BLAKE3-256 of a piece of file content, 32 bytes."""

NodeRef = NewType("NodeRef", bytes)
"""BLAKE3-256 of an encoded page, chunk list or layer's tree object, 32 bytes."""

LayerRef = NewType("LayerRef", bytes)
"""BLAKE3-256 of an encoded layer, 32 bytes."""

CheckpointId = NewType("CheckpointId", str)
"""A checkpoint's name: 12 lower-case hexadecimal digits."""

WorkspaceId = NewType("WorkspaceId", str)
"""A workspace's name in the store: 16 lower-case hexadecimal digits."""

Ino = NewType("Ino", int)
"""An inode number as the kernel and stat(2) show it. 1 is the root."""

REF_BYTES = 32


def digest(data: bytes | memoryview) -> bytes:
    """BLAKE3-256 of ``data``."""
    return blake3(data).digest()
