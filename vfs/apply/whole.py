"""Writing a tree into the base: the whole of an apply, and finishing one that a crash interrupted.

Owns the order: plan, stage, commit, carry out, finish. The caller records the end of the generation between the last
two, and stops serving before the first. What each part does stands in ``apply_plan``, ``apply_stage``,
``apply_record`` and ``apply_run``.

Until the commit nothing has changed and everything can be taken back; from then on it is only rolled forward. At rest
the base is the old or the new tree, never between: after a crash, ``resume`` comes before anything else looks at it.

Concurrency: one thread; nobody else writes to the base, or its change is found and kept as a conflict.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

import msgspec

from store.format import FORMAT_VERSION, Layer, encode
from store.refs import LayerRef
from vfs.apply.draft import Draft
from vfs.apply.effects import Effects
from vfs.apply.plan import Planner
from vfs.apply.record import PLAN_VERSION, STAGE_PREFIX, Fix, Plan, Record, Written
from vfs.apply.run import Runner, abort
from vfs.apply.stage import Grounds, make_staged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from store.refs import NodeRef
    from vfs.trees.contents import Contents
    from vfs.trees.host import Host
    from vfs.trees.view import View


class NodeStore(Protocol):
    """What an apply needs of ``store.objects``."""

    def put_node(self, data: bytes) -> NodeRef:
        """Store a node."""
        ...

    def flush(self) -> None:
        """Return when all that was put is on the device."""
        ...


class Applied(msgspec.Struct, frozen=True):
    """An apply that was carried out, but for ``finish``.

    It ended ``generation``; ``inverse`` is the layer that tells the old base in terms of the next one. ``attic`` is
    the folder with what was displaced. ``count`` paths were written, moved or removed. ``conflicts`` changed below the
    mount: what was found there is in the attic (and so in ``inverse``, if the plan knew it). ``lost`` could not be
    written, because the base file that they cite was changed below the mount. ``notes`` tells what the system refused
    to set. ``written`` is for ``outside``; ``touched``, at and below which the base is not what it was, for ``survey``.
    """

    generation: int
    inverse: LayerRef
    attic: int
    count: int
    conflicts: tuple[bytes, ...]
    lost: tuple[bytes, ...]
    notes: tuple[str, ...]
    written: tuple[Written, ...]
    touched: tuple[bytes, ...]


def plan_apply(
    view: View,
    host: Host,
    contents: Contents,
    attic_dir: bytes,
    since_ns: int = 0,
    presented: Mapping[bytes, int] | None = None,
) -> Draft:
    """What an apply of the sealed tree ``view`` would do; ``Draft.empty`` if the base is that tree already.

    ``since_ns``: what in the base has a newer change time, by the base's own clock, was changed below the mount (0:
    do not look). ``presented``: modification times, by path in the tree, that the mount showed instead of the tree's.
    """
    attic = os.stat(attic_dir).st_dev
    same_mount = _mount_id(host.tree(0)) == _path_mount_id(attic_dir)

    def is_remote(status: os.stat_result) -> bool:
        return not same_mount or status.st_dev != attic

    return Planner(view, host, contents, view.generation + 1, is_remote, since_ns, presented or {}).run()


def _mount_id(fd: int) -> bytes:
    """Which mount a descriptor was opened through: rename(2) refuses to cross mounts even of one file system."""
    with open(f"/proc/self/fdinfo/{fd}", "rb") as facts:
        for line in facts:
            if line.startswith(b"mnt_id:"):
                return line
    return b""


def _path_mount_id(path: bytes) -> bytes:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        return _mount_id(fd)
    finally:
        os.close(fd)


def apply(
    view: View,
    host: Host,
    contents: Contents,
    objects: NodeStore,
    work: bytes,
    attic_dir: bytes,
    since_ns: int = 0,
    presented: Mapping[bytes, int] | None = None,
    effects: Effects | None = None,
    name: str | None = None,
) -> Applied | None:
    """Write the sealed tree ``view`` into the base. None if there is nothing to do.

    ``work`` is the directory of the apply's record, ``attic_dir`` the workspace's attic. Raises NoSpaceError, FsError
    or DamagedError with nothing changed, or, once committed, NoSpaceError or OSError: then ``resume`` goes on.
    After success: record the generation, then call ``finish``, then ``open_attic``.
    """
    effects = effects or Effects()
    draft = plan_apply(view, host, contents, attic_dir, since_ns, presented)
    if draft.empty:
        return None
    name = name or os.urandom(6).hex()
    attic = view.generation + 1
    grounds = Grounds(host.tree(0), STAGE_PREFIX + name.encode(), attic_dir, attic)
    record = Record(work, effects)
    mtime_ns = os.fstat(host.tree(0)).st_mtime_ns
    try:
        record.begin(grounds.stage_name, attic, mtime_ns)
        try:
            grounds.make_attic(effects)
            make_staged(grounds, draft.staged, contents, effects)
            plan = _plan(draft, view, objects, name, attic)
            record.commit(plan)
        except Exception:
            if record.plan() is None:
                abort(grounds, mtime_ns, record, effects)
            raise
        applied = _carry_out(plan, grounds, record, effects)
    finally:
        grounds.close()
    host.forget_names()
    return applied


def _plan(draft: Draft, view: View, objects: NodeStore, name: str, attic: int) -> Plan:
    """The committed form of ``draft``; the inverse's layer is stored durably."""
    assert draft.inverse is not None
    root, links = draft.inverse
    layer = Layer(FORMAT_VERSION, None, view.generation + 1, root, None if links is None else links.ref)
    inverse = LayerRef(objects.put_node(encode(layer)))
    objects.flush()
    stage = STAGE_PREFIX + name.encode()
    staged = (Fix(stage + b"/" + fix.path, fix.file_type, fix.attributes) for fix in draft.staged_fixes)
    return Plan(
        PLAN_VERSION,
        name,
        view.generation,
        attic,
        tuple(draft.outs),
        tuple(draft.puts),
        (*draft.fixes, *staged),
        tuple(draft.directories),
        inverse,
        tuple(draft.conflicts),
        tuple(draft.lost),
        tuple(draft.written),
    )


