"""The second half of an apply: what was planned and staged is carried out, and rolled forward after a crash.

Owns the order of renames in the base and how each is known to have been made already:

1. *out*: objects of the base leave their places, deepest first, to the attic or to the staging directory. Nothing is
   put anywhere yet, so one whose target exists has been moved. At the end the progress says ``out``, durably.
2. *put*: what is in the staging directory comes to its place, directories before what they hold. One whose source is
   gone has been put.
3. *attributes*, of files and then of directories, deepest first: setting them twice does no harm.

What is found in the way, or changed since the plan was made, was put there by somebody else below the mount: it is
moved to the attic and told as a conflict, with where it is (``found``). Nothing is ever overwritten or removed.

Concurrency: one thread.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from store.format import Attributes, Origin
from vfs.apply.effects import names_in
from vfs.apply.stage import Grounds, clear_staged
from vfs.trees.host import parent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vfs.apply.effects import Effects, Site
    from vfs.apply.record import Fix, Out, Plan, Put, Record


TRIES = 8
"""How often something is put where somebody else puts something at the same time."""


class Runner:
    """One committed plan."""

    def __init__(self, plan: Plan, grounds: Grounds, record: Record, effects: Effects) -> None:
        self._plan = plan
        self._grounds = grounds
        self._record = record
        self._effects = effects
        self.conflicts: list[bytes] = []
        """Paths at which somebody else changed something after the plan was made."""
        self.found: dict[bytes, Origin] = {}
        """Where what they made of it is now, in terms of the new base, as far as it is anywhere."""
        self.stamps: dict[int, os.stat_result] = {}
        """What each inode was, by the host's number, after the last thing that was done to it here."""

    def run(self) -> list[bytes]:
        """Carry the plan out from wherever it stands. Returns the conflicts beyond those in the plan, by path.

        Raises NoSpaceError or OSError; then it can be run again.
        """
        progress = self._record.progress(self._plan)
        self.conflicts = [paths[0] for word, paths in progress if word == b"conflict"]
        self.found = {paths[0]: Origin(int(paths[1]), paths[2]) for word, paths in progress if word == b"found"}
        words = {word for word, _ in progress}
        if b"done" in words:
            return self.conflicts
        base = self._grounds.base
        if b"out" not in words:
            for out in self._plan.outs:
                self._out(out)
            self._effects.sync(base)
            self._effects.sync(self._grounds.attic)
            self._record.note(self._plan, b"out", sync=True)
        base.forget()
        for put in self._plan.puts:
            self._put(put)
        base.forget()
        for fix in (*self._plan.fixes, *self._plan.directories):
            self._fix(fix)
        self._find_late()
        self._effects.sync(base)
        self._record.note(self._plan, b"done", sync=True)
        return self.conflicts

    def _conflict(self, path: bytes) -> None:
        if path not in self.conflicts:
            self.conflicts.append(path)
            self._record.note(self._plan, b"conflict", path)

    def _find(self, path: bytes, place: Origin) -> None:
        """``path`` is in conflict, and what was found there is, or is about to come to, ``place``."""
        self._conflict(path)
        if self.found.get(path) != place:
            self.found[path] = place
            self._record.note(self._plan, b"found", path, b"%d" % place.tree, place.path)

    def _out(self, out: Out) -> None:
        base = self._grounds.base
        to_attic = out.where == "attic"
        site, target = (self._grounds.attic, out.target) if to_attic else (base, self._grounds.stage(out.target))
        if not self._effects.finish_move(base, out.path, site, target) and site.stat(target) is None:
            try:
                self._effects.move(base, out.path, site, target)
            except (FileNotFoundError, NotADirectoryError):
                base.forget()
                if base.stat(out.path) is not None:
                    raise
                self._conflict(out.path)  # it was removed below the mount: there is nothing to keep
                return
        status = site.stat(target)  # looked at only now: here it is out of reach, except for who has it open
        if status is None or not _is_other(status, out.size, out.mtime_ns):
            return
        if to_attic:
            self._find(out.path, Origin(self._plan.attic, out.target))
        elif out.target.startswith(b"t"):  # the copy in the attic is of what it was before
            self._keep_foreign(out.path, target)
        else:
            self._find(out.path, Origin(0, next(put.path for put in self._plan.puts if put.source == out.target)))

    def _keep_foreign(self, path: bytes, place: bytes | None = None) -> None:
        """Move what somebody else put at ``path`` (it is at ``place`` now) to the attic."""
        attic = self._grounds.attic
        number = 0
        while attic.stat(b"c%d" % number) is not None:
            number += 1
        self._find(path, Origin(self._plan.attic, b"c%d" % number))
        self._effects.move(self._grounds.base, path if place is None else place, attic, b"c%d" % number)

    def _find_late(self) -> None:
        """What somebody changed in directories that were displaced, after they had been looked through."""
        for out in self._plan.outs:
            if out.where == "attic" and out.size < 0:
                for place, path in self._late(self._grounds.attic, out.target, out.path):
                    self._find(path, Origin(self._plan.attic, place))
        self._keep_late()

    def _keep_late(self) -> None:
        """The same in what was copied and will be removed."""
        base = self._grounds.base
        for out in self._plan.outs:
            if out.where == "stage" and out.target.startswith(b"t"):
                left = self._grounds.stage(out.target)
                status = base.stat(left)
                if status is not None and _is_other(status, out.size, out.mtime_ns):
                    self._keep_foreign(out.path, left)
                for place, path in list(self._late(base, left, out.path)):
                    self._keep_foreign(path, place)

    def _late(self, site: Site, left: bytes, path: bytes) -> Iterator[tuple[bytes, bytes]]:
        """(where it is now, where it was) of what was changed, since the plan was begun, in the directory ``left``,
        which was at ``path``; nothing if it is no directory.
        """
        status = site.stat(left)
        if status is None or not stat.S_ISDIR(status.st_mode):
            return
        for name in names_in(site, left):
            place = left + b"/" + name
            status = site.stat(place)
            if status is None:
                continue
            newer = min(status.st_ctime_ns, status.st_mtime_ns) >= self._plan.began_ns
            if newer and not stat.S_ISDIR(status.st_mode):
                yield place, path + b"/" + name
            yield from self._late(site, place, path + b"/" + name)

    def _put(self, put: Put) -> None:
        for _ in range(TRIES):
            try:
                self._try_put(put)
                return
            except (FileExistsError, FileNotFoundError):  # somebody was faster; what is there now is looked at
                self._grounds.base.forget()
        self._try_put(put)

    def _try_put(self, put: Put) -> None:
        base = self._grounds.base
        source = self._grounds.stage(put.source)
        if self._effects.finish_move(base, source, base, put.path):
            return
        status = base.stat(source)
        if status is None:
            return
        there = base.stat(put.path)
        if put.link and there is not None and (there.st_dev, there.st_ino) == (status.st_dev, status.st_ino):
            return
        if there is not None:
            self._keep_foreign(put.path)
        self._make_way(parent(put.path)[0])
        try:
            self._place(put, source)
        except FileNotFoundError:  # the directory was removed while we held it open
            base.forget()
            self._make_way(parent(put.path)[0])
            self._place(put, source)
        self._stamp(put.path)

    def _stamp(self, path: bytes) -> None:
        status = self._grounds.base.stat(path)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            self.stamps[status.st_ino] = status

    def _place(self, put: Put, source: bytes) -> None:
        base = self._grounds.base
        if put.link:
            self._effects.link(base, source, base, put.path)
        else:
            self._effects.move(base, source, base, put.path)

    def _make_way(self, path: bytes) -> None:
        """The directory ``path`` is there, unless somebody removed it or replaced it below the mount."""
        base = self._grounds.base
        if not path:
            return
        try:
            base.at(path + b"/x")
            return
        except OSError:
            pass
        self._make_way(parent(path)[0])
        if base.stat(path) is not None:
            self._keep_foreign(path)
        self._conflict(path)
        self._effects.mkdir(base, path)

    def _fix(self, fix: Fix) -> None:
        base = self._grounds.base
        status = base.stat(fix.path)
        if status is not None and stat.S_IFMT(status.st_mode) == fix.file_type:
            wanted = fix.attributes
            if _is_other(status, fix.size, fix.mtime_ns) and _is_other(status, fix.size, wanted.mtime_ns):
                self._find(fix.path, Origin(0, fix.path))
                wanted = _with_mtime(wanted, status.st_mtime_ns)
            try:
                self._effects.set_attributes(base, fix.path, wanted)
                self._stamp(fix.path)
                return
            except FileNotFoundError:
                base.forget()
        self._conflict(fix.path)

    def finish(self, remember: Callable[[], None]) -> None:
        """Everything is where it belongs and the generation is recorded: clear away what was needed for it."""
        base = self._grounds.base
        base.forget()
        self._keep_late()
        self._effects.remove_tree(base, self._plan.stage)
        for fix in self._plan.directories:
            if not fix.path:
                self._effects.set_mtime(base, b"", fix.attributes.mtime_ns)
        self._effects.sync(base)
        remember()
        self._record.end(self._plan)


def _is_other(status: os.stat_result, size: int, mtime_ns: int) -> bool:
    """True if a regular file (``size`` is not -1) is not what it was."""
    return size >= 0 and (status.st_size, status.st_mtime_ns) != (size, mtime_ns)


def _with_mtime(a: Attributes, mtime_ns: int) -> Attributes:
    return Attributes(a.ino, a.mode, a.uid, a.gid, mtime_ns, a.ctime_ns, a.xattrs)


def abort(grounds: Grounds, mtime_ns: int, record: Record, effects: Effects) -> None:
    """Take back an apply that was not committed; ``mtime_ns`` is the top directory's time before it."""
    clear_staged(grounds, mtime_ns, effects)
    record.end(None)
