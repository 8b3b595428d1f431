"""Leaving a mount: unmounting it, and what becomes of the changes.

Owns the order of an unmount: nothing of the base changes before the mount is gone, nothing is forgotten before the
base has it, and a mount that cannot be left is served again as it was. What a crash left half done is caught up with
at the next start.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from store.disk import make_directories
from store.entries import below
from store.errors import FormatError, NoSpaceError, StoreError
from store.format import Directory, Regular, Special, Symlink
from store.generations import Generation
from store.head import Head
from store.home import Home, WorkspaceStore
from store.nodes import settled
from store.refs import CheckpointId, LayerRef
from store.whole import read_whole, write_whole
from vfs.apply import whole as apply
from vfs.apply.found import found_layer
from vfs.apply.whole import Applied
from vfs.base import absence, overlaid
from vfs.channels.users import users
from vfs.errors import FsError
from vfs.live.tree import Tree
from vfs.opening import check_generations, store_layer
from vfs.trees.host import Host
from vfs.trees.view import View, join
from vfs.workspace import ConflictError, UnmountResult, WorkspaceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from vfs.channel import Channel
    from vfs.opening import Opened
    from vfs.sealing import Sealing
    from vfs.timeline import Timeline
    from vfs.trees.contents import Contents

How = Literal["apply", "keep", "discard"]


class Served(NamedTuple):
    """What is left: the parts of a mounted workspace, and how to serve it again."""

    home: Home
    opened: Opened
    timeline: Timeline
    sealing: Sealing
    contents: Contents
    serve_again: Callable[[], None]


class Applying(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="applying"):
    """The tree that is being written into the base, in terms of ``generation``: what a crash must not lose sight of."""

    generation: int
    layer: LayerRef


def work_dir(store: WorkspaceStore) -> bytes:
    """Where an apply keeps its record."""
    return os.path.join(store.path, b"apply")


def catch_up(home: Home, store: WorkspaceStore, base_fd: int, notes: list[str]) -> None:
    """Finish, or take back, an apply that a crash interrupted; find what others changed since the last mount."""
    check_generations(store)
    work = work_dir(store)
    host = Host({0: base_fd})
    applied = apply.resume(work, base_fd, store.attic_dir)
    head = store.history.read_head()
    if applied is not None:
        assert head is not None, "what was applied had a head"
        head, _ = applied_head(home, store, host, head, applied)
        store.history.write_head(head, sync=True)
        for epoch in store.epochs():  # of the generation that has ended: all in them is in the base now
            os.unlink(store.journal_path(epoch))
        notes.append("an apply that had been interrupted was finished")
    finish(home, store, host, base_fd, applied)
    host.open_attic(store.attic_dir)
    if head is not None and not store.epochs() and head.head == head.base:
        found = absence.look(home, store, host, head, time.time_ns())
        if found is not None:
            notes.append(found.note)


def leave(served: Served, channel: Channel, point: bytes, how: How, lazy: bool) -> UnmountResult:
    """Unmount ``served``. Raises ConflictError while files are open there and not ``lazy``, NoSpaceError or another
    StoreError if the base cannot take the changes; then the workspace goes on being served.
    """
    began = time.perf_counter()
    if not lazy:
        refuse_if_busy(point)
    saved: CheckpointId | None = None
    if how != "keep":
        result = served.timeline.checkpoint(kind="automatic")
        saved = CheckpointId(result.id) if result.created else None
    served.sealing.drain()
    channel.stop(lazy=lazy)
    # From the first object that an apply puts until something refers to it, no sweep may come between.
    with served.home.objects.sealing():
        try:
            if how != "keep":  # what came between the checkpoint and the end of the mount
                result = served.timeline.checkpoint(kind="automatic")
                saved = CheckpointId(result.id) if result.created else saved
            served.sealing.drain()
            served.opened.core.barrier()
            applied = _apply(served) if how == "apply" else None
        except (StoreError, FsError, OSError) as error:
            if apply.is_committed(work_dir(served.opened.store)):
                raise _half_way(error) from error
            if lazy:
                raise
            served.serve_again()
            raise _not_left(error) from error
        kept = _settle(served, how, applied)
    if how == "apply":
        finish(served.home, served.opened.store, served.opened.host, served.opened.base_fd, applied)
    conflicts = [] if applied is None else [os.fsdecode(path) for path in applied.conflicts]
    count = 0 if applied is None else applied.count
    head = served.timeline.head.head
    lost = [] if applied is None else [os.fsdecode(path) for path in applied.lost]
    return UnmountResult(how, head, saved, count, conflicts, kept, time.perf_counter() - began, lost)


def _not_left(error: Exception) -> StoreError:
    if isinstance(error, NoSpaceError):
        return NoSpaceError(
            f"the changes cannot be applied: {error}; nothing was changed and the workspace is served again",
            hint="free some space, or unmount with --keep",
        )
    if isinstance(error, StoreError):
        return error
    return WorkspaceError(
        f"the changes cannot be applied: {error}; the workspace is served again", hint="or unmount with --keep"
    )


def _half_way(error: Exception) -> StoreError:
    """The base is neither what it was nor what it is to be: it is not served before the apply has been finished."""
    message = f"the directory is half way to what it shall be, and going on failed: {error}; it is not mounted now"
    hint = "remove the cause, then `plyfs mount`: that finishes it"
    return NoSpaceError(message, hint) if isinstance(error, NoSpaceError) else WorkspaceError(message, hint)


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


# --- applying --------------------------------------------------------------------------------------------------------


def _apply(served: Served) -> Applied | None:
    opened = served.opened
    store = opened.store
    root = served.timeline.fold()[0]
    layer = store_layer(served.home, root)
    view = View.load(served.home.pages, opened.host, served.home.objects, layer)
    directory = os.path.join(store.path, b"leaving")
    make_directories(store.disk, directory)
    value = msgspec.msgpack.encode(Applying(root.generation, layer))
    write_whole(store.disk, os.path.join(directory, b"applying"), value, sync=True)
    return apply.apply(
        view,
        opened.host,
        served.contents,
        served.home.objects,
        work_dir(store),
        store.attic_dir,
        overlaid.since(store),
        presented_times(view, opened.core.tree),
    )


def _applying(store: WorkspaceStore) -> Applying:
    path = os.path.join(store.path, b"leaving", b"applying")
    try:
        return msgspec.msgpack.decode(read_whole(path, "it tells which tree an unfinished apply writes"), type=Applying)
    except msgspec.DecodeError as error:
        raise FormatError(f"{os.fsdecode(path)} cannot be read: {error}") from error


def finish(home: Home, store: WorkspaceStore, host: Host, base_fd: int, applied: Applied | None) -> None:
    """Everything about an apply is written down, or there was none: clear away what it worked with, and remember what
    it wrote. Raises NoSpaceError.
    """

    def remember() -> None:
        if applied is not None:
            host.open_attic(store.attic_dir)
            absence.applied(home, store, host, applied)

    apply.finish(work_dir(store), base_fd, store.attic_dir, remember=remember)
    try:
        store.disk.unlink(os.path.join(store.path, b"leaving", b"applying"))
    except FileNotFoundError:
        pass


def presented_times(view: View, tree: Tree) -> dict[bytes, int]:
    """Modification times that the mount shows instead of the tree's, by path: those of what a restore brought back."""
    if not tree.shown and not tree.reborn:
        return {}
    times = _Times(view, tree)
    times.find()
    return times.found


