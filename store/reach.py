"""What is needed: the objects and attic folders that layers, journals and given roots lead to.

Owns the walk from roots to everything below them. Does not own which roots there are, nor what happens to the rest
(``sweep``).

Concurrency: one thread; the objects may grow meanwhile.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from store.disk import READ_FLAGS, read_descriptor
from store.errors import FormatError, MissingError
from store.format import (
    Blob,
    BlobPiece,
    BranchPage,
    Chunked,
    ChunkList,
    Content,
    Directory,
    Entry,
    Layer,
    LeafPage,
    LinkTarget,
    Original,
    OriginPiece,
    Regular,
    StoredObject,
    decode,
)
from store.objects import Objects
from store.refs import REF_BYTES, CheckpointId, NodeRef

# Journals, and records of what vfs has under way, name objects as MessagePack binaries of 32 bytes and checkpoints as
# strings of 12 digits. Whatever looks so is taken to be one: that keeps too much at worst.
_REF = re.compile(rb"\xc4\x20(?=(.{%d}))" % REF_BYTES, re.DOTALL)
_CHECKPOINT = re.compile(rb"\xac([0-9a-f]{12})")
_OVERLAP = 2 + REF_BYTES


class References(NamedTuple):
    """What one object refers to: pages, chunk lists and layers; blobs; folders of the attic."""

    nodes: list[bytes]
    blobs: list[bytes]
    trees: set[int]


def references(value: StoredObject) -> References:
    """What ``value`` refers to. A layer's parent is not among it: a layer is whole without it."""
    found = References([], [], set())
    match value:
        case LeafPage():
            for _, entry in value.entries:
                _add_entry(found, entry)
        case BranchPage():
            found.nodes.extend(child.ref for child in value.children)
        case ChunkList():
            for piece in value.pieces:
                if isinstance(piece, BlobPiece):
                    found.blobs.append(piece.ref)
                elif isinstance(piece, OriginPiece):
                    found.trees.add(piece.origin.tree)
        case Layer():
            _add_entry(found, value.root)
            if value.links is not None:
                found.nodes.append(value.links)
    return found


def _add_entry(found: References, entry: Entry) -> None:
    if isinstance(entry, LinkTarget):
        entry = entry.inode
    if isinstance(entry, Regular):
        _add_content(found, entry.content)
    elif isinstance(entry, Directory):
        if entry.node is not None:
            found.nodes.append(entry.node)
        if entry.origin is not None:
            found.trees.add(entry.origin.tree)


def _add_content(found: References, content: Content) -> None:
    if isinstance(content, Blob):
        found.blobs.append(content.ref)
    elif isinstance(content, Chunked):
        found.nodes.append(content.ref)
    elif isinstance(content, Original):
        found.trees.add(content.origin.tree)


class Reach:
    """The objects reached so far (``refs``) and the attic folders that they cite (``trees``)."""

    def __init__(self, objects: Objects) -> None:
        self.refs: set[bytes] = set()
        self.trees: set[int] = set()
        self._objects = objects
        self._walked: set[bytes] = set()
        """Reached as nodes. A file may hold the very bytes of a node: that it is reached says nothing of its below."""

    def add(self, root: bytes) -> list[bytes]:
        """Reach ``root``, a layer or page, and all below it; returns what was not reached before.

        Raises MissingError, DamagedError or FormatError where the way is cut: what lies behind is not known then.
        """
        new: list[bytes] = []
        waiting = [root]
        while waiting:
            ref = waiting.pop()
            if ref in self._walked:
                continue
            found = references(decode(self._objects.get_node(NodeRef(ref))))
            self._walked.add(ref)
            self.trees |= found.trees
            waiting.extend(found.nodes)
            for reached in (ref, *found.blobs):
                if reached not in self.refs:
                    self.refs.add(reached)
                    new.append(reached)
        return new

    def add_possible(self, root: bytes) -> None:
        """As ``add``, for something that may be a node, a blob, or nothing at all."""
        try:
            self.add(root)
        except MissingError:
            if not self._objects.has(root):
                return
            raise
        except FormatError:  # not a node: what was behind the way would have raised DamagedError
            if root in self._walked:
                raise
            self.refs.add(root)


class CitingFile:
    """What a journal or another file of records may refer to, read on from where it was left the time before."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self._offset = 0

    def new(self) -> tuple[set[bytes], set[CheckpointId]]:
        """Names of objects and of checkpoints in what was appended since the last call."""
        try:
            fd = os.open(self.path, READ_FLAGS)
        except FileNotFoundError:
            return set(), set()
        try:
            start = max(0, self._offset - _OVERLAP)
            os.lseek(fd, start, os.SEEK_SET)
            data = read_descriptor(fd, max(0, os.fstat(fd).st_size - start))
        finally:
            os.close(fd)
        self._offset = start + len(data)
        refs = {found[1] for found in _REF.finditer(data)}
        return refs, {CheckpointId(found[1].decode()) for found in _CHECKPOINT.finditer(data)}
