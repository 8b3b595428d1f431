"""From a typed request to a call of the Workspace and back.

Owns which method calls what, and which calls are short enough for the daemon's one worker thread. Does not own threads
(``server``) or the wire (``messages``). Used by the daemon, and in-process when a workspace is not mounted.

Concurrency: stateless but for the cache of what checkpoints changed, which is a dict used whole; callable from any
thread.
"""

from __future__ import annotations

import base64
from typing import Any

from harness import messages
from harness.failure import PlyfsError
from vfs.workspace import Change, LogResult, Workspace


def is_short(params: messages.Params) -> bool:
    """True for calls that take about a millisecond, unless they have to wait for another's end."""
    return isinstance(params, messages.Checkpoint) and not params.sync


CACHED_MAX = 4096


class Dispatcher:
    """Answers requests on one workspace."""

    def __init__(self, workspace: Workspace, with_git: bool = False) -> None:
        self._workspace = workspace
        self._with_git = with_git
        """What ``restore`` does with .git unless told."""
        self._changes: dict[str, list[Change]] = {}

    def answer(self, params: messages.Params) -> Any:
        """The result of one call. Raises StoreError or PlyfsError for expected failures."""
        workspace = self._workspace
        match params:
            case messages.Checkpoint(label, session, node, sync):
                return workspace.checkpoint(label, session, node, sync)
            case messages.Undo(count):
                return workspace.undo(count)
            case messages.Redo(count):
                return workspace.redo(count)
            case messages.Restore(checkpoint, paths, dry_run, force, with_git, fingerprint):
                git = self._with_git if with_git is None else with_git
                return workspace.restore(checkpoint, paths, dry_run, force, git, fingerprint)
            case messages.Log(session, changes):
                log = workspace.log(session)
                return self._with_changes(log, changes) if changes else log
            case messages.Diff(a, b, patch, stat):
                return workspace.diff(a, b, patch, stat)
            case messages.Drift():
                return workspace.drift()
            case messages.Status():
                return workspace.status()
            case messages.Cat(checkpoint, path, offset, length):
                data = workspace.cat(checkpoint, path, offset, length)
                return messages.CatResult(path, offset, base64.b64encode(data).decode("ascii"))
            case messages.Ls(checkpoint, path):
                return messages.LsResult(list(workspace.ls(checkpoint, path)))
            case messages.Unmount(how, lazy):
                return workspace.unmount(how, lazy)
            case _:
                raise PlyfsError("unknown_method", f"{type(params).__name__.lower()} is not answered here")

    def _with_changes(self, log: LogResult, count: int) -> dict[str, Any]:
        """``log`` and, for each of its newest ``count`` checkpoints, what that changed over its parent."""
        changes: dict[str, list[Change]] = {}
        for row in log.checkpoints[-count:]:
            if row.parent is None:
                continue
            known = self._changes.get(row.id)
            if known is None:
                known = self._workspace.diff(row.parent, row.id).changes
                if len(self._changes) >= CACHED_MAX:
                    self._changes.clear()
                self._changes[row.id] = known
            changes[row.id] = known
        return {
            "head": log.head,
            "checkpoints": log.checkpoints,
            "dirty": log.dirty,
            "redo": log.redo,
            "changes": changes,
        }
