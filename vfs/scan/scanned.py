"""A workspace served without FUSE: the Workspace protocol over scans of the plain directory.

Owns the life of a scanned workspace and what is looked at. Does not own how the directory is scanned (``capture``),
where it stands (``timeline``), moving (``moves``), or what a start has to recover (``opening``).

Concurrency: every method may be called from any thread; the timeline lets one of them work at a time. What makes
checkpoints durable runs beside them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import msgspec

from store.disk import Disk
from store.home import Home, WorkspaceIdentity
from store.lock import Lock
from store.nodes import same_entry
from store.refs import CheckpointId
from vfs import answers, interpreter, steps
from vfs.channels.users import users_of_directory
from vfs.live.tree import Root
from vfs.scan import bridge
from vfs.scan.capture import Present
from vfs.scan.execute import Executor
from vfs.scan.moves import Move, Moves
from vfs.scan.opening import Opening
from vfs.scan.platform import Platform, choose
from vfs.scan.policy import Policy
from vfs.scan.timeline import ScanTimeline, same_page
from vfs.workspace import (
    CheckpointResult,
    DiffResult,
    Kept,
    ListedEntry,
    LogResult,
    RestoreResult,
    StatusResult,
    UnmountResult,
)

PROGRESS_SECONDS = 0.2


class ScanSettings(Protocol):
    """``harness.config.ScanConfig`` is one."""

    @property
    def all(self) -> bool: ...

    @property
    def max_file_bytes(self) -> int: ...


class ScanConfig(Protocol):
    """The part of the configuration that scanning needs."""

    @property
    def scan(self) -> ScanSettings: ...


class Options(Protocol):
    """What to serve and how; ``harness.serving.ServeOptions`` is one."""

    @property
    def workspace(self) -> str: ...

    @property
    def home(self) -> str: ...

    @property
    def config(self) -> ScanConfig: ...


def open_workspace(
    options: Options, listener: Callable[[str, object], None], why: str | None = None
) -> ScannedWorkspace:
    """A workspace that ``start`` serves; ``why`` it is not mounted, for people."""
    policy = Policy("all" if options.config.scan.all else "git", options.config.scan.max_file_bytes)
    return ScannedWorkspace(options.workspace, options.home, policy, listener, why)


class ScannedWorkspace:
    """One scanned workspace; satisfies ``vfs.workspace.Workspace``."""

    timeline: ScanTimeline
    _moves: Moves

    def __init__(
        self,
        workspace: str,
        home: str,
        policy: Policy,
        listener: Callable[[str, object], None],
        why: str | None = None,
        platform: Platform | None = None,
        executor: type[Executor] = Executor,
        disk: Disk | None = None,
    ) -> None:
        self._workspace = workspace
        self._home_path = home
        self._policy = policy
        self._listener = listener
        self._platform = platform or choose()
        self._executor = executor
        self._disk = disk
        self._notes = [] if why is None else [why]
        self._health: list[str] = []
        self._over = threading.Event()
        self._opened = False
        self._size = answers.StoreSize()
        self._told = 0.0

    # --- life ------------------------------------------------------------------------------------------------------

    def start(self, lock: Lock | None = None) -> None:
        """Recover what a crash left and take the first scan; ``lock`` is the store's if the caller holds it.

        Raises StoreError.
        """
        interpreter.prepare()
        raw = os.fsencode(self._workspace)
        home = Home.open(self._home_path, self._disk)
        top = self._platform.open_top(raw)
        store = home.workspace(WorkspaceIdentity.of(top if isinstance(top, int) else raw), raw)
        self._lock = lock or store.lock()
        self._lock_is_ours = lock is None
        opening = Opening(
            home,
            store,
            self._platform,
            top,
            self._workspace,
            self._policy,
            self._executor,
            self._listener,
            self._problem,
            self._notes,
        )
        self.timeline, self._moves = opening.timeline, opening.moves
        self.timeline.over = self._over
        self._opened = True
        try:
            opening.run(self._progress)
        except Exception:
            self.close()
            raise

    def notes(self) -> list[str]:
        """What a person should know of the start."""
        return list(self._notes)

    def store_directory(self) -> str:
        """Where the workspace's history lies."""
        return os.fsdecode(self.timeline.store.path)

    def knows(self, checkpoint: str) -> bool:
        """True if there is a checkpoint of that id."""
        return CheckpointId(checkpoint) in self.timeline.store.history

    def wait(self) -> None:
        """Return when it is no longer served."""
        self._over.wait()

    def close(self) -> None:
        """Let go of everything."""
        self._over.set()
        if not self._opened:
            return
        self._opened = False
        timeline = self.timeline
        timeline.sealing.stop()
        if hasattr(timeline, "head"):
            timeline.save_index()
        timeline.store.close()
        if self._lock_is_ours:
            self._lock.release()
        self._platform.close(timeline.top)

    def _problem(self, text: str) -> None:
        if text not in self._health:
            self._health.append(text)
            self._listener("health", {"problems": list(self._health)})

    def _progress(self, done: int, of: int) -> None:
        now = time.monotonic()
        if of > 1000 and now - self._told > PROGRESS_SECONDS:
            self._told = now
            self._listener("progress", {"what": "scan", "done": done, "total": of})

    def hand_over(self) -> None:
        """Leave the directory to a mount: the head becomes exactly what it holds."""
        history = self.timeline.store.history
        with self.timeline.working():
            present = self.timeline.scan()
            root = self.timeline.target(self.timeline.head.head, present)
            same = same_entry(root.directory, present.root.directory) and same_page(root.links, present.root.links)
            if not same or history.scope(self.timeline.head.head) is None:
                changed = len(self.timeline.changes(self.timeline.baseline, present.root))
                made = self.timeline.freeze(present, changed, "outside")
                self.timeline.set_head(made.id, (), present)
            self.timeline.home.objects.flush()
            layer = present.layer
            bridge.begin_mounting(self.timeline.home, self.timeline.store, self.timeline.host, layer)
        self.timeline.sealing.drain()
        self.timeline.head = msgspec.structs.replace(
            self.timeline.head,
            base=self.timeline.head.head,
            generation=self.timeline.store.generations.current,
            mounted=False,
            left="apply",
        )
        history.write_head(self.timeline.head, sync=True)
        self.timeline.over.set()

    # --- moving ----------------------------------------------------------------------------------------------------

    def checkpoint(
        self, label: str | None = None, session: str | None = None, node: str | None = None, sync: bool = False
    ) -> CheckpointResult:
        """See ``Workspace``."""
        began = time.perf_counter()
        with self.timeline.working():
            present = self.timeline.scan()
            result = self.timeline.record(present, label, session, node, "user", began)
        if sync:
            self.timeline.sealing.drain()
            with self.timeline.lock:
                self.timeline.store.history.write_head(self.timeline.head, sync=True)
        if result.created:
            self.timeline.listener("checkpoint", result)
        return result

    def undo(self, count: int = 1) -> RestoreResult:
        """See ``Workspace``."""

        def work_out(present: Present) -> Move:
            unsaved = self.timeline.differs(self.timeline.baseline, present.root)
            step = steps.back(self.timeline.store.history, self.timeline.head, count, unsaved)
            return self._moves.plan(step.target, step.redo, present)._replace(returns=True)

        return self._moves.move(work_out)

    def redo(self, count: int = 1) -> RestoreResult:
        """See ``Workspace``."""

        def work_out(present: Present) -> Move:
            step = steps.forward(self.timeline.head, count)
            return self._moves.plan(step.target, step.redo, present)

        return self._moves.move(work_out)

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
        """See ``Workspace``. A scan never has ``.git``, so ``with_git`` brings back none."""
        chosen = None if not paths else tuple(sorted({answers.inside(path, self._top) for path in paths}))

        def work_out(present: Present) -> Move:
            target = self.timeline.resolve(checkpoint)
            if chosen is not None:
                return self._moves.pick(target.id, chosen, present)
            return self._moves.plan(target.id, (), present, force, mine)

        result = self._moves.move(work_out, dry_run, fingerprint)
        if with_git:
            result.kept.append(Kept(".git", "scanning does not capture it"))
        return result

    # --- looking ---------------------------------------------------------------------------------------------------

    def resolve(self, spec: str) -> str:
        """See ``Workspace``."""
        return self.timeline.resolve(spec).id

    def log(self, session: str | None = None) -> LogResult:
        """See ``Workspace``."""
        with self.timeline.working():
            dirty = self.timeline.differs(self.timeline.baseline, self.timeline.scan().root)
            rows = answers.log_rows(self.timeline.store.history, self.timeline.head.head, session)
            return LogResult(self.timeline.head.head, rows, dirty, list(self.timeline.head.redo))

    def diff(self, a: str | None = None, b: str | None = None, patch: bool = False, stat: bool = False) -> DiffResult:
        """See ``Workspace``."""
        with self.timeline.working():
            present = self.timeline.scan() if b is None else None
            before = self._side(a if a is not None else "@", present)
            after = self._side(b, present)
            return self._compared(before, after, patch, stat)

    def _side(self, spec: str | None, present: Present | None) -> Root:
        """A side of a comparison; no checkpoint is the present."""
        if spec is None:
            assert present is not None
            return present.root
        id = self.timeline.resolve(spec).id
        return self.timeline.recorded(id) if present is None else self.timeline.target(id, present)

    def drift(self) -> DiffResult:
        """See ``Workspace``."""
        with self.timeline.working():
            present = self.timeline.scan()
            move = self._moves.plan(self.timeline.head.head, (), present)
            return DiffResult([one.change() for one in move.plan.changes])

    def _compared(self, before: Root, after: Root, with_patch: bool, with_lines: bool) -> DiffResult:
        found = self.timeline.changes(before, after)
        views = self.timeline.targets.view(before), self.timeline.targets.view(after)
        return answers.compared(found, *views, self.timeline.read, with_patch, with_lines)

    def cat(self, checkpoint: str, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """See ``Workspace``."""
        return self._looked(checkpoint).cat(path, offset, length)

    def ls(self, checkpoint: str, path: str = "") -> list[ListedEntry]:
        """See ``Workspace``."""
        return self._looked(checkpoint).ls(path)

    def _looked(self, checkpoint: str) -> answers.Looked:
        with self.timeline.working():
            view = self.timeline.targets.view(self._side(checkpoint, None))
        return answers.Looked(checkpoint, view, self.timeline.read, (self._top,))

    @property
    def _top(self) -> bytes:
        return os.fsencode(self._workspace)

    # --- state -----------------------------------------------------------------------------------------------------

    def status(self) -> StatusResult:
        """See ``Workspace``."""
        with self.timeline.working():
            changed = len(self.timeline.changes(self.timeline.baseline, self.timeline.scan().root))
            undo, redo = steps.why_not(self.timeline.store.history, self.timeline.head, changed > 0)
        return StatusResult(
            workspace=self._workspace,
            mode="scan",
            channel=None,
            mounted=True,
            mountpoint=self._workspace,
            head=self.timeline.head.head,
            dirty=changed > 0,
            changed=changed,
            store_bytes=self._size.of(self.timeline.home.objects.inventory),
            health=list(self._health),
            writers=self._writers(),
            undo=undo,
            redo=redo,
        )

    def _writers(self) -> list[str]:
        top = self.timeline.top
        found = users_of_directory(self._top, top) if isinstance(top, int) else []
        return [str(user) for user in found if user.writing]

    def unmount(self, how: Literal["apply", "keep", "discard"] = "apply", lazy: bool = False) -> UnmountResult:
        """See ``Workspace``. The directory has all changes already; what is unsaved becomes a checkpoint, and
        ``discard`` restores the state in which serving began.
        """
        began = time.perf_counter()
        saved: CheckpointId | None = None
        if how != "keep":
            with self.timeline.working(anywhere=True):
                result = self.timeline.record(self.timeline.scan(), None, None, None, "automatic", began)
            if result.created:
                saved = CheckpointId(result.id)
        if how == "discard" and self.timeline.head.head != self.timeline.head.base:
            self._moves.move(lambda present: self._moves.plan(self.timeline.head.base, (), present))
        self.timeline.sealing.drain()
        with self.timeline.lock:
            self.timeline.head = msgspec.structs.replace(self.timeline.head, mounted=False, left=how)
            self.timeline.store.history.write_head(self.timeline.head, sync=True)
            self.timeline.save_index()
            self.timeline.over.set()
        unmounted = UnmountResult(how, self.timeline.head.head, saved, 0, [], None, time.perf_counter() - began)
        self.timeline.listener("unmounted", unmounted)
        return unmounted
