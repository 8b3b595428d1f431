"""What a served workspace can do, whichever way it is served: the Workspace protocol and its results.

Owns the values that cross the socket (their field names are fixed in docs/protocol.md) and the errors that a caller
may meet. Two implementations: ``mounted`` (FUSE) and ``scanned`` (no FUSE). All values are immutable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

import msgspec

from store.errors import StoreError

ChangeKind = Literal["create", "overwrite", "delete", "rename", "type", "mode"]


class WorkspaceError(StoreError):
    """An expected failure of a workspace operation."""

    code = "failed"


class NothingToDoError(WorkspaceError):
    """There is no state to undo or redo to."""

    code = "nothing"


class ConflictError(WorkspaceError):
    """Refused, so as not to lose work: busy files, a tree that moved since the preview, paths changed meanwhile."""

    code = "conflict"


class NotMountedError(WorkspaceError):
    """The path is not in a served workspace."""

    code = "not_mounted"


class GoneError(WorkspaceError):
    """The directory that is served is no longer at its path."""

    code = "not_a_workspace"


class RefusedError(WorkspaceError):
    """The workspace cannot be served: the message says why and the hint what to do."""

    code = "refused"


class Change(msgspec.Struct, frozen=True, omit_defaults=True, rename={"source": "from"}):
    """One path that differs. ``path`` and ``source`` are relative to the workspace, text with surrogate escapes.

    ``mode`` stands for every change of metadata alone (mode, owner, times, extended attributes).
    """

    path: str
    kind: ChangeKind
    source: str | None = None


class Kept(msgspec.Struct, frozen=True):
    """A path that a restore left as it was, and why."""

    path: str
    reason: str


class CheckpointResult(msgspec.Struct, frozen=True):
    """Answer of ``checkpoint``; ``seconds`` is the time the caller waited for the freeze."""

    id: str
    parent: str | None
    created: bool
    changed: int
    label: str | None
    session: str | None
    node: str | None
    seconds: float


class RestoreResult(msgspec.Struct, frozen=True, rename={"origin": "from"}):
    """Answer of ``undo``, ``redo`` and ``restore``. ``origin`` is the head before, ``saved`` the automatic checkpoint
    of what was unsaved, ``fingerprint`` names the state and target that a preview spoke of.
    """

    head: str
    origin: str
    saved: str | None
    changes: list[Change]
    kept: list[Kept]
    seconds: float
    fingerprint: str = ""


class LogRow(msgspec.Struct, frozen=True):
    """One checkpoint in ``log``. ``time`` is seconds since the epoch; ``state`` is ``sealing`` or ``sealed``."""

    id: str
    parent: str | None
    time: float
    label: str | None
    session: str | None
    node: str | None
    changed: int
    state: str
    kind: str = "user"


class LogResult(msgspec.Struct, frozen=True):
    """Answer of ``log``, oldest first. ``redo`` is the way forward, nearest first."""

    head: str
    checkpoints: list[LogRow]
    dirty: bool = False
    redo: list[str] = []


class DiffResult(msgspec.Struct, frozen=True):
    """Answer of ``diff`` and ``drift``. ``patch`` is a unified diff, only if asked for; ``lines`` maps each path to
    added and removed lines, only if asked for (``-1, -1`` for a binary file).
    """

    changes: list[Change]
    patch: str | None = None
    lines: dict[str, tuple[int, int]] | None = None


class StatusResult(msgspec.Struct, frozen=True):
    """Answer of ``status``. ``store_bytes`` is what the store occupies; ``writers`` names processes with files open
    for writing; ``undo`` and ``redo`` are empty if possible, else say why not.
    """

    workspace: str
    mode: str
    channel: str | None
    mounted: bool
    mountpoint: str | None
    head: str
    dirty: bool
    changed: int
    store_bytes: int
    health: list[str]
    writers: list[str]
    undo: str = ""
    redo: str = ""


class ListedEntry(msgspec.Struct, frozen=True):
    """One row of ``ls``: ``type`` is file, directory, symlink, fifo, socket or device; ``mtime`` in seconds."""

    name: str
    type: str
    mode: int
    size: int
    mtime: float
    target: str | None = None


class UnmountResult(msgspec.Struct, frozen=True):
    """Answer of ``unmount``. ``conflicts`` names base paths that changed below the mount; both versions are kept, the
    base's in checkpoint ``kept``. ``lost`` names what could not be written, because the base file that it was made of
    has been changed below the mount.
    """

    how: str
    head: str
    saved: str | None
    applied: int
    conflicts: list[str]
    kept: str | None
    seconds: float
    lost: list[str] = []


class Workspace(Protocol):
    """A served workspace. Every method may be called from any thread and raises StoreError for expected failures."""

    def checkpoint(
        self, label: str | None = None, session: str | None = None, node: str | None = None, sync: bool = False
    ) -> CheckpointResult:
        """Seal what has changed since the head; without a change, the head again with ``created`` False."""
        ...

    def undo(self, count: int = 1) -> RestoreResult:
        """Go ``count`` states back. Raises NothingToDoError."""
        ...

    def redo(self, count: int = 1) -> RestoreResult:
        """Go ``count`` states forward again. Raises NothingToDoError."""
        ...

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
        """Go to a checkpoint, or bring back only ``paths`` of it. ``fingerprint`` of a preview makes it stop with
        ConflictError if anything moved since. ``mine`` are the sessions whose changes it may take back (until a time in
        ns), by default only that of the checkpoint; what others changed is kept unless ``force``.
        """
        ...

    def resolve(self, spec: str) -> str:
        """The id of the checkpoint that ``spec`` names. Raises UnknownCheckpointError."""
        ...

    def log(self, session: str | None = None) -> LogResult:
        """The tree of checkpoints."""
        ...

    def diff(self, a: str | None = None, b: str | None = None, patch: bool = False, stat: bool = False) -> DiffResult:
        """What changes from ``a`` (default: the head) to ``b`` (default: the present)."""
        ...

    def drift(self) -> DiffResult:
        """What restoring the head would change now."""
        ...

    def status(self) -> StatusResult:
        """Where the workspace stands."""
        ...

    def cat(self, checkpoint: str, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes of a file as a checkpoint has it."""
        ...

    def ls(self, checkpoint: str, path: str = "") -> list[ListedEntry]:
        """A directory as a checkpoint has it, sorted by name."""
        ...

    def unmount(self, how: Literal["apply", "keep", "discard"] = "apply", lazy: bool = False) -> UnmountResult:
        """Stop serving. Raises ConflictError, naming the processes, while files are open there and not ``lazy``."""
        ...
