"""Carrying out a plan on the real directory: stage everything, then move, by rename, through open directories.

Owns each effect on the workspace and its order; every effect is announced by ``step``, so that tests can stop after
any. New files are complete, with their attributes, under a name of ours in the nearest directory that stays, before the
first effect on anything of the user's. Nothing is opened or renamed through a symbolic link, and nothing is removed or
replaced that is not, at that moment, what was planned: that is kept, and told.

Does not own the record that makes it resumable (``restoring``). Concurrency: one thread.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from store.disk import FULL, no_space
from store.format import Attributes, Directory, Regular, Special, Symlink
from store.refs import Ino
from vfs.errors import FsError
from vfs.scan.following import Following
from vfs.scan.plan import Plan, Put
from vfs.scan.platform import Handle, Platform
from vfs.scan.statindex import StatIndex
from vfs.trees.contents import Contents
from vfs.trees.view import Present, join
from vfs.workspace import ConflictError, Kept

T = TypeVar("T")

KEPT_OPEN = 64
HERE = "."
"""The workspace's directory itself, in itself."""
CHANGED = "it changed while the restore was under way"


class Executor:
    """One restore of one workspace. ``prefix`` begins every name that it gives to what it stages."""

    def __init__(
        self, platform: Platform, top: Handle, index: StatIndex, contents: Contents, plan: Plan, prefix: str
    ) -> None:
        self.kept: list[Kept] = []
        self.slots: list[tuple[bytes, bytes, bytes]] = []
        """(source, slot, final path) of each move; slots are paths."""
        self._platform = platform
        self._top = top
        self._index = index
        self._records = Following(index)
        self._contents = contents
        self._plan = plan
        self._prefix = prefix
        self._number = 0
        self._open: OrderedDict[bytes, Handle] = OrderedDict()
        self._staged: dict[bytes, bytes] = {}
        self._opened_up: dict[bytes, int] = {}
        self._doomed = {*plan.rmdirs, *(source for source, _ in plan.moves)}
        self._refused: dict[bytes, list[str]] = {}
        self._touched: dict[int, int] = {}
        """Inodes of the user's that were given a further name, and the change time that this left."""
        self._fixed: dict[int, int] = {}
        """Inodes that were given their attributes, and the change time that this left."""

    def step(self) -> None:
        """Called before each effect."""

    # --- places ----------------------------------------------------------------------------------------------------

    def _at(self, directory: bytes) -> Handle:
        """The open directory, reached without following a link. Raises OSError."""
        handle = self._open.get(directory)
        if handle is not None:
            self._open.move_to_end(directory)
            return handle
        if not directory:
            return self._top
        head, _, name = directory.rpartition(b"/")
        handle = self._platform.open_directory(self._at(head), os.fsdecode(name))
        self._open[directory] = handle
        while len(self._open) > KEPT_OPEN:
            self._platform.close(self._open.popitem(last=False)[1])
        return handle

    def forget(self) -> None:
        """Close all directories."""
        while self._open:
            self._platform.close(self._open.popitem()[1])

    def _do(self, path: bytes, effect: Callable[[Handle, str], T]) -> T:
        """One effect on ``path``; a directory of ours that its own mode closes is opened up for it."""
        self.step()
        head, _, last = path.rpartition(b"/")
        name = os.fsdecode(last) or HERE
        try:
            try:
                return effect(self._at(head), name)
            except PermissionError:
                if not self._open_up(head):
                    raise
                return effect(self._at(head), name)
        except OSError as error:
            if error.errno in FULL:
                raise no_space(error, "write into the workspace") from error
            raise

    def _open_up(self, directory: bytes) -> bool:
        parts = directory.split(b"/") if directory else []
        changed = False
        for depth in range(len(parts) + 1):
            at = b"/".join(parts[:depth])
            if at in self._opened_up:
                continue
            head, _, name = at.rpartition(b"/")
            mode = self._platform.open_up(self._at(head), os.fsdecode(name) or HERE)
            if mode is not None and mode & 0o700 != 0o700:
                self._opened_up[at] = mode
                changed = True
        return changed

    def close_again(self) -> None:
        """Give back what was opened up; what is gone needs nothing."""
        for at, mode in reversed(self._opened_up.items()):
            head, _, name = at.rpartition(b"/")
            try:
                self._platform.close_again(self._at(head), os.fsdecode(name) or HERE, mode)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    raise
        self._opened_up.clear()

    def _place(self, path: bytes) -> bytes:
        """A new name in the nearest directory above ``path`` that is there now and stays."""
        head = path.rpartition(b"/")[0]
        place = b""
        at = b""
        for name in head.split(b"/") if head else ():
            at = join(at, name)
            if at in self._doomed or self._index.directory(at) is None:
                break
            place = at
        self._number += 1
        return join(place, os.fsencode(f"{self._prefix}{self._number}"))

    def places(self) -> list[bytes]:
        """The directories in which things of ours may stand: to be known before the first is made."""
        paths = [put.path for put in self._plan.puts] + [source for source, _ in self._plan.moves]
        number = self._number
        found = {self._place(path).rpartition(b"/")[0] for path in paths}
        self._number = number
        return sorted(found)

    # --- staging ---------------------------------------------------------------------------------------------------

    def stage(self) -> None:
        """Write all that is new. Raises NoSpaceError or OSError, and then ``unstage`` leaves no trace."""
        groups: dict[Ino, bytes] = {}
        for put in self._plan.puts:
            temporary = self._place(put.path)
            anchor = None if put.group is None else groups.get(put.group)
            if anchor is None and put.group is not None:
                anchor = self._plan.anchors.get(put.group)
            self._staged[put.path] = temporary
            if anchor is not None:
                self._do(temporary, lambda at, name, anchor=anchor: self._link(anchor, at, name))  # type: ignore[misc]
            else:
                self._make(temporary, put)
            if put.group is not None:
                groups.setdefault(put.group, temporary)
        for source, path in self._plan.moves:
            self.slots.append((source, self._place(source), path))

    def _link(self, anchor: bytes, at: Handle, name: str) -> None:
        head, _, known = anchor.rpartition(b"/")
        if not self._is_as_known(anchor) and anchor not in self._staged.values():
            raise changed_meanwhile(anchor)
        self._platform.link(self._at(head), os.fsdecode(known), at, name)
        status = self._platform.stat(at, name)
        self._touched[status.st_ino] = status.st_ctime_ns

    def _make(self, temporary: bytes, put: Put) -> None:
        entry = put.entry
        if isinstance(entry, Regular):
            self._do(temporary, lambda at, name: self._write(at, name, entry))
        elif isinstance(entry, Symlink):
            self._do(temporary, lambda at, name: self._platform.symlink(entry.target, at, name, False))
        else:
            assert isinstance(entry, Special)
            mode = entry.file_type | entry.attributes.mode
            self._do(temporary, lambda at, name: self._platform.mknod(at, name, mode, entry.rdev))
        self._set(put.path, temporary, entry.attributes, False)

    def _write(self, at: Handle, name: str, entry: Regular) -> None:
        fd = self._platform.create(at, name)
        try:
            self._contents.copy_to(entry.content, fd)
        except FsError as error:
            raise OSError(error.errno, str(error)) from error
        finally:
            os.close(fd)

    def _set(self, path: bytes, at_path: bytes, attributes: Attributes, times: bool) -> None:
        refused = self._do(at_path, lambda at, name: self._platform.set_attributes(at, name, attributes, times))
        if refused:
            self._refused[path] = refused

    def unstage(self) -> None:
        """Remove all that was staged."""
        for temporary in self._staged.values():
            try:
                self._do(temporary, self._platform.unlink)
            except FileNotFoundError:
                pass
        self._staged.clear()

    # --- the present -----------------------------------------------------------------------------------------------

    def revalidate(self) -> None:
        """Raise ConflictError unless everything that will be touched is what was planned with."""
        paths = [self._plan.before(put.path) for put in self._plan.puts if put.replaces] + self._plan.unlinks
        paths += [self._plan.before(path) for path, _ in self._plan.fixes] + [source for source, _ in self._plan.moves]
        paths += self._plan.anchors.values()
        moved = {source for source, _ in self._plan.moves}
        for path in paths:
            if not self._is_as_known(path):
                raise changed_meanwhile(path)
        for put in self._plan.puts:
            if self._plan.before(put.path) != put.path:
                continue
            free = put.replaces or put.path in self._plan.unlinks or put.path in moved or put.path in self._doomed
            if not free and not any(put.path.startswith(one + b"/") for one in self._doomed) and self._exists(put.path):
                raise ConflictError(
                    f"{os.fsdecode(put.path)} has appeared while the restore was worked out; nothing was done",
                    hint="try again, or look at the preview",
                )

    def _status(self, path: bytes) -> os.stat_result | None:
        head, _, name = path.rpartition(b"/")
        try:
            return self._platform.stat(self._at(head), os.fsdecode(name) or HERE)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return None
            raise

    def _exists(self, path: bytes) -> bool:
        return self._status(path) is not None

    def _is_as_known(self, path: bytes) -> bool:
        """True if what is at ``path`` is what the records say."""
        status = self._status(path)
        if status is None:
            return False
        if self._index.directory(path) is not None:
            return stat.S_ISDIR(status.st_mode)
        record = self._index.file(path)
        if record is None:
            return False
        # Links to it that this restore makes or removes change nothing but its change time.
        same_time = record.linked or status.st_ctime_ns in (record.ctime, self._touched.get(record.ino))
        return same_time and (record.mtime, record.ino, record.size) == (
            status.st_mtime_ns,
            status.st_ino,
            status.st_size,
        )

    # --- moving ----------------------------------------------------------------------------------------------------

    def move(self) -> None:
        """All effects on what is the user's; the records follow each."""
        plan = self._plan
        # Deepest first: what a directory loses goes before it moves, and what moves out of one before it is removed.
        leaving: list[tuple[bytes, Callable[[bytes], None]]] = [(path, self._unlink) for path in plan.unlinks]
        leaving += [(path, self._rmdir) for path in plan.rmdirs]
        leaving += [(source, partial(self._rename, slot)) for source, slot, _ in self.slots]
        for path, leave in sorted(leaving, key=lambda row: -row[0].count(b"/")):
            with _naming(path):
                leave(path)
        arriving: list[tuple[bytes, Directory | Put | bytes]] = [*plan.mkdirs]
        arriving += [(path, slot) for _, slot, path in self.slots]
        arriving += [(put.path, put) for put in plan.puts]  # after what moved to the same path
        for path, what in sorted(arriving, key=lambda row: (row[0].count(b"/"), row[0])):
            with _naming(path):
                if isinstance(what, Directory):
                    self._mkdir(path, what)
                elif isinstance(what, Put):
                    self._put(what)
                else:
                    self._arrive(path, what)
        for path, entry in plan.fixes:
            if not isinstance(entry, Directory):
                with _naming(path):
                    self._fix(path, entry)
        directories = plan.mkdirs + [(path, one) for path, one in plan.fixes if isinstance(one, Directory)]
        for path, directory in sorted(directories, key=lambda row: -row[0].count(b"/")):
            with _naming(path):
                self._fix_directory(path, directory)
        self.close_again()
        self._staged.clear()
        for path in self._plan.anchors.values():
            found = self._index.find(path)
            record = None if found is None else found[0].files.get(found[1])
            if record is not None:
                self._record(path, record.entry)
        for path, refused in self._refused.items():
            self.kept.append(Kept(os.fsdecode(path), "; ".join(refused)))

    def _keep(self, path: bytes, reason: str) -> None:
        self.kept.append(Kept(os.fsdecode(path), reason))

    def _rename(self, slot: bytes, source: bytes) -> None:
        if not self._is_as_known(source):
            self._keep(source, CHANGED)
            return
        self._move(source, slot)
        self._records.leave(source, slot)

    def _move(self, source: bytes, path: bytes) -> None:
        """rename(2), also of a directory that an overlay's lower layer has, which it refuses: then piece by piece."""
        head, _, new = path.rpartition(b"/")

        def effect(at: Handle, name: str) -> None:
            self._platform.rename(at, name, self._at(head), os.fsdecode(new))

        try:
            self._do(source, effect)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._move_pieces(source, path)
        for known in [known for known in self._open if known == source or known.startswith(source + b"/")]:
            self._platform.close(self._open.pop(known))

    def _move_pieces(self, source: bytes, path: bytes) -> None:
        status = self._status(source)
        if status is None or not stat.S_ISDIR(status.st_mode):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), os.fsdecode(source))
        try:
            self._do(path, self._platform.mkdir)
        except FileExistsError:
            pass
        for entry in sorted(self._platform.entries(self._at(source)), key=lambda entry: entry.name):
            name = os.fsencode(entry.name)
            self._move(join(source, name), join(path, name))
        xattrs = self._platform.xattrs(self._at(source), "")
        old = Attributes(
            Ino(0),
            stat.S_IMODE(status.st_mode),
            status.st_uid,
            status.st_gid,
            status.st_mtime_ns,
            0,
            xattrs,
        )
        self._do(path, lambda at, name: self._platform.set_attributes(at, name, old, True))
        self._do(source, self._platform.rmdir)

    def _arrive(self, path: bytes, slot: bytes) -> None:
        if not self._exists(slot):
            return
        if self._exists(path):
            self._keep(
                path, "something is there that was not captured; what should be there is at " + os.fsdecode(slot)
            )
            return
        self._move(slot, path)
        self._records.arrive(slot, path, self._status(path))

    def _unlink(self, path: bytes) -> None:
        if not self._is_as_known(path):
            if self._exists(path):
                self._keep(path, CHANGED)
            return
        self._do(path, self._platform.unlink)
        self._records.forget(path)

    def _rmdir(self, path: bytes) -> None:
        handle = self._open.pop(path, None)
        if handle is not None:
            self._platform.close(handle)
        try:
            self._do(path, self._platform.rmdir)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.ENOTDIR):
                raise
            self._keep(path, "the directory stays: it holds what was not captured, or is in use")
            return
        self._records.forget(path)

    def _mkdir(self, path: bytes, entry: Directory) -> None:
        try:
            self._do(path, self._platform.mkdir)
        except FileExistsError:
            status = self._status(path)
            if status is None or not stat.S_ISDIR(status.st_mode):
                self._keep(path, "something is there that was not captured")
                return
        self._records.made(path, entry)

    def _put(self, put: Put) -> None:
        temporary = self._staged[put.path]
        if put.replaces:
            if not self._is_as_known(put.path):
                self._keep(put.path, CHANGED)
                self._do(temporary, self._platform.unlink)
                return
        elif self._exists(put.path):
            self._keep(put.path, "something is there that was not captured")
            self._do(temporary, self._platform.unlink)
            return
        head, _, name = put.path.rpartition(b"/")
        try:
            target = self._at(head)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            self._keep(put.path, "its directory could not be made: something is there that was not captured")
            self._do(temporary, self._platform.unlink)
            return

        def effect(at: Handle, old: str) -> None:
            self._platform.rename(at, old, target, os.fsdecode(name))

        self._do(temporary, effect)
        self._record(put.path, put.entry)

    def _fix(self, path: bytes, entry: Present) -> None:
        if not self._is_fixed(path):
            if not self._is_as_known(path):
                self._keep(path, CHANGED)
                return
            self._set(path, path, entry.attributes, True)
        self._record(path, entry)
        record = self._index.file(path)
        if record is not None:
            self._fixed[record.ino] = record.ctime

    def _is_fixed(self, path: bytes) -> bool:
        """True if the file at ``path`` has its attributes already, set under another name of it."""
        status, record = self._status(path), self._index.file(path)
        if status is None or record is None or record.ino != status.st_ino:
            return False
        return self._fixed.get(status.st_ino) == status.st_ctime_ns

    def _fix_directory(self, path: bytes, entry: Directory) -> None:
        status = self._status(path)
        if status is None or not stat.S_ISDIR(status.st_mode):
            return
        self._opened_up.pop(path, None)
        self._set(path, path, entry.attributes, False)
        record = self._index.directory(path)
        if record is not None:
            record.attributes = entry.attributes
            record.entry = None
            if record.parent is not None:
                record.parent.touch(record.name)
            now = self._status(path)
            if now is not None:
                record.ctime, record.ino = 0, now.st_ino
            record.unsaved = True

    def _record(self, path: bytes, entry: Present) -> None:
        status = self._status(path)
        if status is not None and self._records.put(path, entry, status):
            self._touched[status.st_ino] = status.st_ctime_ns  # other names of it are as known with that time, too


@contextmanager
def _naming(path: bytes) -> Iterator[None]:
    """Let an error speak of ``path``, not of a name of ours that it was to come from."""
    try:
        yield
    except OSError as error:
        error.filename = os.fsdecode(path)
        raise


def changed_meanwhile(path: bytes) -> ConflictError:
    """What was there when the restore was worked out is not there now."""
    return ConflictError(
        f"{os.fsdecode(path)} changed while the restore was worked out; nothing was done",
        hint="try again, or look at the preview",
    )