class _Times:
    """One search for such times; ``found`` has them by path. It costs the tree's overrides and what came back."""

    def __init__(self, view: View, tree: Tree) -> None:
        self._view = view
        self._tree = tree
        self.found: dict[bytes, int] = {}

    def find(self) -> None:
        view, tree = self._view, self._tree
        held = list(view.held())
        for ino, origin in tree.shown_origins.items():
            shown = tree.shown.get(ino)
            if shown is not None and shown.of_ns is not None:
                self.found.update((path, shown.since_ns) for path in view.shown(origin, held))
        reborn: dict[bytes, int] = {}
        for path, directory in held:
            reborn[path] = when = self._since(directory, reborn.get(os.path.dirname(path), 0) if path else 0)
            for name, entry in view.overrides(directory):
                value = settled(entry)
                if isinstance(value, Regular | Symlink | Special):
                    self._show(join(path, name), value, when)
            if when:
                self._fallen(path, directory, when)
        for ino, when in tree.reborn.items():
            place = tree.shown_origins.get(ino)
            for path in view.shown(place, held) if place is not None else ():
                found = view.lookup(path)
                if isinstance(found, Directory) and found.attributes.ino == ino:
                    self._fallen(path, found, self._since(found, when))

    def _since(self, directory: Directory, above_ns: int) -> int:
        """When a restore brought back ``directory``, or the one above it; 0 for never."""
        own = self._tree.reborn.get(directory.attributes.ino, 0)
        return max(own, above_ns if above_ns > directory.attributes.ctime_ns else 0)

    def _fallen(self, path: bytes, directory: Directory, when: int) -> None:
        """The times of what the base has in a directory that came back then, and below it."""
        view = self._view
        if directory.origin is None:
            return
        overridden = {name for name, _ in view.overrides(directory)}
        for row in view.host.list(directory.origin):
            if row.name in overridden:
                continue
            child = view.resolve(directory, row.name, None)
            if isinstance(child, Directory):
                since = self._since(child, when)
                if since:
                    self._fallen(join(path, row.name), child, since)
            elif child is not None and view.host.stat(below(directory.origin, row.name)).st_nlink < 2:
                self._show(join(path, row.name), child, when)

    def _show(self, path: bytes, inode: Regular | Symlink | Special, when: int) -> None:
        mtime = self._tree.presented(inode.attributes, when)
        if mtime != inode.attributes.mtime_ns:
            self.found[path] = mtime