def _carry_out(plan: Plan, grounds: Grounds, record: Record, effects: Effects) -> Applied:
    conflicts = Runner(plan, grounds, record, effects).run()
    count = len(plan.outs) + len(plan.puts) + len(plan.fixes)
    found = tuple(dict.fromkeys((*plan.conflicts, *conflicts)))
    notes = tuple(effects.refused)
    touched = {out.path for out in plan.outs} | {put.path for put in plan.puts} | {fix.path for fix in plan.fixes}
    return Applied(
        plan.generation, plan.inverse, plan.attic, count, found, plan.lost, notes, plan.written, tuple(sorted(touched))
    )


def resume(work: bytes, base_fd: int, attic_dir: bytes, effects: Effects | None = None) -> Applied | None:
    """Finish, or take back, what a crash interrupted. None if the base is as it was: no apply, or none committed.

    To be called before anything else reads the base. If the generation that ``Applied`` names is recorded already,
    only ``finish`` is left to do.
    """
    effects = effects or Effects()
    record = Record(work, effects)
    plan = record.plan()
    if plan is not None:
        grounds = Grounds(base_fd, plan.stage, attic_dir, plan.attic)
        try:
            return _carry_out(plan, grounds, record, effects)
        finally:
            grounds.close()
    record.sweep()
    intent = record.intent()
    if intent is not None:
        grounds = Grounds(base_fd, intent.stage, attic_dir, intent.attic)
        try:
            abort(grounds, intent.mtime_ns, record, effects)
        finally:
            grounds.close()
    return None


def is_committed(work: bytes) -> bool:
    """True while an apply is under way that can only be rolled forward: nothing else may look at the base."""
    return Record(work, Effects()).plan() is not None


def finish(
    work: bytes,
    base_fd: int,
    attic_dir: bytes,
    effects: Effects | None = None,
    remember: Callable[[], None] = lambda: None,
) -> None:
    """The end of the generation is recorded: clear away the staging directory and the record. ``remember`` is called
    between the two, for what has to be written down of the base as it is from now on; a crash calls it again.
    """
    effects = effects or Effects()
    record = Record(work, effects)
    plan = record.plan()
    if plan is None:
        return
    grounds = Grounds(base_fd, plan.stage, attic_dir, plan.attic)
    try:
        Runner(plan, grounds, record, effects).finish(remember)
    finally:
        grounds.close()


def open_attic(host: Host, attic_dir: bytes) -> None:
    """Let ``host`` read every folder of the attic that it does not know yet. The descriptors stay open."""
    for name in os.listdir(attic_dir):
        if name.isdigit() and not host.has_tree(int(name)):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            host.add_tree(int(name), os.open(os.path.join(attic_dir, name), flags))
