"""A workspace served by FUSE: the Workspace protocol over a live tree.

Owns the life of a mount, from lock to unmount, and turns calls into moves of the timeline. Does not own the rules of
the moves (``timeline``), nor what an unmount does to the base (``leaving``).

Concurrency: every method may be called from any thread. Calls that compare trees work on values; what changes the tree
goes through the timeline.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Literal, Protocol

from store.format import Regular
from store.home import Home
from store.nodes import FreshRegular
from store.refs import CheckpointId
from vfs import answers, interpreter, leaving, steps
from vfs.base import absence, overlaid
from vfs.channel import Channel, Invalidations, Touched
from vfs.channels.serving import start_channel
from vfs.channels.users import users
from vfs.channels.waker import Waker
from vfs.errors import FsError
from vfs.keeper import Keeper
from vfs.live.extents import Extents, read_runs
from vfs.live.inode import Inode
from vfs.live.pending import Pending
from vfs.live.tree import Root
from vfs.opening import Opened, open_store, open_workspace_tree, store_layer
from vfs.scan import handover
from vfs.sealing import Sealing
from vfs.timeline import Move, Moved, Timeline
from vfs.trees.contents import Contents
from vfs.trees.verifying import verify
from vfs.workspace import (
    CheckpointResult,
    ConflictError,
    DiffResult,
    Kept,
    ListedEntry,
    LogResult,
    RestoreResult,
    StatusResult,
    UnmountResult,
    WorkspaceError,
)

How = Literal["apply", "keep", "discard"]
MOST_UNREADABLE = 20
"""Of so many things that cannot be read the reasons are kept."""

TRIES = 4
"""How often a move is worked out anew because the tree changed meanwhile."""


class Options(Protocol):
    """What to serve and how; ``harness.serving.ServeOptions`` is one."""

    @property
    def workspace(self) -> str: ...

    @property
    def mountpoint(self) -> str | None: ...

    @property
    def channel(self) -> Literal["auto", "direct", "pyfuse3"]: ...

    @property
    def home(self) -> str: ...


def open_workspace(options: Options, listener: Callable[[str, object], None]) -> MountedWorkspace:
    """A workspace that ``start`` serves."""
    return MountedWorkspace(options, listener)


class MountedWorkspace:
    """One mounted workspace; satisfies ``vfs.workspace.Workspace``."""

    def __init__(self, options: Options, listener: Callable[[str, object], None]) -> None:
        self._options = options
        self._listener = listener
        self._workspace = os.fsencode(options.workspace)
        self._point = self._workspace if options.mountpoint is None else os.fsencode(options.mountpoint)
        self._opened: Opened | None = None
        self._channel: Channel | None = None
        self._notes: list[str] = []
        self._health: list[str] = []
        self._unreadable: dict[str, None] = {}
        self._size = answers.StoreSize()
        self._waker = Waker()
        self._leaving = threading.Lock()
        self._survey: absence.Survey | None = None

    # --- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Recover what a crash left, and serve; returns once the mount answers. Raises StoreError."""
        interpreter.prepare()
        self.home = Home.open(self._options.home)
        base_fd = os.open(self._workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        store, lock = open_store(self.home, base_fd, self._workspace)
        try:
            self._notes += handover.from_scan(self.home, store, lock, self._workspace)
            leaving.catch_up(self.home, store, base_fd, self._notes)
            overlaid.begin(store)
            opened = open_workspace_tree(self.home, store, lock, base_fd, time.time_ns, self._notes)
        except BaseException:
            lock.release()
            os.close(base_fd)
            raise
        self._opened = opened
        self.contents = Contents(self.home.objects, opened.host)
        self.sealing = Sealing(
            opened.core,
            self.home.objects,
            self.home.pages,
            store.history,
            opened.roots,
            lambda id: self._listener("sealed", {"id": id}),
            self._problem,
        )
        self.timeline = Timeline(
            opened.core, store.history, opened.roots, opened.head, opened.baseline, self.sealing.submit, self._tell
        )
        opened.core.tree.on_changed_below = self._changed_below
        opened.core.tree.sources.on_trouble = self._cannot_read
        self.timeline.on_head = lambda id: self._listener("head", {"head": id})
        self._keeper = Keeper(opened.core.barrier, self._problem)
        opened.core.epochs.reclaim.on_much = self._keeper.hurry
        self._keeper.start()
        self.sealing.start()
        for task in opened.tasks:
            self.sealing.submit(task)
        try:
            self._channel = start_channel(self._options.channel, opened.core, self._point, self._notes)
        except BaseException:
            self.close()
            raise
        self._survey = absence.Survey(store, base_fd, self._found_outside)
        self._survey.start()

    def _found_outside(self, paths: list[bytes]) -> None:
        with self.home.objects.sealing():
            made = self.timeline.note_outside(tuple(paths), lambda root: store_layer(self.home, root))
        self._listener("head", {"head": made.id})

    def _serve_again(self) -> None:
        """Serve once more what could not be left."""
        with self.opened.core.tree.lock:
            self.opened.core.tree.forget_all()
        self._channel = start_channel(self._options.channel, self.opened.core, self._point, self._notes)

    @property
    def opened(self) -> Opened:
        """The open workspace. ``start`` first."""
        assert self._opened is not None, "start first"
        return self._opened

    def notes(self) -> list[str]:
        """What a person should know of the start."""
        return list(self._notes)

    def store_directory(self) -> str:
        """Where the workspace's history lies."""
        return os.fsdecode(self.opened.store.path)

    def knows(self, checkpoint: str) -> bool:
        """True if there is a checkpoint of that id."""
        return CheckpointId(checkpoint) in self.opened.store.history

    def wait(self) -> None:
        """Return when the mount is gone, whoever unmounted it."""
        while self._channel is not None:
            channel = self._channel
            channel.wait()
            with self._leaving:
                if channel is self._channel:
                    return

    def close(self) -> None:
        """Let go of everything; what is not sealed stays in the journals."""
        opened, self._opened = self._opened, None
        if opened is None:
            return
        if self._channel is not None and not self._channel.wait(0):
            self._channel.stop(lazy=True)
        if self._survey is not None:
            self._survey.stop()
        self._keeper.stop()
        self.sealing.stop()
        opened.core.close()
        opened.roots.close()
        opened.store.close()
        opened.lock.release()
        os.close(opened.base_fd)

    def _problem(self, text: str) -> None:
        if text not in self._health:
            self._health.append(text)
        self._listener("health", {"problems": self.health()})

    def _cannot_read(self, why: str) -> None:
        """A program in the mount gets EIO: what is behind it is told here."""
        if why not in self._unreadable and len(self._unreadable) < MOST_UNREADABLE:
            self._unreadable[why] = None
            self._listener("health", {"problems": self.health()})

    def _changed_below(self, inode: Inode) -> None:
        """Somebody writes to the base below the mount; the kernel is told by another thread than the one that asks."""
        if self._channel is not None:
            self._waker.invalidate(self._channel, Invalidations(contents=(inode.ino,)))
        assert inode.origin is not None
        name = os.fsdecode(inode.origin.path)
        self._problem(f"{name} was changed below the mount: a program started before it may still work down there")

    def _tell(self, invalidations: Invalidations, touched: list[Touched]) -> None:
        if self._channel is not None:
            self._channel.invalidate(invalidations)
            self._waker.wake(self._channel, touched)

    # --- moving ----------------------------------------------------------------------------------------------------

    def checkpoint(
        self, label: str | None = None, session: str | None = None, node: str | None = None, sync: bool = False
    ) -> CheckpointResult:
        """See ``Workspace``."""
        result = self.timeline.checkpoint(label, session, node)
        if sync:
            self._sync(CheckpointId(result.id))
        return result

    def _sync(self, id: CheckpointId) -> None:
        try:
            self.opened.core.barrier()
        except FsError as error:
            raise WorkspaceError(f"the disk did not take everything: {error}") from error
        self.sealing.wait(id)
        self.opened.store.history.write_head(self.timeline.head, sync=True)

    def undo(self, count: int = 1) -> RestoreResult:
        """See ``Workspace``."""
        return self._move(lambda: self.timeline.undo(count))

    def redo(self, count: int = 1) -> RestoreResult:
        """See ``Workspace``."""
        return self._move(lambda: self.timeline.redo(count))

    def restore(
        self,
        checkpoint: str,
        paths: list[str] | None = None,
        dry_run: bool = False,
        force: bool = False,
        with_git: bool = False,
        fingerprint: str | None = None,
        mine: Mapping[str, int | None] | None = None,
    ) -> RestoreResult:
        """See ``Workspace``."""
        chosen = None if not paths else [answers.inside(path, self._point, self._workspace) for path in paths]
        return self._move(lambda: self.timeline.go(checkpoint, chosen, with_git, force, mine), dry_run, fingerprint)

    def _move(self, plan: Callable[[], Move], dry_run: bool = False, fingerprint: str | None = None) -> RestoreResult:
        """Work out a move, check it, make it; once more if the tree changed meanwhile and nobody saw a preview."""
        began = time.perf_counter()
        for attempt in range(TRIES):
            # At last with the tree held still, so that a build that never stops writing cannot keep it from happening.
            with self.timeline.held() if attempt == TRIES - 1 else nullcontext():
                move = plan()
                seen = self._fingerprint(move)
                if fingerprint is not None and fingerprint != seen:
                    raise ConflictError(
                        "the workspace changed since the preview; nothing was done", hint="look at the new preview"
                    )
                if dry_run:
                    moved = Moved(move.target, self.timeline.head.head, None)
                else:
                    verify(move.changes, self.opened.roots.view(move.onto), self.home.objects, self.contents)
                    try:
                        moved = self.timeline.make(move)
                    except ConflictError:
                        continue
            if not dry_run:
                self.timeline.finish()
            changes = [one.change() for one in move.changes]
            kept = [Kept(os.fsdecode(path), reason) for path, reason in sorted(move.kept.items())]
            seconds = time.perf_counter() - began
            return RestoreResult(moved.head, moved.origin, moved.saved, changes, kept, seconds, seen)
        raise AssertionError("with the tree held still nothing changes")

    def _fingerprint(self, move: Move) -> str:
        return f"{self.timeline.head.head}-{move.target}-{self.opened.core.tree.epoch}-{move.version}"

    # --- looking ---------------------------------------------------------------------------------------------------

    def resolve(self, spec: str) -> str:
        """See ``Workspace``."""
        return self.timeline.resolve(spec).id

    def log(self, session: str | None = None) -> LogResult:
        """See ``Workspace``."""
        rows = answers.log_rows(self.opened.store.history, self._head, session)
        present, _ = self.timeline.fold()
        dirty = self.timeline.differs(self.timeline.baseline, present)
        return LogResult(self._head, rows, dirty, list(self.timeline.head.redo))

    @property
    def _head(self) -> str:
        return self.timeline.head.head

    def diff(self, a: str | None = None, b: str | None = None, patch: bool = False, stat: bool = False) -> DiffResult:
        """See ``Workspace``."""
        before = self.timeline.root_of(a if a is not None else "@")
        after = self.timeline.root_of(b)
        return self._compared(before, after, skip_git=False, with_patch=patch, with_lines=stat)

    def drift(self) -> DiffResult:
        """See ``Workspace``."""
        present = self.timeline.root_of(None)
        return self._compared(present, self.timeline.root_of("@"), skip_git=True)

    def _compared(
        self, before: Root, after: Root, skip_git: bool, with_patch: bool = False, with_lines: bool = False
    ) -> DiffResult:
        found = self.timeline.changes(before, after, skip_git)
        views = self.opened.roots.view(before), self.opened.roots.view(after)
        return answers.compared(found, *views, self.read_entry, with_patch, with_lines)

    def read_entry(self, entry: Regular, offset: int, length: int) -> bytes:
        """Bytes of a file of any tree, sealed or not. Raises DamagedError or FsError."""
        if isinstance(entry, FreshRegular):
            pending = entry.fresh.value
            assert isinstance(pending, Pending)
            end = min(offset + length, pending.size)
            return b"" if offset >= end else read_runs(Extents(pending.runs).slice(offset, end), offset, end)
        return self.contents.read(entry.content, offset, length)

    def cat(self, checkpoint: str, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """See ``Workspace``."""
        return self._looked(checkpoint).cat(path, offset, length)

    def ls(self, checkpoint: str, path: str = "") -> list[ListedEntry]:
        """See ``Workspace``."""
        return self._looked(checkpoint).ls(path)

    def _looked(self, checkpoint: str) -> answers.Looked:
        view = self.opened.roots.view(self.timeline.root_of(checkpoint))
        return answers.Looked(checkpoint, view, self.read_entry, (self._point, self._workspace))

    # --- state -----------------------------------------------------------------------------------------------------

    def status(self) -> StatusResult:
        """See ``Workspace``."""
        present, _ = self.timeline.fold()
        changed = len(self.timeline.changes(self.timeline.baseline, present))
        head = self.timeline.head
        unsaved = changed > 0 and self.timeline.differs(self.timeline.baseline, present, skip_git=True)
        undo, redo = steps.why_not(self.opened.store.history, head, unsaved)
        return StatusResult(
            workspace=self._options.workspace,
            mode="fuse",
            channel=None if self._channel is None else self._channel.name,
            mounted=True,
            mountpoint=os.fsdecode(self._point),
            head=head.head,
            dirty=changed > 0,
            changed=changed,
            store_bytes=self._size.of(self.home.objects.inventory),
            health=self.health(),
            writers=[str(user) for user in users(self._point) if user.writing],
            undo=undo,
            redo=redo,
        )

    def health(self) -> list[str]:
        """What is wrong, for people; empty if all is well."""
        problems = [f"checkpoint {id} could not be sealed: {why}" for id, why in self.sealing.failures.items()]
        if self.sealing.full:
            problems.append("the store is full: new checkpoints wait to be sealed; free some space")
        problems += [f"something cannot be read: {why}" for why in list(self._unreadable)]
        return problems + [text for text in self._health if "could not be sealed" not in text and "full" not in text]

    def unmount(self, how: How = "apply", lazy: bool = False) -> UnmountResult:
        """See ``Workspace``."""
        assert self._channel is not None
        self._waker.finish()
        if self._survey is not None:
            self._survey.stop()
        with self._leaving:
            parts = self.home, self.opened, self.timeline, self.sealing, self.contents
            served = leaving.Served(*parts, self._serve_again)
            return leaving.leave(served, self._channel, self._point, how, lazy)
