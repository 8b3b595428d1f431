"""What git's rules say of the names in a workspace's directories, while these are walked.

Owns the repositories that a walk meets (``Context``), the rules in force in each directory, and the ``.gitignore``
files as they were read. Does not own the syntax of rules (``ignorerules``), where else they come from (``repository``),
nor what becomes of a name that is ignored (``walker``).

Concurrency: each directory is asked about by one thread; the walk's threads share the lists.
"""

from __future__ import annotations

import os
import stat

from store.format import Repository
from vfs.scan.ignorerules import MAX_BYTES, Rules
from vfs.scan.platform import Handle, Platform
from vfs.scan.repository import Found, Repositories
from vfs.scan.statindex import DirectoryRecord, Ignore, StatIndex, now_ns
from vfs.trees.racy import is_racy

IGNORE = ".gitignore"


class Context:
    """A repository while it is walked: its rules, and what it tracks all the same."""

    def __init__(self, found: Found, top: str, tracked: frozenset[bytes]) -> None:
        self.record: Repository = found.record
        self.rules: Rules = found.rules
        self.top = top
        self.tracked = tracked
        self._cut = len(found.record.path) + 1 if found.record.path else 0
        self._prefix = found.record.prefix + b"/" if found.record.prefix else b""

    def base(self, path: bytes) -> bytes:
        """What paths in the workspace's directory ``path`` begin with, from the repository's top."""
        inner = path[self._cut :]
        return self._prefix + (inner + b"/" if inner else b"")


class Ruling:
    """The rules of one walk. Afterwards: the ``contexts`` that it met, and whether any rule or repository changed."""

    def __init__(self, index: StatIndex, platform: Platform, path: str, repositories: Repositories) -> None:
        self.contexts: list[Context] = []
        self.repositories_changed = False
        self.rules_changed = False
        self._index = index
        self._platform = platform
        self._path = path
        self._repositories = repositories

    def around(self) -> Context | None:
        """The repository that the workspace is in or is."""
        return self._known(self._index.root, self._repositories.around(self._path), self._path)

    def nested(self, record: DirectoryRecord) -> Context | None:
        """The repository whose top the directory is."""
        top = os.path.join(self._path, os.fsdecode(record.path))
        return self._known(record, self._repositories.at(top, record.path), top)

    def _known(self, record: DirectoryRecord, found: Found | None, top: str) -> Context | None:
        """The context of a repository: the one of the scan before, if nothing about it has changed."""
        if found is None:
            return None
        old = record.repo
        if found.record.prefix:
            top = top[: len(top) - len(os.fsdecode(found.record.prefix)) - 1]
        tracked = self._repositories.tracked(top, (found.record, self._index.rules_version))
        if isinstance(old, Context) and old.record == found.record and old.tracked == tracked:
            self.contexts.append(old)
            return old
        made = Context(found, top, tracked)
        self.contexts.append(made)
        self.repositories_changed = True
        return made

    def enter(
        self,
        handle: Handle,
        record: DirectoryRecord,
        above: Rules,
        context: Context | None,
        there: bool,
        again: bool,
    ) -> bool:
        """Bring the directory's rules up to date; True if names must be asked for anew."""
        if context is not None and context.record.path == record.path:
            above = context.rules
        ignore = self._read(handle, record) if there and context is not None else None
        before = None if record.ignore is None else record.ignore.text
        text = None if ignore is None else ignore.text
        if before != text:
            again = self.rules_changed = True
        if record.ignore is not ignore:
            record.unsaved = True
        record.ignore = ignore
        if again or record.above is not above:
            record.above = above
            record.rules = above if context is None else above.below(context.base(record.path), text)
        return again

    def _read(self, handle: Handle, record: DirectoryRecord) -> Ignore | None:
        try:
            status = self._platform.stat(handle, IGNORE)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
                return None
            signature = signature_of(status)
            old = record.ignore
            if old is not None and old.signature == signature and not old.racy:
                return old
            looked = now_ns()
            with open(self._platform.open_file(handle, IGNORE), "rb") as file:
                return Ignore(signature, is_racy(status, looked), file.read())
        except OSError:
            return None

    def ignores(self, record: DirectoryRecord, context: Context | None, name: str, directory: bool) -> bool:
        """True if ``name`` in the directory is left out: git ignores it, and does not track it."""
        if context is None:
            return False
        raw = os.fsencode(name)
        path = context.base(record.path) + raw
        ignored = record.inside or record.rules.ignores(path, raw, directory)
        return ignored and path not in context.tracked

    def inside(self, record: DirectoryRecord, context: Context | None, child: DirectoryRecord) -> None:
        """Note whether the directory ``child`` is ignored, if only for what it holds."""
        if context is not None:
            raw = os.fsencode(child.name)
            child.inside = record.inside or record.rules.ignores(context.base(record.path) + raw, raw, True)

    def tracked_changed(self) -> bool:
        """True if, by the rules as they are now, other ignored files are tracked: then names must be asked for anew."""
        self._index.rules_version += 1
        for context in self.contexts:
            key = (context.record, self._index.rules_version)
            if self._repositories.tracked(context.top, key) != context.tracked:
                return True
        return False


def signature_of(status: os.stat_result) -> tuple[int, int, int, int]:
    """What a ``.gitignore`` is known by."""
    return status.st_ctime_ns, status.st_mtime_ns, status.st_ino, status.st_size
