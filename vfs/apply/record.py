"""The plan of an apply, and its record on disk: what makes it resumable.

Owns the values of a plan and the few files of its record in the workspace's store:

``intent``  what staging makes, written before it is made: what to clear away after a crash
``plan``  the plan; its appearance, by rename, is the commit: from then on an apply is only ever rolled forward
``progress-ID``  one line for each milestone of that plan, and each conflict that came up meanwhile

Does not own making a plan (``apply_plan``) nor carrying it out (``apply_run``). Concurrency: one thread.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from store.disk import make_directories, read_file
from store.errors import FormatError
from store.format import Attributes, Regular, Special, Symlink
from store.refs import LayerRef
from store.whole import read_whole, write_whole

if TYPE_CHECKING:
    from vfs.apply.effects import Effects

PLAN_VERSION = 2

STAGE_PREFIX = b".plyfs-apply-"
"""The staging directory's name in the base's top directory, before the apply's id."""


class Out(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """An object of the base leaves its place. ``target`` is a name in the attic's new folder (``where`` "attic") or a
    path in the staging directory (``where`` "stage"). ``size`` and ``mtime_ns`` are a regular file's when planned.
    """

    path: bytes
    where: Literal["attic", "stage"]
    target: bytes
    size: int = -1
    mtime_ns: int = 0


class Put(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What is at ``source`` in the staging directory comes to ``path``; with ``link`` as one more name of it."""

    path: bytes
    source: bytes
    link: bool = False


class Fix(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Attributes to set at ``path``, if there is something of that ``file_type`` (S_IFMT's part of the mode). ``size``
    and ``mtime_ns`` are a regular file's when planned, -1 if that does not matter.
    """

    path: bytes
    file_type: int
    attributes: Attributes
    size: int = -1
    mtime_ns: int = 0


class Written(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What an apply wrote at ``path``, as it was when it had been staged; ``ino`` is the host's. ``known`` compares it
    with what is there in the end.
    """

    path: bytes
    inode: Regular | Symlink | Special
    ino: int
    ctime_ns: int


class Explained(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag="explained"):
    """What plyfs itself did to the base, for ``survey``: ``paths`` came or were changed, all below ``moved`` came with
    it, all below ``gone`` went. ``inodes`` (the host's numbers) were changed whatever their names are.
    """

    paths: tuple[bytes, ...] = ()
    moved: tuple[bytes, ...] = ()
    gone: tuple[bytes, ...] = ()
    inodes: tuple[int, ...] = ()

    def __or__(self, other: Explained) -> Explained:
        return Explained(
            tuple(sorted({*self.paths, *other.paths})),
            tuple(sorted({*self.moved, *other.moved})),
            tuple(sorted({*self.gone, *other.gone})),
            tuple(sorted({*self.inodes, *other.inodes})),
        )


class Plan(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """All that has to be done after staging, in order. ``directories`` come last, deepest first, the top as the last.

    Paths of ``puts``, ``fixes`` and ``directories`` are those that things have in the tree; of ``outs`` those that
    they have in the old base. A path that begins with the staging directory's name is in there. ``made`` are the paths
    that new directories bring along, and ``shared`` the host's numbers of inodes that get or lose names. The base
    was first looked at at ``began_ns``, by the clock that stamps files.
    """

    version: int
    id: str
    generation: int
    attic: int
    outs: tuple[Out, ...]
    puts: tuple[Put, ...]
    fixes: tuple[Fix, ...]
    directories: tuple[Fix, ...]
    inverse: LayerRef
    conflicts: tuple[bytes, ...]
    lost: tuple[bytes, ...]
    written: tuple[Written, ...]
    made: tuple[bytes, ...]
    shared: tuple[int, ...]
    began_ns: int

    @property
    def stage(self) -> bytes:
        """The staging directory's name."""
        return STAGE_PREFIX + self.id.encode()


class Intent(NamedTuple):
    """The number of the attic's new folder, the top directory's time before, and the staging directory's name."""

    attic: int
    mtime_ns: int
    stage: bytes


class Record:
    """The record of the one apply that may be going on in a workspace, in the directory ``path``."""

    def __init__(self, path: bytes, effects: Effects) -> None:
        self.path = path
        self._effects = effects
        self._intent = os.path.join(path, b"intent")
        self._plan = os.path.join(path, b"plan")

    def begin(self, stage: bytes, attic: int, mtime_ns: int) -> None:
        """Staging begins; the top directory has the modification time ``mtime_ns``."""
        make_directories(self._effects.disk, self.path)
        self.sweep()
        self._effects.step()
        write_whole(self._effects.disk, self._intent, b"%d %d %s" % (attic, mtime_ns, stage), sync=True)

    def sweep(self) -> None:
        """There is no plan: remove the progress of an older one, if a crash left it."""
        if os.path.isdir(self.path):
            for name in os.listdir(self.path):
                if name.startswith(b"progress-"):
                    self._unlink(os.path.join(self.path, name))

    def intent(self) -> Intent | None:
        """The apply that began staging, None if there is none."""
        try:
            parts = read_whole(self._intent, "it tells what an apply that was not finished was making").split(b" ")
        except FileNotFoundError:
            return None
        if len(parts) != 3 or not parts[0].isdigit() or not parts[2].startswith(STAGE_PREFIX) or b"/" in parts[2]:
            raise FormatError(f"{os.fsdecode(self._intent)} cannot be read")
        return Intent(int(parts[0]), int(parts[1]), parts[2])

    def commit(self, plan: Plan) -> None:
        """From here on the plan will be carried out, whatever happens."""
        self._effects.step()
        write_whole(self._effects.disk, self._plan, msgspec.msgpack.encode(plan), sync=True)

    def plan(self) -> Plan | None:
        """The committed plan, if there is one. Raises FormatError."""
        try:
            data = read_whole(self._plan, "it tells how an apply that is half done goes on")
        except FileNotFoundError:
            return None
        try:
            plan = msgspec.msgpack.decode(data, type=Plan)
        except msgspec.DecodeError as error:
            raise FormatError(f"{os.fsdecode(self._plan)} cannot be read: {error}") from error
        if plan.version != PLAN_VERSION:
            raise FormatError(
                f"an unfinished apply of format version {plan.version}; this plyfs knows version {PLAN_VERSION}",
                hint="finish it with the plyfs release that began it",
            )
        return plan

    def _progress(self, plan: Plan) -> bytes:
        return os.path.join(self.path, b"progress-" + plan.id.encode())

    def note(self, plan: Plan, word: bytes, *paths: bytes, sync: bool = False) -> None:
        """Add a line to the progress."""
        self._effects.step()
        fd = os.open(self._progress(plan), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            line = b" ".join([word, *(path.hex().encode() for path in paths)])
            self._effects.disk.write_all(fd, line + b"\n")
            if sync:
                self._effects.disk.sync_file(fd)
                self._effects.disk.sync_dir(self.path)
        finally:
            os.close(fd)

    def progress(self, plan: Plan) -> list[tuple[bytes, list[bytes]]]:
        """(word, paths) of each whole line."""
        try:
            lines = read_file(self._progress(plan)).split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        rows = (line.split(b" ") for line in lines)
        return [(word, [bytes.fromhex(path.decode()) for path in paths]) for word, *paths in rows]

    def end(self, plan: Plan | None) -> None:
        """Nothing is left to do. Each step is durable before the next: an intent without its plan would have the
        attic cleared, a plan without its progress would be carried out again.
        """
        self._unlink(self._intent)
        if plan is not None:
            self._effects.disk.sync_dir(self.path)
            self._unlink(self._plan)
            self._effects.disk.sync_dir(self.path)
            self._unlink(self._progress(plan))

    def _unlink(self, path: bytes) -> None:
        self._effects.step()
        try:
            self._effects.disk.unlink(path)
        except FileNotFoundError:
            pass
