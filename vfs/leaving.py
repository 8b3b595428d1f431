"""Leaving a mount: unmounting it, and what becomes of the changes.

Owns the order of an unmount: nothing of the base changes before everything new has been staged and the mount is gone,
and nothing is forgotten before the base has it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

import msgspec

from store.refs import CheckpointId
from vfs import identities
from vfs.channel import Channel
from vfs.users import users
from vfs.workspace import ConflictError, UnmountResult

if TYPE_CHECKING:
    from vfs.mounted import MountedWorkspace

How = Literal["apply", "keep", "discard"]


def leave(served: MountedWorkspace, channel: Channel, point: bytes, how: How, lazy: bool) -> UnmountResult:
    """Unmount ``served``. Raises ConflictError while files are open there and not ``lazy``; then it goes on serving."""
    began = time.perf_counter()
    if not lazy:
        refuse_if_busy(point)
    saved: CheckpointId | None = None
    if how != "keep":
        result = served.timeline.checkpoint(kind="automatic")
        if result.created:
            saved = CheckpointId(result.id)
    channel.stop(lazy=lazy)
    served.sealing.drain()
    served.opened.core.barrier()
    head = served.timeline.head
    history = served.opened.store.history
    if how == "keep":
        identities.save(served.opened.store.path, served.home.disk, served.opened.core.tree)
    if how == "discard":
        base = head.base
        head = msgspec.structs.replace(head, head=base, redo=())
    head = msgspec.structs.replace(head, mounted=False, left=how)
    history.write_head(head, sync=True)
    return UnmountResult(how, head.head, saved, 0, [], None, time.perf_counter() - began)


def refuse_if_busy(point: bytes) -> None:
    """Raise ConflictError, naming the processes, if anything at or below ``point`` is in use."""
    busy = users(point)
    if busy:
        names = "; ".join(str(user) for user in busy[:5])
        more = f" and {len(busy) - 5} more" if len(busy) > 5 else ""
        raise ConflictError(
            f"the workspace is in use by {names}{more}",
            hint="close them or change their directory, then unmount again; --lazy unmounts under them",
        )
