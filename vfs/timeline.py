"""Checkpoints and the moves between them, over one live tree.

Owns the head, what the present is compared with, and the order of effects that makes each step safe: the checkpoint's
record, then the new epoch's journal, then the head, by rename. Does not own what a swap does to live inodes (``swap``),
nor hashing (``sealing``).

Concurrency: ``_moving`` lets one move happen at a time; the tree's lock is held only while the tree is folded or
swapped. The kernel is told after that, with neither lock that answering needs.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from store.head import Head
from store.history import Checkpoint, CheckpointKind, History
from store.nodes import same_entry
from store.refs import CheckpointId, LayerRef
from vfs import steps
from vfs.channel import Invalidations, Touched
from vfs.live.core import Core
from vfs.live.folding import fold
from vfs.live.records import JOURNAL_VERSION, Start
from vfs.live.swap import Swap, Swapped
from vfs.live.tree import Root
from vfs.roots import Roots
from vfs.trees import diff
from vfs.trees.graft import GIT, Grafter
from vfs.workspace import CheckpointResult, ConflictError

EXACT_COUNT = 256
"""Up to this many changed names a checkpoint counts its changes exactly while the caller waits."""


class SealTask(NamedTuple):
    """A frozen tree that is to become a layer."""

    checkpoint: CheckpointId
    parent: CheckpointId | None
    root: Root
    epoch: int


class Move(NamedTuple):
    """A move that has been worked out and not made: where to, by what tree, and what it changes.

    ``redo`` is the way forward afterwards; if it ``returns``, that way ends in what had to be saved first. With
    ``picked`` only those paths come from ``target``. ``kept`` paths stay as they are now, for the reason given.
    """

    target: CheckpointId
    redo: tuple[CheckpointId, ...]
    onto: Root
    present: Root
    version: int
    changes: list[diff.Changed]
    picked: tuple[bytes, ...] | None = None
    returns: bool = False
    with_git: bool = False
    kept: Mapping[bytes, str] = MappingProxyType({})


class Moved(NamedTuple):
    """A move that was made."""

    head: CheckpointId
    origin: CheckpointId
    saved: CheckpointId | None


class Timeline:
    """The checkpoints of one served tree. ``seal`` hands a task to the sealer; ``tell`` informs the kernel."""

    def __init__(
        self,
        core: Core,
        history: History,
        roots: Roots,
        head: Head,
        baseline: Root,
        seal: Callable[[SealTask], None],
        tell: Callable[[Invalidations, list[Touched]], None],
    ) -> None:
        self._core = core
        self._tree = core.tree
        self._history = history
        self._roots = roots
        self._seal = seal
        self._tell = tell
        self._moving = threading.RLock()
        self._heading = threading.Lock()
        core.epochs.anchor = self.anchor
        self.head = head
        self.baseline = baseline
        self.on_head: Callable[[CheckpointId], None] = lambda _: None
        self._untold: deque[tuple[list[SealTask], Swapped]] = deque()

    # --- comparing -------------------------------------------------------------------------------------------------

    def fold(self) -> tuple[Root, int]:
        """The present tree as a value, and its version."""
        with self._tree.lock:
            return fold(self._tree), self._tree.version

    def differs(self, a: Root, b: Root, skip_git: bool = False) -> bool:
        """True if the trees differ in more than inode numbers and times that nobody set."""
        if same_entry(a.directory, b.directory) and a.links is b.links:
            return False
        return next(iter(diff.differences(self._roots.view(a), self._roots.view(b), skip_git)), None) is not None

    def changes(self, a: Root, b: Root, skip_git: bool = False) -> list[diff.Changed]:
        """What changes from ``a`` to ``b``."""
        if same_entry(a.directory, b.directory) and a.links is b.links:
            return []
        return diff.changes(self._roots.view(a), self._roots.view(b), skip_git)

    def resolve(self, spec: str) -> Checkpoint:
        """The checkpoint that a person or program names. Raises UnknownCheckpointError."""
        return self._history.resolve(spec, self.head)

    def root_of(self, spec: str | None) -> Root:
        """The tree of a named checkpoint; of the present for None."""
        return self.fold()[0] if spec is None else self._roots.of(self.resolve(spec).id)

    # --- checkpoints -----------------------------------------------------------------------------------------------

    def checkpoint(
        self,
        label: str | None = None,
        session: str | None = None,
        node: str | None = None,
        kind: CheckpointKind = "user",
    ) -> CheckpointResult:
        """Freeze the present. Without a change since the head, the head again. Raises NoSpaceError."""
        began = time.perf_counter()
        with self._moving:
            if session is not None and node is not None:
                again = self._history.find(session, node)
                if again is not None and again.id == self.head.head and not self._unsaved():
                    return _result(again, False, began)
            with self._tree.lock:
                root = fold(self._tree)
                changed = self._count(root)
                if not changed:
                    head = self._history.get(self.head.head)
                    if label is not None and head.label is None:
                        head = self._history.label(head.id, label)
                    return _result(head, False, began)
                made = self._freeze(root, changed, kind, label, session, node)
                start = self._start(made.id, made.id)
                task = SealTask(made.id, made.parent, root, made.epoch)
                with self._withdrawing([task]):
                    self._begin(start, self._head_at(made.id, start, redo=()))
                self.baseline = root
            self._seal(task)
            self.on_head(made.id)
            return _result(made, True, began)

    def _unsaved(self, skip_git: bool = False) -> bool:
        return self.differs(self.baseline, self.fold()[0], skip_git)

    def _count(self, root: Root) -> int:
        """How many paths of the present ``root`` differ from the baseline; about, if they are very many."""
        about = self._tree.changed_since_fold
        if about <= EXACT_COUNT:
            return len(self.changes(self.baseline, root))
        return about if self.differs(self.baseline, root) else 0

    def _freeze(
        self,
        root: Root,
        changed: int,
        kind: CheckpointKind,
        label: str | None = None,
        session: str | None = None,
        node: str | None = None,
    ) -> Checkpoint:
        """Record the checkpoint of the present ``root``; the lock is held and the epoch must be begun right after."""
        made = self._history.begin(
            self.head.head,
            kind=kind,
            label=label,
            session=session,
            node=node,
            changed=changed,
            generation=root.generation,
            epoch=self._tree.epoch,
            next_ino=self._tree.next_ino,
        )
        self._roots.freeze(made.id, root)
        return made

    @contextmanager
    def _withdrawing(self, made: list[SealTask]) -> Iterator[None]:
        """Take back the checkpoints that were recorded for a step that could not be made."""
        try:
            yield
        except BaseException:
            for task in reversed(made):
                self._roots.forget(task.checkpoint)
                self._history.withdraw(task.checkpoint)
            raise

    def _start(
        self,
        head: CheckpointId,
        closed: CheckpointId | None,
        graft: CheckpointId | None = None,
        picked: tuple[CheckpointId, tuple[bytes, ...]] | None = None,
    ) -> Start:
        return Start(
            JOURNAL_VERSION,
            self._tree.epoch + 1,
            self._tree.generation,
            head,
            graft,
            closed,
            self._tree.next_ino,
            self._core.working.next_number,
            picked,
            self._core.now(),
        )

    def _head_at(self, head: CheckpointId, start: Start, redo: tuple[CheckpointId, ...]) -> Head:
        return msgspec.structs.replace(
            self.head, head=head, redo=redo, epoch=start.epoch, next_ino=start.next_ino, mounted=True
        )

    def _begin(self, start: Start, head: Head) -> None:
        """Commit to a new epoch: its journal, then the head. The lock is held.

        Raises NoSpaceError, and then the epoch before goes on.
        """
        epochs = self._core.epochs
        epoch = epochs.prepare(start)
        try:
            self._move_head(head)
        except BaseException:
            epochs.abandon(epoch)
            raise
        epochs.enter(epoch)
        self._tree.epoch = start.epoch
        self._tree.changed_since_fold = 0

    def _move_head(self, head: Head) -> None:
        with self._heading:
            self._history.write_head(head)
            self.head = head

    def anchor(self) -> None:
        """Put the head, and every checkpoint that it names, on the disk. Raises OSError or NoSpaceError."""
        with self._heading:
            self._history.write_head(self.head, sync=True)

    def note_outside(self, paths: tuple[bytes, ...], layer: Callable[[Root], LayerRef]) -> Checkpoint:
        """Tell, as a checkpoint of its own on top of the head, of changes that no checkpoint holds: the base's own.

        ``layer`` stores the head's tree in terms of the present base. The tree stays as it is.
        """
        some = ", ".join(os.fsdecode(path) for path in paths[:3])
        more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
        with self._moving:
            made = self._history.begin(
                self.head.head,
                kind="outside",
                label=f"changed outside plyfs: {some}{more}",
                generation=self._tree.generation,
                epoch=self._tree.epoch,
                next_ino=self._tree.next_ino,
                outside=paths,
                layer=layer(self._roots.of(self.head.head)),
            )
            self._move_head(msgspec.structs.replace(self.head, head=made.id))
            return made

    # --- moving ----------------------------------------------------------------------------------------------------

    @contextmanager
    def held(self) -> Iterator[None]:
        """While this lasts nothing changes: every request that would waits."""
        with self._moving, self._tree.lock:
            yield

    def undo(self, count: int) -> Move:
        """What going ``count`` states back would do. Raises NothingToDoError."""
        with self._moving:
            present, version = self.fold()
            unsaved = self.differs(self.baseline, present, skip_git=True)
            step = steps.back(self._history, self.head, count, unsaved)
            return self._plan(step.target, step.redo, present, version)._replace(returns=True)

    def redo(self, count: int) -> Move:
        """What going ``count`` states forward again would do. Raises NothingToDoError."""
        with self._moving:
            step = steps.forward(self.head, count)
            present, version = self.fold()
            return self._plan(step.target, step.redo, present, version)

    def go(
        self,
        spec: str,
        paths: Iterable[bytes] | None = None,
        with_git: bool = False,
        force: bool = False,
        mine: Mapping[str, int | None] | None = None,
    ) -> Move:
        """What going to a checkpoint, or bringing back ``paths`` of it, would do. Raises UnknownCheckpointError.

        What other sessions than ``mine`` (by default: the target's) changed since is kept, unless ``force``.
        """
        with self._moving:
            target = self.resolve(spec)
            present, version = self.fold()
            if paths is not None:
                chosen = tuple(sorted(set(paths)))
                onto = self._grafter(present, self._roots.of(target.id)).pick(list(chosen))
                changes = self.changes(present, onto)
                unknown = self._roots.uncovered(target.id, changes)
                if unknown:
                    path, why = min(unknown.items())
                    raise ConflictError(
                        f"{os.fsdecode(path)} stays as it is: {why}",
                        hint="name the paths beside it that are to come back",
                    )
                return Move(target.id, (), onto, present, version, changes, chosen)
            return self._plan(target.id, (), present, version, with_git, force, mine)

    def _plan(
        self,
        target: CheckpointId,
        redo: tuple[CheckpointId, ...],
        present: Root,
        version: int,
        with_git: bool = False,
        force: bool = True,
        mine: Mapping[str, int | None] | None = None,
    ) -> Move:
        onto = self._roots.of(target)
        if not with_git:
            onto = self._grafter(onto, present).keep_git()
        changes = self.changes(present, onto)
        kept = self._roots.uncovered(target, changes)
        if not force:
            kept |= steps.foreign(self._history, self.head.head, target, mine, self._between)
        if kept:
            onto = self._grafter(onto, present).keep(list(kept))
            changes = self.changes(present, onto)
        return Move(target, redo, onto, present, version, changes, with_git=with_git, kept=kept)

    def _grafter(self, onto: Root, source: Root) -> Grafter:
        return Grafter(self._tree, onto, source, self._roots.view)

    def _between(self, one: CheckpointId, other: CheckpointId) -> list[diff.Changed]:
        """What changes from one checkpoint to another, outside of repositories."""
        return self.changes(self._roots.of(one), self._roots.of(other), skip_git=True)

    def make(self, move: Move) -> Moved:
        """Make a move; ``finish`` must follow. Raises ConflictError if the tree has changed since it was worked out."""
        with self._moving:
            if move.picked is not None and not move.changes:  # no state of its own
                return Moved(self.head.head, self.head.head, None)
            with self._tree.lock:
                if self._tree.version != move.version:
                    raise ConflictError(
                        "the workspace changed while the move was worked out", hint="try again, or look at the preview"
                    )
                origin = self.head.head
                saved, tasks = self._save(move)
                with self._withdrawing(tasks):
                    self._untold.append((tasks, self._swap(move, saved, tasks)))
            shown = saved if saved is not None and self._history.get(saved).kind != "hidden" else None
            return Moved(self.head.head, origin, shown)

    def finish(self) -> None:
        """Seal what moves saved; tell the kernel and all who follow what they changed. Without the tree's lock."""
        while True:
            try:
                tasks, swapped = self._untold.popleft()
            except IndexError:
                return
            for task in tasks:
                self._seal(task)
            self._tell(swapped.invalidations, swapped.touched)
            self.on_head(self.head.head)

    def _save(self, move: Move) -> tuple[CheckpointId | None, list[SealTask]]:
        """The checkpoint of what would be lost, if anything would. It is unseen if it only differs in ``.git`` and the
        move leaves that alone.
        """
        present = move.present
        if not self.differs(self._roots.of(self.head.head), present):
            return None, []
        automatic = self.differs(self.baseline, present, skip_git=move.picked is None) or self._changes_git(move)
        kind: CheckpointKind = "automatic" if automatic else "hidden"
        made = self._freeze(present, self._count(present), kind)
        return made.id, [SealTask(made.id, made.parent, present, made.epoch)]

    def _changes_git(self, move: Move) -> bool:
        """True if the move changes repositories that have changed since the head: it goes with what they lie in."""
        moved = {path for one in move.changes if (path := _repository(one.path)) is not None}
        if not moved:
            return False
        changed = self.changes(self.baseline, move.present)
        return any(_repository(one.path) in moved for one in changed)

    def _swap(self, move: Move, saved: CheckpointId | None, tasks: list[SealTask]) -> Swapped:
        target, redo = move.target, move.redo
        visible = saved is not None and self._history.get(saved).kind == "automatic"
        picked = None
        if move.picked is not None:
            parent = saved if saved is not None else self.head.head
            made = self._history.begin(
                parent,
                label=f"paths from {move.target}",
                changed=len(move.changes),
                generation=move.onto.generation,
                epoch=self._tree.epoch,
                next_ino=self._tree.next_ino,
            )
            self._roots.freeze(made.id, move.onto)
            tasks.append(SealTask(made.id, parent, move.onto, self._tree.epoch))
            picked = (move.target, move.picked)
            target = made.id
        elif move.returns and visible and saved is not None:
            if self.differs(self.baseline, move.present, skip_git=True):
                redo = (*redo, saved)
            else:  # only commits came after the head: forward again is where they are, not where they were
                redo = tuple(saved if one == self.head.head else one for one in redo)
        before = saved if saved is not None else self.head.head
        if move.kept:
            picked = (before, tuple(sorted(move.kept)))
        graft = None if move.picked is not None or move.with_git else before
        start = self._start(target, saved, graft, picked)
        self._begin(start, self._head_at(target, start, redo))
        swapped = Swap(self._tree, move.onto, start.time_ns).run()
        self._core.keep_identities()
        self.baseline = fold(self._tree)
        return swapped


def _repository(path: bytes) -> bytes | None:
    """The path of the outermost ``.git`` that ``path`` is or lies in."""
    parts = path.split(b"/")
    return b"/".join(parts[: parts.index(GIT) + 1]) if GIT in parts else None


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
