"""Looking at a workspace that nothing serves now: its history, from the store alone, changing nothing.

Owns the read-only answers to ``log``, ``status``, ``diff`` between checkpoints, ``cat`` and ``ls``. What changes the
workspace, or speaks of its present state, needs a daemon. Does not own how trees are read (``vfs.trees.view``).

Concurrency: one command, one thread; a daemon that starts meanwhile only adds to what is read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from harness.dispatch import Dispatcher
from harness.doctor import known_workspace, not_served
from harness.failure import PlyfsError
from harness.messages import METHODS, to_object, typed
from harness.places import home_directory
from harness.systems import system
from store.format import Regular
from store.head import Head
from store.home import Home, WorkspaceIdentity, WorkspaceStore
from store.journal import read_journal
from vfs import answers
from vfs.roots import Roots
from vfs.scan.state import StateFile
from vfs.trees import diff
from vfs.trees.contents import Contents
from vfs.trees.host import Host
from vfs.workspace import (
    CheckpointResult,
    DiffResult,
    ListedEntry,
    LogResult,
    RestoreResult,
    StatusResult,
    UnmountResult,
)

if TYPE_CHECKING:
    from vfs.trees.view import View


def answer(path: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The result of a harmless method on the workspace that ``path`` lies in. Raises PlyfsError or StoreError."""
    workspace = OfflineWorkspace(path)
    try:
        result = Dispatcher(workspace).answer(typed(params, METHODS[method]))
        return to_object(result)
    finally:
        workspace.close()


class OfflineWorkspace:
    """The Workspace protocol as far as it needs no mount; the rest raises PlyfsError."""

    def __init__(self, path: str) -> None:
        known = known_workspace(os.path.realpath(path))
        if known is None:
            raise not_served(path)
        self._path = known
        self._home = Home.open(home_directory())
        self._files = ExitStack()
        trees: dict[int, int] = {}
        try:
            identity = WorkspaceIdentity.of(known)
            if not system.IS_WINDOWS:
                trees[0] = os.open(known, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                self._files.callback(os.close, trees[0])
        except (FileNotFoundError, NotADirectoryError) as error:
            raise PlyfsError(
                "not_a_workspace",
                f"the workspace {known} is gone: it was moved or removed",
                "its checkpoints are kept: put it back, or `plyfs mount` it where it is now",
            ) from error
        store = self._home.find(identity, os.fsencode(known))
        head = None if store is None else store.history.read_head()
        if store is None or head is None:
            self._files.close()
            raise PlyfsError(
                "not_a_workspace",
                f"{known} is not the directory that was a workspace there: that one was moved or removed",
                f"`plyfs mount {known}` makes this one a workspace",
            )
        self._store: WorkspaceStore = store
        self._head: Head = head
        host = Host(trees)
        host.open_attic(store.attic_dir)
        self._contents = Contents(self._home.objects, host)
        self._roots = Roots(self._home.objects, self._home.pages, host, store.history, store.generations)

    def close(self) -> None:
        """Give up open files; those of the attic end with the command."""
        self._store.close()
        self._files.close()

    def resolve(self, spec: str) -> str:
        """See ``Workspace``."""
        return self._store.history.resolve(spec, self._head).id

    def log(self, session: str | None = None) -> LogResult:
        """See ``Workspace``."""
        head = self._head
        rows = answers.log_rows(self._store.history, head.head, session)
        return LogResult(head.head, rows, self._is_dirty(), list(head.redo))

    def _is_dirty(self) -> bool:
        """True if changes wait in the journal for the next mount."""
        return any(read_journal(self._store.journal_path(epoch)).records for epoch in self._store.epochs())

    def _is_scanned(self) -> bool:
        """True if the directory was a scanner's last, not a mount's."""
        state = StateFile(os.path.join(self._store.path, b"scan"), self._home.disk).read()
        return state is not None and state.generation == self._store.generations.current

    def status(self) -> StatusResult:
        """See ``Workspace``. How many paths are unsaved is not known without a mount."""
        head = self._head
        health = [*self._store.history.problems, *self._store.generations.problems]
        if head.mounted:
            health.append("it was not unmounted: the next mount recovers what was unsaved")
        no = "it is not mounted"
        return StatusResult(
            self._path,
            "scan" if self._is_scanned() else "fuse",
            None,
            False,
            None,
            head.head,
            self._is_dirty(),
            0,
            self._home.objects.inventory.bytes_used(),
            health,
            [],
            no,
            no,
        )

    def diff(self, a: str | None = None, b: str | None = None, patch: bool = False, stat: bool = False) -> DiffResult:
        """See ``Workspace``; ``b`` must be given."""
        if b is None:
            self._needs_mount("the present state")
        before, after = self._view(a or "@"), self._view(b)
        return answers.compared(diff.changes(before, after), before, after, self._read, patch, stat)

    def _view(self, spec: str) -> View:
        return self._roots.view(self._roots.of(self._store.history.resolve(spec, self._head).id))

    def _read(self, entry: Regular, offset: int, length: int) -> bytes:
        return self._contents.read(entry.content, offset, length)

    def cat(self, checkpoint: str, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """See ``Workspace``."""
        return self._looked(checkpoint).cat(path, offset, length)

    def ls(self, checkpoint: str, path: str = "") -> list[ListedEntry]:
        """See ``Workspace``."""
        return self._looked(checkpoint).ls(path)

    def _looked(self, checkpoint: str) -> answers.Looked:
        return answers.Looked(checkpoint, self._view(checkpoint), self._read, (os.fsencode(self._path),))

    def _needs_mount(self, what: str) -> NoReturn:
        raise PlyfsError(
            "not_mounted", f"{what} of {self._path} needs it mounted", f"`plyfs mount {self._path}`, then again"
        )

    def drift(self) -> DiffResult:
        """Needs a mount."""
        self._needs_mount("drift")

    def checkpoint(
        self, label: str | None = None, session: str | None = None, node: str | None = None, sync: bool = False
    ) -> CheckpointResult:
        """Needs a mount."""
        self._needs_mount("a checkpoint")

    def undo(self, count: int = 1) -> RestoreResult:
        """Needs a mount."""
        self._needs_mount("undo")

    def redo(self, count: int = 1) -> RestoreResult:
        """Needs a mount."""
        self._needs_mount("redo")

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
        """Needs a mount."""
        self._needs_mount("restore")

    def unmount(self, how: Literal["apply", "keep", "discard"] = "apply", lazy: bool = False) -> UnmountResult:
        """Needs a mount."""
        self._needs_mount("unmount")
