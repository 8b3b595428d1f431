"""Moving a scanned workspace from one checkpoint to another: worked out, checked, made, and finished after a crash.

Owns the order that keeps every step safe: what is unsaved becomes a checkpoint; the record of the restore; staging; a
last look; moving; the head; the end of the record. Does not own where undo and redo lead (``vfs.steps``), what a
restore does (``plan``) nor its effects (``execute``).

Concurrency: as ``timeline``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from store.errors import StoreError
from store.format import Directory, Regular, Special, Symlink
from store.refs import CheckpointId, LayerRef
from vfs import steps
from vfs.live.tree import Root
from vfs.scan.capture import Present
from vfs.scan.coverage import WHY, Coverage, under
from vfs.scan.execute import Executor
from vfs.scan.names import ignores_case
from vfs.scan.plan import Plan, check_names, make_plan
from vfs.scan.restoring import RECORD_VERSION, Restoring, clear_away
from vfs.scan.timeline import ScanTimeline
from vfs.trees.verifying import verify
from vfs.trees.view import Present as Entry
from vfs.workspace import ConflictError, Kept, RestoreResult, WorkspaceError

TRIES = 5
"""How often a move is worked out anew because something changed meanwhile."""


class Move(NamedTuple):
    """A move that has been worked out and not made. With ``picked`` only those paths come from ``target``."""

    target: CheckpointId
    redo: tuple[CheckpointId, ...]
    onto: Root
    present: Present
    plan: Plan
    picked: tuple[bytes, ...] | None = None
    returns: bool = False


class Moves:
    """The moves of one workspace; ``notes`` are for people."""

    def __init__(self, timeline: ScanTimeline, executor: type[Executor], notes: list[str]) -> None:
        self._timeline = timeline
        self._executor = executor
        self._notes = notes

    def plan(
        self,
        target: CheckpointId,
        redo: tuple[CheckpointId, ...],
        present: Present,
        force: bool = True,
        mine: Mapping[str, int | None] | None = None,
    ) -> Move:
        onto = self._timeline.target(target, present)
        kept: dict[bytes, str] = {}
        if not force:
            kept = steps.foreign(
                self._timeline.store.history,
                self._timeline.head.head,
                target,
                mine,
                lambda a, b: self._timeline.changes(
                    self._timeline.target(a, present), self._timeline.target(b, present)
                ),
            )
        aim = self._timeline.picked(onto, present.root, kept) if kept else onto
        plan = self.planned(present, aim, self._timeline.coverage(target, onto))
        plan.kept.extend(Kept(os.fsdecode(path), reason) for path, reason in sorted(kept.items()))
        return Move(target, redo, aim, present, plan)

    def pick(self, target: CheckpointId, chosen: tuple[bytes, ...], present: Present) -> Move:
        source = self._timeline.target(target, present)
        onto = self._timeline.picked(present.root, source, chosen)
        coverage = self._timeline.coverage(target, source)
        plan = self.planned(present, onto, coverage)
        told = {os.fsencode(one.path): one.reason for one in plan.kept}
        here = self._timeline.targets.view(present.root)
        for path in chosen:
            # A whole restore passes over what was never captured in silence; who names it hears why nothing happens.
            reason = coverage.reason(path, False)
            if reason is None and here.lookup(path) is None:
                reason = coverage.reason(path, True)
            if path and reason is not None and under(path, told) is None:
                plan.kept.append(Kept(os.fsdecode(path), WHY.get(reason, reason)))
        return Move(target, (), onto, present, plan, chosen)

    def planned(self, present: Present, onto: Root, coverage: Coverage) -> Plan:
        view = self._timeline.targets.view(onto)
        changes = self._timeline.changes(present.root, onto)
        return make_plan(changes, self._timeline.scanner.index, present.left_out, view, coverage)

    def move(
        self, work_out: Callable[[Present], Move], dry_run: bool = False, fingerprint: str | None = None
    ) -> RestoreResult:
        began = time.perf_counter()
        for attempt in range(TRIES):
            with self._timeline.working():
                move = work_out(self._timeline.scan())
                seen = f"{self._timeline.head.head}-{move.target}-{move.present.layer.hex()[:16]}"
                if fingerprint is not None and fingerprint != seen:
                    raise ConflictError(
                        "the workspace changed since the preview; nothing was done", hint="look at the new preview"
                    )
                view = self._timeline.targets.view(move.onto)
                platform = self._timeline.platform
                fold = ignores_case(platform, self._timeline.top)
                check_names(move.plan, view, fold, platform.name_problem)
                changes = [one.change() for one in move.plan.changes]
                if dry_run:
                    seconds = time.perf_counter() - began
                    return RestoreResult(
                        move.target, self._timeline.head.head, None, changes, move.plan.kept, seconds, seen
                    )
                if move.picked is not None and move.plan.empty:  # no state of its own
                    head = self._timeline.head.head
                    seconds = time.perf_counter() - began
                    return RestoreResult(head, head, None, changes, move.plan.kept, seconds, seen)
                verify(move.plan.changes, view, self._timeline.home.objects, self._timeline.contents)
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
        origin = self._timeline.head.head
        saved = self._save(move)
        visible = saved is not None and self._timeline.store.history.get(saved).kind == "automatic"
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
            origin,
            self._timeline.head.redo,
            self._timeline.baseline_layer,
            move.present.layer,
            self._timeline.layer_of(move.onto),
            (),
            (),
        )
        kept = move.plan.kept + self._run(move.plan, record)
        self._arrive(record, [change.path for change in move.plan.changes])
        return RestoreResult(self._timeline.head.head, origin, saved if visible else None, [], kept, 0.0)

    def _save(self, move: Move) -> CheckpointId | None:
        """The checkpoint of what would be lost, if anything would."""
        present = move.present
        if not self._timeline.differs(self._timeline.target(self._timeline.head.head, present), present.root):
            return None
        changed = len(self._timeline.changes(self._timeline.baseline, present.root))
        return self._timeline.freeze(present, changed, "automatic" if changed else "hidden").id

    def _run(self, plan: Plan, record: Restoring) -> list[Kept]:
        """All effects on the workspace; returns what was kept. The record stays until the head has moved."""
        executor = self._executor(
            self._timeline.platform,
            self._timeline.top,
            self._timeline.scanner.index,
            self._timeline.contents,
            plan,
            record.prefix,
        )
        record = msgspec.structs.replace(record, places=tuple(executor.places()))
        try:
            self._timeline.restore_file.write(record, sync=False)
            try:
                executor.stage()
                executor.revalidate()
                record = msgspec.structs.replace(record, state="moving", moves=tuple(executor.slots))
                self._timeline.restore_file.write(record, sync=True)
            except Exception:
                executor.unstage()
                executor.close_again()
                self._timeline.restore_file.end()
                raise
            try:
                executor.move()
            except OSError as error:
                executor.forget()
                raise self._taken_back(record, error) from error
        finally:
            executor.forget()
        return executor.kept

    def _arrive(self, record: Restoring, paths: list[bytes], again: bool = False) -> None:
        """The workspace is where the restore led; the head follows. ``again``: it may have done so before a crash."""
        present = self._timeline.scanner.build(self._timeline.store.generations.current)
        rules_moved = any(os.path.basename(path) == b".gitignore" for path in paths)
        target = record.target
        if record.picked is not None:
            target = self._of_paths(record, present, len(paths), again)
        self._timeline.set_head(target, record.redo, present)
        self._timeline.restore_file.end()
        if rules_moved:
            self._leave_out_of_baseline(present.root)

    def _of_paths(self, record: Restoring, present: Present, changed: int, again: bool) -> CheckpointId:
        """The checkpoint that bringing back paths makes."""
        parent, label = record.saved or record.origin, f"paths from {record.target}"
        for one in reversed(self._timeline.store.history.all() if again else ()):
            if one.id == parent:
                break
            if (one.parent, one.label, one.layer) == (parent, label, present.layer):
                return one.id
        return self._timeline.freeze(present, changed, "user", label, parent=parent).id

    def _leave_out_of_baseline(self, root: Root) -> None:
        """A restore that brought other ignore rules: what they leave out is no part of what the head stands for."""
        now = self._timeline.scan()
        view = self._timeline.targets.view(root)
        paths = [path for path in now.left_out if view.lookup(path) is not None]
        if paths:
            self._timeline.baseline = self._timeline.picked(root, now.root, paths)
            self._timeline.baseline_layer = self._timeline.layer_of(self._timeline.baseline)
            self._timeline.write_state(now)

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
        self._timeline.restore_file.end()
        return WorkspaceError(
            f"the restore stopped at {why}; the workspace is as it was before",
            hint="remove the cause and try again; `plyfs restore ID PATH...` brings back the rest",
        )

    def _resume(self, record: Restoring, aim: LayerRef) -> list[Kept]:
        """Bring the workspace from anywhere between the two trees of ``record`` to ``aim``, one of them."""
        clear_away(self._timeline.platform, self._timeline.top, record)
        present = self._timeline.scan()
        onto = self._timeline.root(aim)
        coverage = self._timeline.coverage(record.target, self._timeline.target(record.target, present))
        kept = self._strangers(record, present)
        if kept:
            onto = self._timeline.picked(onto, present.root, [os.fsencode(one.path) for one in kept])
        plan = self.planned(present, onto, coverage)
        executor = self._executor(
            self._timeline.platform,
            self._timeline.top,
            self._timeline.scanner.index,
            self._timeline.contents,
            plan,
            f"{record.prefix}{os.urandom(3).hex()}-",  # begins as the record says, and collides with nothing
        )
        again = msgspec.structs.replace(record, places=tuple(sorted({*record.places, *executor.places()})))
        self._timeline.restore_file.write(again, sync=False)
        try:
            executor.stage()
            self._timeline.restore_file.write(msgspec.structs.replace(again, moves=tuple(executor.slots)), sync=True)
            executor.move()
        finally:
            executor.forget()
        return kept + executor.kept

    def _strangers(self, record: Restoring, present: Present) -> list[Kept]:
        """Paths that are as neither tree of ``record`` has them: somebody has worked on after the crash."""
        after = self._timeline.root(record.onto)
        known = set()
        for change in self._timeline.changes(self._timeline.root(record.present), after):
            known |= {_substance(entry) for entry in (change.before, change.after) if entry is not None}
        before = self._timeline.root(record.present)
        view, was, will = (self._timeline.targets.view(root) for root in (present.root, before, after))
        found = []
        for change in self._timeline.changes(present.root, after):
            now = view.lookup(change.path)
            if now is None or change.kind == "mode":
                continue
            nowhere = was.lookup(change.path) is None and will.lookup(change.path) is None
            if nowhere or _substance(now) not in known:
                found.append(Kept(os.fsdecode(change.path), "it changed after the restore was interrupted"))
        return found

    def settle(self, record: Restoring) -> None:
        """Finish a restore that was interrupted, or take it back, as is chosen; forget one that had moved nothing."""
        if record.state == "staging":
            self._timeline.restore_file.end()
            return
        with self._timeline.working():
            present = self._timeline.scan()
            worked_on = None
            if self._strangers(record, present):
                changed = len(self._timeline.changes(self._timeline.baseline, present.root))
                worked_on = self._timeline.freeze(present, changed, "automatic").id
            if record.state == "moving":
                kept = self._resume(record, record.onto)
                self._arrive(record, [b".gitignore"], again=True)
                back = f"`plyfs restore {worked_on or record.saved or record.origin}` goes back"
                self._notes.append(f"a restore to {record.target} was interrupted and is finished now; {back}")
            else:
                kept = self._resume(record, record.present)
                self._return(record)
                self._notes.append(f"a restore to {record.target} was interrupted and is taken back")
                if worked_on is not None:
                    self._notes.append(f"{worked_on} holds the workspace as it was found")
        self._notes += [f"{one.path} was kept: {one.reason}" for one in kept]

    def _return(self, record: Restoring) -> None:
        """The workspace is where the restore began, and so is the head."""
        timeline = self._timeline
        present = timeline.scanner.build(timeline.store.generations.current)
        timeline.set_head(record.origin, record.way, present, record.baseline)
        timeline.restore_file.end()


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
