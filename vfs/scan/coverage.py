"""What a checkpoint speaks of: whether a path that it does not have was not there, or was left out.

Owns asking the policy that is stored with a scanned checkpoint, by the ignore rules of that time: its own
``.gitignore`` files and those recorded from outside of the tree. A path that it left out, or would have, is nothing
to a restore.

Concurrency: one thread; remembers what it was asked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from store.errors import FormatError
from store.format import Directory, Regular, Repository, Scope, decode
from store.nodes import ObjectStore
from store.refs import NodeRef
from vfs.scan.ignorerules import NONE, Rules
from vfs.scan.repository import rules_of
from vfs.trees.diff import Changed
from vfs.trees.view import View, join

GIT = b".git"
IGNORE = b".gitignore"
WHY = {
    "git": "scanning does not capture it",
    "ignored": "git ignored it then, so that checkpoint says nothing of it",
    "too big": "it was too big to be captured then",
    "unreadable": "it could not be read then",
    "another file system": "it is on another file system",
}


def load_scope(objects: ObjectStore, ref: NodeRef) -> Scope:
    """The scope named ``ref``. Raises MissingError, DamagedError or FormatError."""
    value = decode(objects.get_node(ref))
    if not isinstance(value, Scope):
        raise FormatError(f"object {ref.hex()} is not a scope")
    return value


def in_git(path: bytes) -> bool:
    """True at and below a ``.git``."""
    return GIT in path.split(b"/")


class Coverage:
    """What the checkpoint with tree ``view`` and ``scope`` (None: a mount's, which has everything) speaks of."""

    def __init__(self, scope: Scope | None, view: View, read: Callable[[Regular, int, int], bytes]) -> None:
        self._scope = scope
        self._view = view
        self._read = read
        self._left = {} if scope is None else {one.path: one.reason for one in scope.left_out}
        self._repositories = {} if scope is None else {one.path: one for one in scope.repositories}
        self._known: dict[bytes, tuple[Rules, Repository | None, bool]] = {}

    def reason(self, path: bytes, directory: bool) -> str | None:
        """Why the checkpoint says nothing of ``path``; None if it does: its silence means that nothing was there."""
        if in_git(path):
            return "git"
        if self._scope is None or self._view.lookup(path) is not None:
            return None
        at = path
        while at:
            if at in self._left:
                return self._left[at]
            at = at.rpartition(b"/")[0]
        if self._scope.rules == "all":
            return None
        above, _, name = path.rpartition(b"/")
        rules, repository, ignored = self._rules(above)
        if ignored or (repository is not None and rules.ignores(_base(repository, above) + name, name, directory)):
            return "ignored"
        return None

    def _rules(self, path: bytes) -> tuple[Rules, Repository | None, bool]:
        """(the rules in the directory ``path``, its repository, whether it is ignored itself)."""
        known = self._known.get(path)
        if known is not None:
            return known
        rules, repository, ignored = NONE, None, False
        if path:
            above, _, name = path.rpartition(b"/")
            rules, repository, ignored = self._rules(above)
            if repository is not None and not ignored:
                ignored = rules.ignores(_base(repository, above) + name, name, True)
        own = self._repositories.get(path)
        if own is not None:
            rules, repository, ignored = rules_of(own), own, False
        if repository is not None:
            entry = self._view.lookup(join(path, IGNORE))
            if isinstance(entry, Regular):
                rules = rules.below(_base(repository, path), self._read(entry, 0, 100 << 20))
        self._known[path] = rules, repository, ignored
        return self._known[path]


def _base(repository: Repository, path: bytes) -> bytes:
    """What paths in the workspace's directory ``path`` begin with, from the repository's top."""
    inner = path[len(repository.path) + 1 :] if repository.path else path
    prefix = repository.prefix + b"/" if repository.prefix else b""
    return prefix + (inner + b"/" if inner else b"")


def under(path: bytes, tops: dict[bytes, str]) -> tuple[bytes, str] | None:
    """The one of ``tops`` that ``path`` is, or is below, and its reason."""
    at = path
    while at:
        if at in tops:
            return at, tops[at]
        at = at.rpartition(b"/")[0]
    return None


def shown(path: bytes) -> str:
    """A path for people."""
    return os.fsdecode(path)


def uncovered(changes: Iterable[Changed], coverage: Coverage) -> dict[bytes, str]:
    """Of ``changes``, the paths of which the target says nothing, and why: a restore keeps them as they are."""
    found: dict[bytes, str] = {}
    for change in changes:
        if change.kind in ("delete", "type", "overwrite", "mode") and change.before is not None:
            reason = coverage.reason(change.path, isinstance(change.before, Directory))
            if reason is not None and reason != "git":
                found[change.path] = WHY.get(reason, reason)
    return {path: why for path, why in found.items() if os.path.dirname(path) not in found}
