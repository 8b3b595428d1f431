"""Making sure, before a move, that everything it brings back is really there: in the store, the attic, or the base.

Reads no more than it must: what this process wrote or checked, and whose file has not been touched since, counts as
checked. Raises before anything has changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Protocol

from store.errors import DamagedError
from store.format import Blob, BlobPiece, Chunked, Content, Directory, Original, OriginPiece, Regular
from store.nodes import FreshRegular
from store.refs import BlobRef
from vfs.errors import FsError
from vfs.trees.contents import Contents
from vfs.trees.diff import Changed
from vfs.trees.view import Present, View


class CheckedBlobs(Protocol):
    """The part of ``store.objects`` that verifying needs."""

    def check_blob(self, ref: BlobRef, size: int) -> None: ...


def verify(changes: Iterable[Changed], after: View, blobs: CheckedBlobs, contents: Contents) -> None:
    """Check the content of every file that ``changes`` bring. Raises DamagedError, naming the file."""
    for change in changes:
        if change.after is None or change.kind in ("delete", "mode"):
            continue
        _verify(change.path, change.after, after, blobs, contents)


def _verify(path: bytes, entry: Present, view: View, blobs: CheckedBlobs, contents: Contents) -> None:
    if isinstance(entry, Regular) and not isinstance(entry, FreshRegular):
        try:
            _check(entry.content, blobs, contents)
        except (DamagedError, FsError) as error:
            raise DamagedError(
                f"{os.fsdecode(path)} cannot be brought back: {error}; nothing was changed",
                hint="`plyfs fsck` lists what is damaged; `plyfs restore ID PATH` brings back the rest",
            ) from error
    elif isinstance(entry, Directory):
        # Its files are changes of their own; its pages have been read, and so checked, to find them.
        view.page(entry)


def _check(content: Content, blobs: CheckedBlobs, contents: Contents) -> None:
    match content:
        case Blob(ref, size):
            blobs.check_blob(ref, size)
        case Chunked():
            for piece in contents.chunks(content).pieces:
                if isinstance(piece, BlobPiece):
                    blobs.check_blob(piece.ref, piece.length)
                elif isinstance(piece, OriginPiece):
                    os.close(contents.open_origin(piece))
        case Original():
            os.close(contents.open_origin(content))
        case _:
            pass
