"""The walk over the workspace: what is new, changed and gone since the records were made, and what is left out.

Owns reading directories and comparing them with the records of ``statindex``, which it brings up to date but for the
files that have to be read: those it lists. Does not own reading files (``reading``), the tree (``capture``), nor what
git ignores (``ruling``).

Directories are walked by several threads when little is known yet and the disk is waited for (``workers``), else by
one. Each directory is looked at by one thread.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from typing import NamedTuple

from store.format import Attributes
from store.refs import Ino
from vfs.scan.glances import glance
from vfs.scan.ignorerules import Rules
from vfs.scan.platform import Handle, Platform
from vfs.scan.policy import Policy
from vfs.scan.repository import GIT, Repositories
from vfs.scan.ruling import IGNORE, Context, Ruling, signature_of
from vfs.scan.statindex import DirectoryRecord, FileRecord, Left, Reason, StatIndex, kind, now_ns
from vfs.scan.workers import Workers
from vfs.trees.racy import is_racy

UNREADABLE = (Left("unreadable", False), Left("unreadable", True))

LONG_PATH = 3000
"""Longer paths (characters) are only reached through descriptors: PATH_MAX holds for each system call."""


class Wanted(NamedTuple):
    """A file, link or special file that has to be read."""

    directory: DirectoryRecord
    name: str
    status: os.stat_result


_LOOK = (
    getattr(os, "O_PATH", os.O_RDONLY)
    | getattr(os, "O_DIRECTORY", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
)
"""For a directory below which names are looked at; where there is O_PATH, it need not be readable."""


class _Parent:
    """An open directory that closes when all of its directories have been opened."""

    __slots__ = ("handle", "waiting")

    def __init__(self, handle: Handle, waiting: int) -> None:
        self.handle = handle
        self.waiting = waiting


class _Task(NamedTuple):
    parent: _Parent | None
    record: DirectoryRecord
    above: Rules
    context: Context | None
    again: bool


class Walk:
    """One walk. After ``run``: ``wanted``, ``gone`` (records of what is no longer there), ``scope_changed``."""

    def __init__(
        self, index: StatIndex, platform: Platform, top: Handle, path: str, policy: Policy, repositories: Repositories
    ) -> None:
        self.index = index
        self.wanted: list[Wanted] = []
        self.gone: list[FileRecord] = []
        self.gone_directories: list[DirectoryRecord] = []
        self.made: list[DirectoryRecord] = []
        self.scope_changed = False
        self.ruling = Ruling(index, platform, path, repositories)
        self.opened_up: list[tuple[Handle, str, int]] = []
        self.handled = 0
        self._platform = platform
        self._posix = platform.name != "win32"
        self._top = top
        self._path = path
        self._policy = policy
        self._device = platform.stat_directory(top).st_dev
        self._workers = Workers(self._one)
        self._guard = threading.Lock()
        self._modes: dict[int, int] = {}

    def run(self, threads: int, again: bool = False, careful: bool = False) -> None:
        """Walk everything. ``again``: ask the ignore rules anew for all names; ``careful``: list every directory.

        Raises OSError.
        """
        context = self.ruling.around() if self._policy.rules == "git" else None
        root = self.index.root
        again = again or root.repo is not context
        root.repo = context
        is_settled = root.attributes is not None and not again and not careful
        if threads <= 1 and is_settled and self._posix:
            self._quickly(root)
            return
        above = Rules(()) if context is None else context.rules
        first = _Task(None, root, above if root.above is None or again else root.above, context, again)
        self._workers.run([first], threads)

    def _quickly(self, root: DirectoryRecord) -> None:
        """Walk what should be as it was: a directory whose own times have not changed holds the same names, so its
        files are looked at one by one and it is not listed.
        """
        waiting = [root]
        while waiting:
            record = waiting.pop()
            if self._is_same(record):
                waiting.extend(record.directories.values())
                continue
            try:
                handle = self._reach(record)
            except PermissionError:  # closed by its own mode: the other walk opens it up
                context = root.repo if isinstance(root.repo, Context) else None
                self._workers.run([_Task(None, root, root.above or Rules(()), context, False)], 1)
                return
            if handle is None:  # it changed after its parent was looked at
                self._restless(record)
                continue
            above = record.above if record.above is not None else Rules(())
            context = record.repo if isinstance(record.repo, Context) else None
            deeper = self._directory(handle, _Task(None, record, above, context, False), shallow=True)
            done = {id(task.record) for task in deeper}
            waiting.extend(inner for inner in record.directories.values() if id(inner) not in done)
            self._workers.run(deeper, 1)

    def _restless(self, record: DirectoryRecord) -> None:
        if record.parent is not None:
            self._lose(record.parent, record.name)
            self.made.append(record.parent)

    def _is_same(self, record: DirectoryRecord) -> bool:
        """True if nothing in the directory itself has changed."""
        path = f"{self._path}/{os.fsdecode(record.path)}" if record.path else self._path
        if record.racy or len(path) > LONG_PATH or record.listed_again:
            return False
        if record.git and record.parent is not None and self.ruling.nested(record) is not record.repo:
            return False
        try:
            handle = os.open(path, _LOOK)
        except OSError:
            return False
        try:
            status = os.fstat(handle)
            if status.st_ctime_ns != record.ctime or status.st_ino != record.ino or status.st_dev != self._device:
                return False
            shown = record.files.shown()
            if shown is None:
                return False
            names, known = shown
            if names and glance(handle, names.split(b"/")) != known:  # this is what an unchanged workspace costs
                return False
            if record.ignore is not None and IGNORE not in record.files:
                status = os.stat(IGNORE, dir_fd=handle, follow_symlinks=False)
                return not record.ignore.racy and record.ignore.signature == signature_of(status)
        except OSError:
            return False
        finally:
            os.close(handle)
        return True

    def run_in(self, records: list[DirectoryRecord]) -> None:
        """Look again at single directories, which a walk has seen before."""
        for record in records:
            handle = self._reach(record)
            if handle is None:
                continue
            above = record.above if record.above is not None else Rules(())
            context = record.repo if isinstance(record.repo, Context) else None
            self._workers.run(self._directory(handle, _Task(None, record, above, context, False), new_only=True), 1)

    def _reach(self, record: DirectoryRecord) -> Handle | None:
        names = os.fsdecode(record.path).split("/") if record.path else []
        handle = self._top
        for name in names:
            try:
                inner = self._platform.open_directory(handle, name)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    raise
                return None
            finally:
                if handle != self._top:
                    self._platform.close(handle)
            handle = inner
        return handle

    def _one(self, task: _Task) -> list[_Task]:
        if task.parent is None:
            return self._directory(self._top, task)
        handle = self._open(task.parent.handle, task.record)
        with self._guard:
            task.parent.waiting -= 1
            done = task.parent.waiting == 0
        if done and task.parent.handle != self._top:
            self._platform.close(task.parent.handle)
        return [] if handle is None else self._directory(handle, task)

    # --- directories -----------------------------------------------------------------------------------------------

    def _open(self, at: Handle, record: DirectoryRecord) -> Handle | None:
        """The directory of ``record``, None if it is gone, something else or closed to us; then that is noted."""
        parent, name = record.parent, record.name
        assert parent is not None
        try:
            handle = self._platform.open_directory(at, name)
        except PermissionError:
            mode = self._platform.open_up(at, name)
            if mode is None:
                self._leave(parent, name, "unreadable", True)
                return None
            self._modes[id(record)] = mode
            self.opened_up.append((at if at == self._top else os.dup(at) if isinstance(at, int) else at, name, mode))
            handle = self._platform.open_directory(at, name)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            self._lose(parent, name)
            if error.errno != errno.ENOENT:
                self._unknown_type(at, parent, name)
            return None
        if self._platform.stat_directory(handle).st_dev != self._device:
            self._platform.close(handle)
            self._leave(parent, name, "another file system", True)
            return None
        return handle

    def _unknown_type(self, at: Handle, parent: DirectoryRecord, name: str) -> None:
        """What was a directory is something else now."""
        try:
            status = self._platform.stat(at, name)
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(status.st_mode):
            self._want(parent, name, status)

    def _directory(self, handle: Handle, task: _Task, new_only: bool = False, shallow: bool = False) -> list[_Task]:
        """Compare one directory; returns the walks into those below it. Closes ``handle``, or leaves it to them."""
        record, context, again = task.record, task.context, task.again
        platform = self._platform
        self._attributes(handle, record)
        files, directories, left = record.files, record.directories, record.left
        found = platform.entries(handle)
        self.handled += len(found)
        unknown: list[os.DirEntry[str]] = []
        changed: list[tuple[str, os.stat_result]] = []
        inner: list[str] = []
        known_files = known_left = 0
        git = False
        posix = self._posix
        get = files.get
        for entry in found:  # this loop is what an unchanged workspace costs
            name = entry.name
            known = get(name)
            if known is not None:
                try:
                    status = entry.stat(follow_symlinks=False) if posix else platform.stat(handle, name)
                except FileNotFoundError:
                    continue
                known_files += 1
                if (
                    known.ctime == status.st_ctime_ns
                    and known.mtime == status.st_mtime_ns
                    and known.ino == status.st_ino
                    and known.size == status.st_size
                    and (new_only or not known.racy)
                ):
                    continue
                if stat.S_ISDIR(status.st_mode):
                    self._lose(record, name)
                    known_files -= 1  # it is none of ``files`` now, and must not stand for one that is missing
                    unknown.append(entry)
                else:
                    changed.append((name, status))
            elif name in directories:
                inner.append(name)
            elif name == GIT:
                git = True
            else:
                known_left += name in left
                unknown.append(entry)
        if known_files != len(files) or len(inner) != len(directories) or known_left != len(left):
            self._drop_missing(record, {entry.name for entry in found})
        record.git = git
        if self._policy.rules == "git":
            if git and record.parent is not None:
                nested = self.ruling.nested(record)
                if nested is not None:
                    again = again or nested is not record.repo
                    context = nested
                    record.inside = False
            if context is not record.repo:
                again = True
                record.repo = context
            ignore = IGNORE in files or any(entry.name == IGNORE for entry in unknown)
            again = self.ruling.enter(handle, record, task.above, context, ignore, again)
        if again:
            self._ask_again(record, context, found)
            inner = [name for name in inner if name in directories]
        for name, status in changed:
            if name in files:  # else it is left out from now on
                self._want(record, name, status)
        for entry in unknown:
            if not (new_only and left.get(entry.name) in UNREADABLE):  # this very scan has tried
                self._new(handle, record, context, entry, inner)
        record.listed_again = any(left.reason != "ignored" for left in left.values())
        if new_only or (shallow and not again):
            inner = [name for name in inner if directories[name].attributes is None]
        if not inner:
            if handle != self._top:
                platform.close(handle)
            return []
        parent = _Parent(handle, len(inner))
        return [_Task(parent, directories[name], record.rules, context, again) for name in inner]

    def _attributes(self, handle: Handle, record: DirectoryRecord) -> None:
        looked = now_ns()
        status = self._platform.stat_directory(handle)
        record.racy = is_racy(status, looked)
        if record.attributes is not None and record.ctime == status.st_ctime_ns and record.ino == status.st_ino:
            return
        old = record.attributes
        number = Ino(1) if record.parent is None else (old.ino if old is not None else Ino(status.st_ino))
        mode = self._modes.get(id(record), stat.S_IMODE(status.st_mode))
        new = Attributes(
            number,
            mode,
            status.st_uid,
            status.st_gid,
            status.st_mtime_ns,
            status.st_ctime_ns,
            self._platform.xattrs(handle, ""),
        )
        if old is None:
            self.made.append(record)
        if old is None or (old.mode, old.uid, old.gid, old.xattrs) != (new.mode, new.uid, new.gid, new.xattrs):
            record.attributes = new
            record.entry = None
            if record.parent is not None:
                record.parent.touch(record.name)
        record.ctime, record.ino = status.st_ctime_ns, status.st_ino
        record.unsaved = True

    def _ask_again(self, record: DirectoryRecord, context: Context | None, found: list[os.DirEntry[str]]) -> None:
        """Ask the rules for every name that is known; what they leave out now is let go of."""
        for entry in found:
            name = entry.name
            if name in record.left:
                if record.left[name].reason == "ignored":
                    del record.left[name]  # asked for as something new
                    record.unsaved = True
                    self.scope_changed = True
            elif name in record.files:
                if self.ruling.ignores(record, context, name, False):
                    self._leave(record, name, "ignored", False)
            elif name in record.directories:
                if self.ruling.ignores(record, context, name, True):
                    self._leave(record, name, "ignored", True)
                else:
                    self.ruling.inside(record, context, record.directories[name])

    # --- names -----------------------------------------------------------------------------------------------------

    def _new(
        self,
        handle: Handle,
        record: DirectoryRecord,
        context: Context | None,
        entry: os.DirEntry[str],
        inner: list[str],
    ) -> None:
        """A name that no record of something captured has."""
        name = entry.name
        directory = entry.is_dir(follow_symlinks=False) and not _is_junction(entry)
        known = record.left.get(name)
        if known is not None and known.reason == "ignored" and known.directory == directory:
            return
        if known is not None and known.reason == "another file system" and self._is_elsewhere(handle, name):
            return
        if self.ruling.ignores(record, context, name, directory):
            self._leave(record, name, "ignored", directory)
            return
        if directory:
            record.left.pop(name, None)
            child = record.child(name)
            self.ruling.inside(record, context, child)
            inner.append(name)
            record.touch(name)
            return
        try:
            status = self._platform.stat(handle, name)
        except FileNotFoundError:
            return
        self._want(record, name, status)

    def _is_elsewhere(self, handle: Handle, name: str) -> bool:
        try:
            return self._platform.stat(handle, name).st_dev != self._device
        except OSError:
            return False

    def _want(self, record: DirectoryRecord, name: str, status: os.stat_result) -> None:
        limit = self._policy.max_bytes
        if limit and kind(status) == stat.S_IFREG and status.st_size > limit:
            self._leave(record, name, "too big", False)
            return
        self.wanted.append(Wanted(record, name, status))

    def _drop_missing(self, record: DirectoryRecord, names: set[str]) -> None:
        for name in [name for name in record.files if name not in names]:
            self._lose(record, name)
        for name in [name for name in record.directories if name not in names]:
            self._lose(record, name)
        for name in [name for name in record.left if name not in names]:
            del record.left[name]
            record.unsaved = self.scope_changed = True

    def _lose(self, record: DirectoryRecord, name: str) -> None:
        """What was captured as ``name`` is not there any more."""
        file = record.files.take(name)
        if file is not None:
            self.gone.append(file)
        directory = record.directories.pop(name, None)
        if directory is not None:
            self.gone_directories.append(directory)
            for inner in directory.all():
                self.gone.extend(inner.files.values())
                self.scope_changed = self.scope_changed or bool(inner.left)
        record.touch(name)

    def _leave(self, record: DirectoryRecord, name: str, reason: Reason, directory: bool) -> None:
        """``name`` is there and is not captured."""
        if name in record.files or name in record.directories:
            self._lose(record, name)
        left = Left(reason, directory)
        if record.left.get(name) != left:
            record.left[name] = left
            record.unsaved = self.scope_changed = True

    leave = _leave
    lose = _lose


def _is_junction(entry: os.DirEntry[str]) -> bool:
    asked = getattr(entry, "is_junction", None)
    return bool(asked is not None and asked())
