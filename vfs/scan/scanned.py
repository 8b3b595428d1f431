"""A workspace served without FUSE: the Workspace protocol over scans of the plain directory.

Owns the life of a scanned workspace and turns calls into scans, checkpoints and restores. Does not own how the
directory is scanned (``capture``), what a restore does (``plan``, ``execute``), nor where undo and redo lead
(``steps``).

Concurrency: every method may be called from any thread; one lock lets one of them work at a time, because the directory
is one. What makes checkpoints durable runs beside them.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from typing import Literal, NamedTuple, Protocol, cast

import msgspec

from store.errors import DamagedError, StoreError
from store.format import Directory, Layer, Regular, Special, Symlink, decode
from store.history import Checkpoint, CheckpointKind, Head
from store.home import Home, WorkspaceIdentity
from store.journal import read_journal
from store.lock import Lock
from store.nodes import Page, same_entry
from store.reach import Reach
from store.refs import CheckpointId, Ino, LayerRef, NodeRef
from vfs import diff, patch, steps
from vfs.apply import open_attic
from vfs.contents import Contents, content_size
from vfs.diff import Changed
from vfs.graft import Grafter
from vfs.host import Host
from vfs.inode import FIRST_NEW_INO
from vfs.mounted import catch_up, listed
from vfs.roots import Roots
from vfs.scan import bridge
from vfs.scan.capture import Present, Scanner
from vfs.scan.coverage import Coverage, load_scope
from vfs.scan.execute import Executor
from vfs.scan.names import ignores_case
from vfs.scan.plan import Plan, check_names, make_plan
from vfs.scan.platform import Platform, choose
from vfs.scan.reading import Reader
from vfs.scan.restoring import RECORD_VERSION, RestoreFile, Restoring, clear_away
from vfs.scan.sealing import ScanSealing
from vfs.scan.state import StateFile
from vfs.scan.statindex import StatIndex
from vfs.scan.targets import Targets
from vfs.scan.walker import Policy
from vfs.seal import LayerSealer
from vfs.tree import Root, Tree
from vfs.users import users
from vfs.verifying import verify
from vfs.view import Present as Entry
from vfs.view import View
from vfs.workspace import (
    CheckpointResult,
    ConflictError,
    DiffResult,
    Kept,
    ListedEntry,
    LogResult,
    LogRow,
    RefusedError,
    RestoreResult,
    StatusResult,
    UnmountResult,
    WorkspaceError,
)

TRIES = 5
SIZE_EVERY_SECONDS = 30.0
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


class Move(NamedTuple):
    """A move that has been worked out and not made. With ``picked`` only those paths come from ``target``."""

    target: CheckpointId
    redo: tuple[CheckpointId, ...]
    onto: Root
    present: Present
    plan: Plan
    picked: tuple[bytes, ...] | None = None
    returns: bool = False


def open_workspace(
    options: Options, listener: Callable[[str, object], None], why: str | None = None
) -> ScannedWorkspace:
    """A workspace that ``start`` serves; ``why`` it is not mounted, for people."""
    policy = Policy("all" if options.config.scan.all else "git", options.config.scan.max_file_bytes)
    return ScannedWorkspace(options.workspace, options.home, policy, listener, why)


class ScannedWorkspace:
    """One scanned workspace; satisfies ``vfs.workspace.Workspace``."""

    def __init__(
        self,
        workspace: str,
        home: str,
        policy: Policy,
        listener: Callable[[str, object], None],
        why: str | None = None,
        platform: Platform | None = None,
        executor: type[Executor] = Executor,
    ) -> None:
        self._workspace = workspace
        self._home_path = home
        self._policy = policy
        self._listener = listener
        self._platform = platform or choose()
        self._executor = executor
        self._notes = [] if why is None else [why]
        self._health: list[str] = []
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._opened = False
        self._pending: dict[CheckpointId, LayerRef] = {}
        self._size = (0.0, 0)
        self._told = 0.0
        self._kept_present: LayerRef | None = None
        """What the records on disk speak of."""

    # --- life ------------------------------------------------------------------------------------------------------

    def start(self, lock: Lock | None = None) -> None:
        """Recover what a crash left and take the first scan; ``lock`` is the store's if the caller holds it.

        Raises StoreError.
        """
        raw = os.fsencode(self._workspace)
        self.home = Home.open(self._home_path)
        self._top = self._platform.open_top(raw)
        identity = WorkspaceIdentity.of(self._top if isinstance(self._top, int) else raw)
        self.store = self.home.workspace(identity, raw)
        self._store_lock = lock or self.store.lock()
        self._lock_is_ours = lock is None
        self._opened = True
        try:
            self._open()
        except Exception:
            self.close()
            raise

    def _open(self) -> None:
        store, home = self.store, self.home
        scan_dir = os.path.join(store.path, b"scan")
        self._index_path = os.path.join(store.path, b"scanned")
        self._state_file = StateFile(scan_dir, home.disk)
        self._restore_file = RestoreFile(scan_dir, home.disk)
        self._host = Host({0: self._top} if isinstance(self._top, int) else {})
        open_attic(self._host, store.attic_dir)
        roots = Roots(home.objects, home.pages, self._host, store.history, store.generations)
        reader = Reader(self._platform, home.objects)
        self._targets = Targets(home.objects, home.pages, self._host, store.history, roots, reader)
        self._contents = Contents(home.objects, self._host)
        self._sealing = ScanSealing(home.objects, store.history, self._sealed, self._problem)
        history = store.history
        head = history.read_head()
        self._notes += history.problems + store.generations.problems
        state = self._state_file.read()
        if state is not None:
            self._settle_pending(state.pending, state.boot)
            head = history.read_head()
        index = StatIndex.load(self._index_path, repr(self._policy).encode())
        if index is not None and (state is None or index.present not in (state.present, state.before)):
            index = None  # what it knows may not be in the store any more
        seen = None if state is None or index is not None else self._targets.view(self._root(state.present))
        self._scanner = Scanner(
            self._platform, self._top, self._workspace, self._policy, home.objects, home.pages, index, seen
        )
        self._scanner.progress = self._progress
        if head is not None:
            self._scanner.index.next_ino = max(self._scanner.index.next_ino, head.next_ino)
        self._sealing.start()
        unfinished = self._restore_file.read()
        if unfinished is not None:
            clear_away(self._platform, self._top, unfinished)
        is_ours = state is not None and state.generation == store.generations.current
        self._from_mount = head is not None and not is_ours
        if self._from_mount:
            assert head is not None
            self._refuse_kept(head)
            if isinstance(self._top, int):
                catch_up(home, store, self._top, self._notes)
                open_attic(self._host, store.attic_dir)
                head = history.read_head()
        with home.objects.sealing():
            present = self._scanner.run(store.generations.current + self._from_mount)
            if head is None:
                self._begin(present)
            else:
                known = state is not None and is_ours and state.head == head.head
                self._go_on(head, present, state.baseline if state is not None and known else None)
        self._notes += self._scanner.repositories.notes
        self._tell_left_out(present)
        if unfinished is not None:
            self._finish(unfinished)

    def _begin(self, present: Present) -> None:
        """The first checkpoint."""
        store = self.store
        made = store.history.begin(
            None,
            kind="base",
            label="base",
            generation=store.generations.current,
            next_ino=self._scanner.index.next_ino,
            scope=present.scope,
        )
        self.head = Head(
            head=made.id,
            base=made.id,
            epoch=0,
            generation=store.generations.current,
            next_ino=self._scanner.index.next_ino,
            mounted=True,
        )
        self.baseline = present.root
        self._baseline_layer = present.layer
        self._pending[made.id] = present.layer
        self._targets.freeze(made.id, present.root)
        self._write_state(present)
        store.history.write_head(self.head)
        self._sealing.submit(made.id, present.layer)

    def _go_on(self, head: Head, present: Present, baseline: LayerRef | None) -> None:
        """Take up the workspace where it stands."""
        store = self.store
        if self._from_mount:
            citing = bridge.cited(self._scanner.index.root, present.left_out)
            bridge.begin_scanning(self.home, store, self._host, present.root, citing)
        self.head = msgspec.structs.replace(
            head,
            base=head.head,
            generation=store.generations.current,
            next_ino=self._scanner.index.next_ino,
            mounted=True,
        )
        if baseline is None:
            self.baseline = self._target(self.head.head, present)
            self._baseline_layer = self._layer_of(self.baseline)
        else:
            layer = decode(self.home.objects.get_node(NodeRef(baseline)))
            if not isinstance(layer, Layer):
                raise DamagedError(f"object {baseline.hex()} is not a layer", hint="`plyfs fsck` tells more")
            links = None if layer.links is None else self.home.pages.load(layer.links)
            self.baseline = Root(layer.root, links, layer.generation)
            self._baseline_layer = baseline
        self._write_state(present)
        store.history.write_head(self.head)

    def _layer_of(self, root: Root) -> LayerRef:
        links = None if root.links is None else self.home.pages.save(root.links)
        return bridge.put_layer(self.home, root.directory, links, root.generation)

    def _refuse_kept(self, head: Head) -> None:
        """A mount that was left with --keep holds work that the directory has not."""
        journals = [self.store.journal_path(epoch) for epoch in self.store.epochs()]
        if head.head == head.base and not any(read_journal(path).records for path in journals):
            for path in journals:
                self.home.disk.unlink(path)
            return
        if head.head != head.base or journals:
            raise RefusedError(
                f"changes to {self._workspace} wait in the store, where its last mount left them; scanning would not "
                "see them",
                hint="`plyfs mount --mode fuse`, then `plyfs unmount`, writes them into the directory",
            )

    def _settle_pending(self, pending: Iterable[tuple[CheckpointId, LayerRef]], boot: str) -> None:
        """Checkpoints that were answered for when the process before ended; and those that were not."""
        from store.disk import boot_id

        history = self.store.history
        known = dict(pending)
        lost = []
        for checkpoint in history.all():
            if checkpoint.state != "sealing" or history.scope(checkpoint.id) is None:
                continue
            layer = known.get(checkpoint.id)
            if layer is None or not self._is_whole(layer, boot != boot_id()):
                lost.append(checkpoint.id)
                if layer is not None:
                    self._notes.append(f"checkpoint {checkpoint.id} had not reached the disk and is lost")
            else:
                self.home.objects.flush()
                history.seal(checkpoint.id, layer)
        history.remove(lost)

    def _is_whole(self, layer: LayerRef, verify_all: bool) -> bool:
        reach = Reach(self.home.objects)
        try:
            reach.add(layer)
            for ref in reach.refs if verify_all else ():
                self.home.objects.verify(ref)
        except StoreError:
            return False
        return verify_all or all(self.home.objects.has(ref) for ref in reach.refs)

    def _tell_left_out(self, present: Present) -> None:
        rest = {path: why for path, why in present.left_out.items() if why != "ignored"}
        for path, why in sorted(rest.items())[:5]:
            self._notes.append(f"{os.fsdecode(path)} is not captured: {why}")
        if len(rest) > 5:
            self._notes.append(f"{len(rest) - 5} more paths are not captured")

    def notes(self) -> list[str]:
        """What a person should know of the start."""
        return list(self._notes)

    def store_directory(self) -> str:
        """Where the workspace's history lies."""
        return os.fsdecode(self.store.path)

    def knows(self, checkpoint: str) -> bool:
        """True if there is a checkpoint of that id."""
        return CheckpointId(checkpoint) in self.store.history

    def wait(self) -> None:
        """Return when it is no longer served."""
        self._over.wait()

    def close(self) -> None:
        """Let go of everything."""
        self._over.set()
        if not self._opened:
            return
        self._opened = False
        if hasattr(self, "_sealing"):
            self._sealing.stop()
            if hasattr(self, "head"):
                self._save_index()
        self.store.close()
        if self._lock_is_ours:
            self._store_lock.release()
        self._platform.close(self._top)

    def _sealed(self, id: CheckpointId) -> None:
        with self._lock:
            self._pending.pop(id, None)
            self._targets.sealed(id)
        self._listener("sealed", {"id": id})

    def _problem(self, text: str) -> None:
        if text not in self._health:
            self._health.append(text)
            self._listener("health", {"problems": list(self._health)})

    def _progress(self, done: int, of: int) -> None:
        now = time.monotonic()
        if of > 1000 and now - self._told > PROGRESS_SECONDS:
            self._told = now
            self._listener("progress", {"what": "scan", "done": done, "total": of})

    def _save_index(self) -> None:
        with self._lock:
            try:
                self._scanner.save_index(self._index_path, self.home.disk)
            except (StoreError, OSError) as error:
                self._problem(f"the records of the last scan could not be kept: {error}")

    def _write_state(self, present: Present) -> None:
        pending = tuple(self._pending.items())
        self._state_file.write(
            self.head.head,
            present.layer,
            present.scope,
            self._baseline_layer,
            pending,
            self._kept_present,
            self.store.generations.current,
        )
        self._scanner.save_index(self._index_path, self.home.disk)
        self._kept_present = present.layer

    def hand_over(self) -> None:
        """Leave the directory to a mount: the head becomes exactly what it holds."""
        history = self.store.history
        with self._working():
            present = self._scan()
            root = self._target(self.head.head, present)
            same = same_entry(root.directory, present.root.directory) and _same_page(root.links, present.root.links)
            if not same or history.scope(self.head.head) is None:
                changed = len(self._changes(self.baseline, present.root))
                made = self._freeze(present, changed, "outside")
                self._set_head(made.id, (), present)
            self.home.objects.flush()
            layer = present.layer
            bridge.begin_mounting(self.home, self.store, self._host, layer)
        self._sealing.drain()
        self.head = msgspec.structs.replace(
            self.head, base=self.head.head, generation=self.store.generations.current, mounted=False, left="apply"
        )
        history.write_head(self.head, sync=True)
        self._over.set()

    # --- scanning --------------------------------------------------------------------------------------------------

    @contextmanager
    def _working(self):  # type: ignore[no-untyped-def]  # noqa: ANN202
        with self._lock, self.home.objects.sealing():
            if self._over.is_set():
                raise WorkspaceError("the workspace is no longer served")
            yield

    def _scan(self) -> Present:
        before = self._scanner.index.present
        present = self._scanner.run(self.store.generations.current)
        if present.layer != before:
            self._write_state(present)
        return present

    def _target(self, id: CheckpointId, present: Present) -> Root:
        return self._targets.of(id, self._scanner.index, present.left_out)

    def _differs(self, a: Root, b: Root) -> bool:
        if same_entry(a.directory, b.directory) and _same_page(a.links, b.links):
            return False
        return next(iter(diff.differences(self._targets.view(a), self._targets.view(b))), None) is not None

    def _changes(self, a: Root, b: Root) -> list[Changed]:
        if same_entry(a.directory, b.directory) and _same_page(a.links, b.links):
            return []
        return diff.changes(self._targets.view(a), self._targets.view(b), skip_git=True)

    def _resolve(self, spec: str) -> Checkpoint:
        return self.store.history.resolve(spec, self.head)

    def _coverage(self, id: CheckpointId, root: Root) -> Coverage:
        ref = self.store.history.scope(id)
        scope = None if ref is None else load_scope(self.home.objects, ref)
        return Coverage(scope, self._targets.view(root), self._read)

    # --- checkpoints -----------------------------------------------------------------------------------------------

    def checkpoint(
        self, label: str | None = None, session: str | None = None, node: str | None = None, sync: bool = False
    ) -> CheckpointResult:
        """See ``Workspace``."""
        began = time.perf_counter()
        with self._working():
            present = self._scan()
            result = self._checkpoint(present, label, session, node, "user", began)
        if sync:
            self._sealing.drain()
            with self._lock:
                self.store.history.write_head(self.head, sync=True)
        if result.created:
            self._listener("checkpoint", result)
        return result

    def _checkpoint(
        self,
        present: Present,
        label: str | None,
        session: str | None,
        node: str | None,
        kind: CheckpointKind,
        began: float,
    ) -> CheckpointResult:
        changed = len(self._changes(self.baseline, present.root))
        if not changed:
            head = self.store.history.get(self.head.head)
            if label is not None and head.label is None:
                head = self.store.history.label(head.id, label)
            return _result(head, False, began)
        made = self._freeze(present, changed, kind, label, session, node)
        self._set_head(made.id, (), present)
        return _result(made, True, began)

    def _freeze(
        self,
        present: Present,
        changed: int,
        kind: CheckpointKind,
        label: str | None = None,
        session: str | None = None,
        node: str | None = None,
        parent: CheckpointId | None = None,
    ) -> Checkpoint:
        """Record the checkpoint of ``present``; the state that names its layer is written before the head moves."""
        made = self.store.history.begin(
            parent or self.head.head,
            kind=kind,
            label=label,
            session=session,
            node=node,
            changed=changed,
            generation=self.store.generations.current,
            next_ino=self._scanner.index.next_ino,
            scope=present.scope,
        )
        self._targets.freeze(made.id, present.root)
        self._pending[made.id] = present.layer
        self._write_state(present)
        self._sealing.submit(made.id, present.layer)
        return made

    def _set_head(self, id: CheckpointId, redo: tuple[CheckpointId, ...], present: Present) -> None:
        """``present`` is what ``id`` stands for from now on."""
        self.baseline = present.root
        self._baseline_layer = present.layer
        before = self.head.head
        self.head = msgspec.structs.replace(self.head, head=id, redo=redo, next_ino=self._scanner.index.next_ino)
        self._write_state(present)
        self.store.history.write_head(self.head)
        if id != before:
            self._listener("head", {"head": id})

    # --- moving ----------------------------------------------------------------------------------------------------

    def undo(self, count: int = 1) -> RestoreResult:
        """See ``Workspace``."""

        def work_out(present: Present) -> Move:
            unsaved = self._differs(self.baseline, present.root)
            step = steps.back(self.store.history, self.head, count, unsaved)
            return self._plan(step.target, step.redo, present)._replace(returns=True)

        return self._move(work_out)

    def redo(self, count: int = 1) -> RestoreResult:
        """See ``Workspace``."""

        def work_out(present: Present) -> Move:
            step = steps.forward(self.head, count)
            return self._plan(step.target, step.redo, present)

        return self._move(work_out)

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
        chosen = None if not paths else tuple(sorted({self._inside(path) for path in paths}))

        def work_out(present: Present) -> Move:
            target = self._resolve(checkpoint)
            if chosen is not None:
                return self._pick(target.id, chosen, present)
            return self._plan(target.id, (), present, force, mine)

        result = self._move(work_out, dry_run, fingerprint)
        if with_git:
            result.kept.append(Kept(".git", "scanning does not capture it"))
        return result

    def _inside(self, path: str) -> bytes:
        name = os.path.normpath(os.fsencode(path))
        prefix = os.fsencode(self._workspace)
        if name == prefix or name.startswith(prefix + b"/"):
            name = name[len(prefix) :].lstrip(b"/")
        if name.startswith((b"/", b"../")) or name == b"..":
            raise WorkspaceError(f"{path} is not in the workspace", hint="give paths relative to the workspace")
        return b"" if name == b"." else name

    def _plan(
        self,
        target: CheckpointId,
        redo: tuple[CheckpointId, ...],
        present: Present,
        force: bool = True,
        mine: Mapping[str, int | None] | None = None,
    ) -> Move:
        onto = self._target(target, present)
        kept: dict[bytes, str] = {}
        if not force:
            kept = steps.foreign(
                self.store.history,
                self.head.head,
                target,
                mine,
                lambda a, b: self._changes(self._target(a, present), self._target(b, present)),
            )
        aim = self._grafted(onto, present.root, kept) if kept else onto
        plan = self._planned(present, aim, self._coverage(target, onto))
        plan.kept.extend(Kept(os.fsdecode(path), reason) for path, reason in sorted(kept.items()))
        return Move(target, redo, aim, present, plan)

    def _pick(self, target: CheckpointId, chosen: tuple[bytes, ...], present: Present) -> Move:
        source = self._target(target, present)
        onto = self._grafted(present.root, source, chosen)
        plan = self._planned(present, onto, self._coverage(target, source))
        return Move(target, (), onto, present, plan, chosen)

    def _grafted(self, onto: Root, source: Root, paths: Iterable[bytes]) -> Root:
        """``onto`` with ``paths`` as ``source`` has them."""
        # Of the live tree a grafter needs the pages alone, as long as no directory cites a base.
        numbers = itertools.count(FIRST_NEW_INO)
        grafter = Grafter(cast(Tree, self.home), onto, source, self._targets.view, lambda: Ino(next(numbers)))
        root = grafter.keep(list(paths))
        return self._root(LayerSealer(self.home.objects, self.home.pages).seal(root, None))

    def _planned(self, present: Present, onto: Root, coverage: Coverage) -> Plan:
        view = self._targets.view(onto)
        changes = self._changes(present.root, onto)
        return make_plan(changes, self._scanner.index, present.left_out, view, coverage)

    def _move(
        self, work_out: Callable[[Present], Move], dry_run: bool = False, fingerprint: str | None = None
    ) -> RestoreResult:
        began = time.perf_counter()
        for attempt in range(TRIES):
            with self._working():
                move = work_out(self._scan())
                seen = f"{self.head.head}-{move.target}-{move.present.layer.hex()[:16]}"
                if fingerprint is not None and fingerprint != seen:
                    raise ConflictError(
                        "the workspace changed since the preview; nothing was done", hint="look at the new preview"
                    )
                view = self._targets.view(move.onto)
                check_names(move.plan, view, ignores_case(self._platform, self._top), self._platform.name_problem)
                changes = [one.change() for one in move.plan.changes]
                if dry_run:
                    seconds = time.perf_counter() - began
                    return RestoreResult(move.target, self.head.head, None, changes, move.plan.kept, seconds, seen)
                verify(move.plan.changes, view, self.home.objects, self._contents)
                try:
                    result = self._make(move)
                except ConflictError:
                    if attempt == TRIES - 1:
                        raise
                    continue
            kept = {one.path for one in result.kept}
            return msgspec.structs.replace(
                result,
                changes=[change for change in changes if change.path not in kept or change.kind == "mode"],
                fingerprint=seen,
                seconds=time.perf_counter() - began,
            )
        raise AssertionError("a move is made or refused")

    def _make(self, move: Move) -> RestoreResult:
        """Make a move. Raises ConflictError if something changed since it was worked out; then nothing was done."""
        origin = self.head.head
        saved = self._save(move)
        visible = saved is not None and self.store.history.get(saved).kind == "automatic"
        redo = move.redo
        if move.returns and visible and saved is not None:
            redo = (*redo, saved)
        record = Restoring(
            RECORD_VERSION,
            "staging",
            f".plyfs-{os.urandom(6).hex()}-",
            move.target,
            move.picked,
            redo,
            saved,
            saved or origin,
            move.present.layer,
            self._layer_of(move.onto),
            (),
            (),
        )
        kept = move.plan.kept + self._run(move.plan, record)
        self._arrive(record, [change.path for change in move.plan.changes])
        return RestoreResult(self.head.head, origin, saved if visible else None, [], kept, 0.0)

    def _save(self, move: Move) -> CheckpointId | None:
        """The checkpoint of what would be lost, if anything would."""
        present = move.present
        if not self._differs(self._target(self.head.head, present), present.root):
            return None
        changed = len(self._changes(self.baseline, present.root))
        return self._freeze(present, changed, "automatic" if changed else "hidden").id

    def _run(self, plan: Plan, record: Restoring) -> list[Kept]:
        """All effects on the workspace; returns what was kept. The record stays until the head has moved."""
        executor = self._executor(self._platform, self._top, self._scanner.index, self._contents, plan, record.prefix)
        record = msgspec.structs.replace(record, places=tuple(executor.places()))
        try:
            self._restore_file.write(record, sync=False)
            try:
                executor.stage()
                executor.revalidate()
                record = msgspec.structs.replace(record, state="moving", moves=tuple(executor.slots))
                self._restore_file.write(record, sync=True)
            except Exception:
                executor.unstage()
                executor.close_again()
                self._restore_file.end()
                raise
            try:
                executor.move()
            except OSError as error:
                executor.forget()
                raise self._taken_back(record, error) from error
        finally:
            executor.forget()
        return executor.kept

    def _arrive(self, record: Restoring, paths: list[bytes]) -> None:
        """The workspace is where the restore led; the head follows."""
        present = self._scanner.build(self.store.generations.current)
        rules_moved = any(os.path.basename(path) == b".gitignore" for path in paths)
        target = record.target
        if record.picked is not None:
            label = f"paths from {record.target}"
            target = self._freeze(present, len(paths), "user", label, parent=record.parent).id
        self._set_head(target, record.redo, present)
        self._restore_file.end()
        if rules_moved:
            self._leave_out_of_baseline(present.root)

    def _leave_out_of_baseline(self, root: Root) -> None:
        """A restore that brought other ignore rules: what they leave out is no part of what the head stands for."""
        now = self._scan()
        view = self._targets.view(root)
        paths = [path for path in now.left_out if view.lookup(path) is not None]
        if paths:
            self.baseline = self._grafted(root, now.root, paths)
            self._baseline_layer = self._layer_of(self.baseline)
            self._write_state(now)

    def _taken_back(self, record: Restoring, error: OSError) -> WorkspaceError:
        """Go back to where a restore began that the system would not let us finish; the error that tells."""
        what = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        why = f"{what}{os.strerror(error.errno or 0)}"
        try:
            self._resume(record, record.present)
        except (StoreError, OSError) as second:
            return WorkspaceError(
                f"the restore stopped at {why}, and going back stopped at {second}",
                hint="remove the cause, then `plyfs unmount` and `plyfs mount` again: that finishes the restore",
            )
        self._restore_file.end()
        return WorkspaceError(f"the restore stopped at {why}; the workspace is as it was before", hint="try again")

    def _root(self, ref: LayerRef) -> Root:
        layer = decode(self.home.objects.get_node(NodeRef(ref)))
        assert isinstance(layer, Layer)
        links = None if layer.links is None else self.home.pages.load(layer.links)
        return Root(layer.root, links, layer.generation)

    def _resume(self, record: Restoring, aim: LayerRef) -> list[Kept]:
        """Bring the workspace from anywhere between the two trees of ``record`` to ``aim``, one of them."""
        clear_away(self._platform, self._top, record)
        present = self._scan()
        onto = self._root(aim)
        coverage = self._coverage(record.target, self._target(record.target, present))
        kept = self._strangers(record, present)
        if kept:
            onto = self._grafted(onto, present.root, [os.fsencode(one.path) for one in kept])
        plan = self._planned(present, onto, coverage)
        executor = self._executor(self._platform, self._top, self._scanner.index, self._contents, plan, record.prefix)
        again = msgspec.structs.replace(record, places=tuple(sorted({*record.places, *executor.places()})))
        self._restore_file.write(again, sync=False)
        try:
            executor.stage()
            self._restore_file.write(msgspec.structs.replace(again, moves=tuple(executor.slots)), sync=True)
            executor.move()
        finally:
            executor.forget()
        return kept + executor.kept

    def _strangers(self, record: Restoring, present: Present) -> list[Kept]:
        """Paths that are as neither tree of ``record`` has them: somebody has worked on after the crash."""
        after = self._root(record.onto)
        known = set()
        for change in self._changes(self._root(record.present), after):
            known |= {_substance(entry) for entry in (change.before, change.after) if entry is not None}
        view = self._targets.view(present.root)
        found = []
        for change in self._changes(present.root, after):
            now = view.lookup(change.path)
            if now is not None and change.kind != "mode" and _substance(now) not in known:
                found.append(Kept(os.fsdecode(change.path), "it changed after the restore was interrupted"))
        return found

    def _finish(self, record: Restoring) -> None:
        """Finish a restore that was interrupted, or forget one that had not begun to move anything."""
        if record.state == "staging":
            self._restore_file.end()
            return
        with self._working():
            saved = record.saved
            present = self._scan()
            if self._strangers(record, present):
                changed = len(self._changes(self.baseline, present.root))
                saved = self._freeze(present, changed, "automatic").id
            kept = self._resume(record, record.onto)
            self._arrive(record, [b".gitignore"])
        back = f"`plyfs restore {saved or record.parent}` goes back"
        self._notes.append(f"a restore to {record.target} was interrupted and is finished now; {back}")
        self._notes += [f"{one.path} was kept: {one.reason}" for one in kept]

    # --- looking ---------------------------------------------------------------------------------------------------

    def resolve(self, spec: str) -> str:
        """See ``Workspace``."""
        return self._resolve(spec).id

    def log(self, session: str | None = None) -> LogResult:
        """See ``Workspace``."""
        with self._working():
            dirty = self._differs(self.baseline, self._scan().root)
            rows = [
                LogRow(
                    one.id,
                    one.parent,
                    one.time_ns / 1e9,
                    one.label,
                    one.session,
                    one.node,
                    one.changed,
                    one.state,
                    one.kind,
                )
                for one in self.store.history.all()
                if one.kind != "hidden" and (session is None or one.session == session or one.id == self.head.head)
            ]
            return LogResult(self.head.head, rows, dirty, list(self.head.redo))

    def diff(self, a: str | None = None, b: str | None = None, patch: bool = False, stat: bool = False) -> DiffResult:
        """See ``Workspace``."""
        with self._working():
            present = self._scan()
            before = self._side(a if a is not None else "@", present)
            after = present.root if b is None else self._side(b, present)
            return self._compared(before, after, patch, stat)

    def _side(self, spec: str, present: Present) -> Root:
        return self._target(self._resolve(spec).id, present)

    def drift(self) -> DiffResult:
        """See ``Workspace``."""
        with self._working():
            present = self._scan()
            move = self._plan(self.head.head, (), present)
            return DiffResult([one.change() for one in move.plan.changes])

    def _compared(self, before: Root, after: Root, with_patch: bool, with_lines: bool) -> DiffResult:
        found = self._changes(before, after)
        changes = [one.change() for one in found]
        views = self._targets.view(before), self._targets.view(after)
        text = patch.patch(found, *views, self._read, self._read) if with_patch else None
        lines = patch.line_counts(found, *views, self._read, self._read) if with_lines else None
        return DiffResult(changes, text, lines)

    def _read(self, entry: Regular, offset: int, length: int) -> bytes:
        return self._contents.read(entry.content, offset, length)

    def cat(self, checkpoint: str, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """See ``Workspace``."""
        entry, _ = self._entry(checkpoint, path)
        if isinstance(entry, Symlink):
            return entry.target
        if not isinstance(entry, Regular):
            raise WorkspaceError(f"{path} is not a file in {checkpoint}", hint="`plyfs ls` shows what is there")
        return self._read(entry, offset, content_size(entry.content) - offset if length is None else length)

    def ls(self, checkpoint: str, path: str = "") -> list[ListedEntry]:
        """See ``Workspace``."""
        entry, view = self._entry(checkpoint, path)
        if not isinstance(entry, Directory):
            return [listed(os.path.basename(os.fsencode(path)), entry)]
        return [listed(name, child) for name, child in sorted(view.list(entry).items())]

    def _entry(self, checkpoint: str, path: str) -> tuple[Entry, View]:
        with self._working():
            view = self._targets.view(self._side(checkpoint, self._scan()))
        name = self._inside(path) if path else b""
        entry = view.root if not name else view.lookup(name)
        if entry is None:
            raise WorkspaceError(
                f"{path} is not in checkpoint {checkpoint}", hint=f"`plyfs ls {checkpoint}` shows what is"
            )
        return entry, view

    # --- state -----------------------------------------------------------------------------------------------------

    def status(self) -> StatusResult:
        """See ``Workspace``."""
        with self._working():
            changed = len(self._changes(self.baseline, self._scan().root))
            first = self.store.history.get(self.head.head).parent is None
        return StatusResult(
            workspace=self._workspace,
            mode="scan",
            channel=None,
            mounted=True,
            mountpoint=self._workspace,
            head=self.head.head,
            dirty=changed > 0,
            changed=changed,
            store_bytes=self._store_bytes(),
            health=list(self._health),
            writers=[str(user) for user in users(os.fsencode(self._workspace)) if user.writing],
            undo="this is the first state" if first and not changed else "",
            redo="" if self.head.redo else "nothing was undone",
        )

    def _store_bytes(self) -> int:
        asked, size = self._size
        if time.monotonic() - asked > SIZE_EVERY_SECONDS or not asked:
            size = self.home.objects.bytes_used()
            self._size = (time.monotonic(), size)
        return size

    def unmount(self, how: Literal["apply", "keep", "discard"] = "apply", lazy: bool = False) -> UnmountResult:
        """See ``Workspace``. The directory has all changes already; what is unsaved becomes a checkpoint, and
        ``discard`` restores the state in which serving began.
        """
        began = time.perf_counter()
        saved: CheckpointId | None = None
        if how != "keep":
            with self._working():
                result = self._checkpoint(self._scan(), None, None, None, "automatic", began)
            if result.created:
                saved = CheckpointId(result.id)
        if how == "discard" and self.head.head != self.head.base:
            self._move(lambda present: self._plan(self.head.base, (), present))
        self._sealing.drain()
        with self._lock:
            self.head = msgspec.structs.replace(self.head, mounted=False, left=how)
            self.store.history.write_head(self.head, sync=True)
            self._save_index()
            self._over.set()
        unmounted = UnmountResult(how, self.head.head, saved, 0, [], None, time.perf_counter() - began)
        self._listener("unmounted", unmounted)
        return unmounted


def _same_page(a: Page | None, b: Page | None) -> bool:
    """True if both are certainly the same."""
    return a is b or (a is not None and b is not None and a.ref is not None and a.ref == b.ref)


def _substance(entry: Entry) -> object:
    """What an inode is, whatever its attributes."""
    match entry:
        case Regular():
            return entry.content
        case Symlink():
            return entry.target
        case Special():
            return entry.file_type, entry.rdev
        case Directory():
            return Directory


def _result(checkpoint: Checkpoint, created: bool, began: float) -> CheckpointResult:
    return CheckpointResult(
        checkpoint.id,
        checkpoint.parent,
        created,
        checkpoint.changed,
        checkpoint.label,
        checkpoint.session,
        checkpoint.node,
        time.perf_counter() - began,
    )
