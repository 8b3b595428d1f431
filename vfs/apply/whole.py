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
import stat
import tempfile
import time
from typing import TYPE_CHECKING, Protocol

import msgspec

from store.format import FORMAT_VERSION, Attributes, Layer, Origin, encode
from store.refs import LayerRef
from vfs.apply.draft import Draft, Wrote, with_attributes
from vfs.apply.effects import Effects
from vfs.apply.plan import Planner
from vfs.apply.record import PLAN_VERSION, STAGE_PREFIX, Explained, Fix, Plan, Record, Written
from vfs.apply.run import Runner, abort
from vfs.apply.stage import Grounds, make_staged
from vfs.trees.racy import RACY_NS

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
    to set. ``written`` and ``stamps`` (what each inode was after the last thing that was done to it, by the host's
    number; None for an apply that was resumed) are for ``known``, ``explained`` is for ``survey``. ``found`` is where
    what somebody else made of the paths in ``conflicts`` is now, in terms of the next generation, if it is not in the
    inverse.
    """

    generation: int
    inverse: LayerRef
    attic: int
    count: int
    conflicts: tuple[bytes, ...]
    lost: tuple[bytes, ...]
    notes: tuple[str, ...]
    written: tuple[Written, ...]
    stamps: dict[int, os.stat_result] | None
    explained: Explained
    found: dict[bytes, Origin]


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


def _now_ns(directory: bytes) -> int:
    """The time that a file changed now gets: the kernel stamps files by a clock of its own."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            return os.fstat(file.fileno()).st_ctime_ns
    except OSError:  # it is full, say
        return time.time_ns() - RACY_NS


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
    After success: record the generation, then call ``finish``, then ``Host.open_attic``.
    """
    effects = effects or Effects()
    began_ns = _now_ns(attic_dir)
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
            made = make_staged(grounds, draft.staged, contents, effects)
            plan = _plan(draft, made, began_ns, view, host, objects, name)
            record.commit(plan)
        except Exception:
            if record.plan() is None:
                abort(grounds, mtime_ns, record, effects)
            raise
        applied = _carry_out(plan, grounds, record, effects, resumed=False)
    finally:
        grounds.close()
    host.forget_names()
    return applied


def _plan(
    draft: Draft,
    made: Mapping[bytes, os.stat_result],
    began_ns: int,
    view: View,
    host: Host,
    objects: NodeStore,
    name: str,
) -> Plan:
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
        view.generation + 1,
        tuple(draft.outs),
        tuple(draft.puts),
        (*draft.fixes, *staged),
        tuple(draft.directories),
        inverse,
        tuple(draft.conflicts),
        tuple(draft.lost),
        tuple(_written(one, made[one.slot], stage, host) for one in draft.written),
        tuple(draft.made),
        tuple(sorted(draft.shared)),
        began_ns,
    )


def _written(one: Wrote, status: os.stat_result, stage: bytes, host: Host) -> Written:
    """``one`` as it was staged: the base need not take every attribute as it was wanted."""
    xattrs = one.inode.attributes.xattrs
    if xattrs:
        xattrs = host.xattrs(Origin(0, stage + b"/" + one.slot))
    mode, mtime_ns, ctime_ns = stat.S_IMODE(status.st_mode), status.st_mtime_ns, status.st_ctime_ns
    got = Attributes(host.ino(status), mode, status.st_uid, status.st_gid, mtime_ns, ctime_ns, xattrs)
    return Written(one.path, with_attributes(one.inode, got), status.st_ino, ctime_ns)


def _carry_out(plan: Plan, grounds: Grounds, record: Record, effects: Effects, resumed: bool) -> Applied:
    runner = Runner(plan, grounds, record, effects)
    conflicts = runner.run()
    return Applied(
        plan.generation,
        plan.inverse,
        plan.attic,
        len(plan.outs) + len(plan.puts) + len(plan.fixes),
        tuple(dict.fromkeys((*plan.conflicts, *conflicts))),
        plan.lost,
        tuple(effects.refused),
        plan.written,
        None if resumed else runner.stamps,
        _explained(plan, conflicts),
        runner.found,
    )


def _explained(plan: Plan, conflicts: list[bytes]) -> Explained:
    paths = {put.path for put in plan.puts} | {fix.path for fix in plan.fixes} | {*plan.made, *conflicts}
    moved = {put.path for put in plan.puts if put.source.startswith(b"m")}
    gone = {out.path for out in plan.outs}
    return Explained(tuple(sorted(paths)), tuple(sorted(moved)), tuple(sorted(gone)), plan.shared)


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
            return _carry_out(plan, grounds, record, effects, resumed=True)
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