def _settle(served: Served, how: How, applied: Applied | None) -> str | None:
    """Write down where the workspace stands now; the checkpoint of what was found changed below the mount, if any."""
    store = served.opened.store
    head = served.timeline.head
    kept: str | None = None
    if how == "keep":
        served.opened.core.keep_identities()
        head = msgspec.structs.replace(head, mounted=False, left=how)
    elif how == "discard":
        head = msgspec.structs.replace(head, head=head.base, redo=(), mounted=False, left=how)
    else:
        head, kept = applied_head(served.home, store, served.opened.host, head, applied)
    store.history.write_head(head, sync=True)
    served.timeline.head = head
    if how != "keep":
        served.opened.core.identities.clear()
        served.opened.core.close()
        for epoch in store.epochs():
            os.unlink(store.journal_path(epoch))
    return kept


def applied_head(
    home: Home, store: WorkspaceStore, host: Host, head: Head, applied: Applied | None
) -> tuple[Head, str | None]:
    """The head after an apply, whose generation is recorded if it was not yet; and the checkpoint of conflicts."""
    kept: str | None = None
    if applied is not None:
        if store.generations.current == applied.generation:
            written = _applying(store)
            assert written.generation == applied.generation, "one apply at a time"
            now = time.time_ns()
            store.generations.append(Generation(applied.generation, written.layer, applied.inverse, now, "apply"))
        if applied.conflicts:
            kept = _keep_conflicts(home, store, host, head, applied)
    generation = store.generations.current
    return msgspec.structs.replace(head, base=head.head, generation=generation, mounted=False, left="apply"), kept


def _keep_conflicts(home: Home, store: WorkspaceStore, host: Host, head: Head, applied: Applied) -> str:
    """A checkpoint of the base as it was found, so that what others put there can be had back."""
    layer = applied.inverse
    with home.objects.sealing():
        if applied.found:
            host.open_attic(store.attic_dir)
            inverse = View.load(home.pages, host, home.objects, layer)
            layer = found_layer(inverse, applied.found, host, home.pages, home.objects)
        made = store.history.begin(
            head.head,
            kind="outside",
            label="found below the mount",
            changed=len(applied.conflicts),
            generation=store.generations.current,
            epoch=head.epoch,
            next_ino=head.next_ino,
            outside=applied.conflicts,
            layer=layer,
        )
    return made.id
