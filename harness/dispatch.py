"""From a typed request to a call of the Workspace and back.

Owns which method calls what, and which calls are short enough for the daemon's one worker thread. Does not own threads
(``server``) or the wire (``messages``). Used by the daemon, and in-process when a workspace is not mounted.

Concurrency: stateless but for the cache of what checkpoints changed, which is a dict used whole; callable from any
thread.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from harness import messages
from harness.config import load
from harness.failure import PlyfsError
from harness.sessions import Sessions, no_sessions
from vfs.workspace import Change, LogResult, RestoreResult, Workspace


def is_short(params: messages.Params) -> bool:
    """True for calls that take about a millisecond, unless they have to wait for another's end."""
    match params:
        case messages.Checkpoint(sync=False) | messages.Capture(changes=False):
            return True
        case messages.Bind() | messages.Find() | messages.Session() | messages.Leave():
            return True
    return False


CACHED_MAX = 4096


class Dispatcher:
    """Answers requests on one workspace."""

    def __init__(
        self, workspace: Workspace, with_git: bool = False, sessions: Sessions | None = None, path: str = ""
    ) -> None:
        self._workspace = workspace
        self._known_sessions = sessions
        self._path = path
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
            case messages.Restore():
                return self._restore(params)
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
            case messages.Session(session, parent, file, pid, owns, within, working):
                came = self._sessions.open(session, parent, file, pid, owns, within)
                if working is not None:
                    self._sessions.work(session, working)
                return messages.SessionResult(came.known, came.within)
            case messages.Leave(session, pid):
                return messages.LeaveResult(*self._sessions.leave(session, pid))
            case messages.Capture():
                return self._capture(params)
            case messages.Bind(session, node, checkpoint):
                id = self._id_of(checkpoint)
                recorded = self._sessions.record(session, node, id)
                return messages.BindResult(recorded.checkpoint, recorded.created)
            case messages.Find(session, nodes):
                found = self._sessions.find(session, nodes)
                if found is None:
                    return messages.FindResult()
                return messages.FindResult(found.checkpoint, found.session, found.node)
            case messages.Settings():
                return messages.SettingsResult(msgspec.to_builtins(load(self._path).agents))
            case _:
                raise PlyfsError("unknown_method", f"{type(params).__name__.lower()} is not answered here")

    @property
    def _sessions(self) -> Sessions:
        if self._known_sessions is None:
            raise no_sessions()
        return self._known_sessions

    def _restore(self, asked: messages.Restore) -> RestoreResult:
        git = self._with_git if asked.with_git is None else asked.with_git
        mine = None if asked.session is None else self._sessions.mine(asked.session)
        return self._workspace.restore(
            asked.checkpoint, asked.paths, asked.dry_run, asked.force, git, asked.fingerprint, mine
        )

    def _capture(self, asked: messages.Capture) -> messages.CaptureResult:
        """A node that has its state keeps it: what has changed since becomes a checkpoint that is no node's."""
        sessions = self._sessions
        state = None if asked.node is None else sessions.of(asked.session, asked.node)
        free = asked.node if state is None else None
        author = sessions.author(asked.session)
        made = self._workspace.checkpoint(asked.label, author, free if author == asked.session else None)
        recorded = False
        if free is not None:
            told = sessions.record(asked.session, free, made.id)
            state, recorded = told.checkpoint, told.created
        changes: list[Change] = []
        if asked.changes and made.created and made.parent is not None:
            changes = self._workspace.diff(made.parent, made.id).changes
        return messages.CaptureResult(
            made.id,
            made.parent,
            made.created,
            made.changed if made.created else 0,
            state,
            recorded,
            made.seconds,
            changes,
        )

    def _id_of(self, spec: str) -> str:
        """The id of the checkpoint that a client names."""
        return self._workspace.resolve(spec)

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
