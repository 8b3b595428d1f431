"""The second half of an apply: what was planned and staged is carried out, and rolled forward after a crash.

Owns the order of renames in the base and how each is known to have been made already:

1. *out*: objects of the base leave their places, deepest first, to the attic or to the staging directory. Nothing is
   put anywhere yet, so one whose target exists has been moved. At the end the progress says ``out``, durably.
2. *put*: what is in the staging directory comes to its place, directories before what they hold. One whose source is
   gone has been put.
3. *attributes*, of files and then of directories, deepest first: setting them twice does no harm.

What is found in the way, or changed since the plan was made, was put there by somebody else below the mount: it is
moved to the attic and told as a conflict. Nothing is ever overwritten or removed.

Concurrency: one thread.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from vfs.apply.stage import Grounds, clear_staged
from vfs.trees.host import parent

if TYPE_CHECKING:
    from collections.abc import Callable

    from vfs.apply.effects import Effects
    from vfs.apply.record import Fix, Out, Plan, Put, Record


class Runner:
    """One committed plan."""

    def __init__(self, plan: Plan, grounds: Grounds, record: Record, effects: Effects) -> None:
        self._plan = plan
        self._grounds = grounds
        self._record = record
        self._effects = effects
        self.conflicts: list[bytes] = []

    def run(self) -> list[bytes]:
        """Carry the plan out from wherever it stands. Returns the conflicts beyond those in the plan, by path.

        Raises NoSpaceError or OSError; then it can be run again.
        """
        progress = self._record.progress(self._plan)
        self.conflicts = [path for word, path in progress if word == b"conflict"]
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
        self._effects.sync(base)
        self._record.note(self._plan, b"done", sync=True)
        return self.conflicts

    def _conflict(self, path: bytes) -> None:
        if path not in self.conflicts:
            self.conflicts.append(path)
            self._record.note(self._plan, b"conflict", path)

    def _out(self, out: Out) -> None:
        base = self._grounds.base
        to_attic = out.where == "attic"
        site, target = (self._grounds.attic, out.target) if to_attic else (base, self._grounds.stage(out.target))
        if self._effects.finish_move(base, out.path, site, target) or site.stat(target) is not None:
            return
        status = base.stat(out.path)
        if status is None:
            self._conflict(out.path)  # it was removed below the mount: there is nothing to keep
            return
        if out.size >= 0 and (status.st_size, status.st_mtime_ns) != (out.size, out.mtime_ns):
            self._conflict(out.path)
            if out.target.startswith(b"t"):  # the copy in the attic is of what it was before
                self._keep_foreign(out.path)
                return
        self._effects.move(base, out.path, site, target)

    def _keep_foreign(self, path: bytes) -> None:
        """Move what somebody else put at ``path`` to the attic."""
        attic = self._grounds.attic
        number = 0
        while attic.stat(b"c%d" % number) is not None:
            number += 1
        self._effects.move(self._grounds.base, path, attic, b"c%d" % number)

    def _put(self, put: Put) -> None:
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
            self._conflict(put.path)
            self._keep_foreign(put.path)
        self._make_way(parent(put.path)[0])
        try:
            self._place(put, source)
        except FileNotFoundError:  # the directory was removed while we held it open
            base.forget()
            self._make_way(parent(put.path)[0])
            self._place(put, source)

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
            try:
                self._effects.set_attributes(base, fix.path, fix.attributes)
                return
            except FileNotFoundError:
                base.forget()
        self._conflict(fix.path)

    def finish(self, remember: Callable[[], None]) -> None:
        """Everything is where it belongs and the generation is recorded: clear away what was needed for it."""
        base = self._grounds.base
        base.forget()
        self._effects.remove_tree(base, self._plan.stage)
        for fix in self._plan.directories:
            if not fix.path:
                self._effects.set_mtime(base, b"", fix.attributes.mtime_ns)
        self._effects.sync(base)
        remember()
        self._record.end(self._plan)


def abort(grounds: Grounds, mtime_ns: int, record: Record, effects: Effects) -> None:
    """Take back an apply that was not committed; ``mtime_ns`` is the top directory's time before it."""
    clear_staged(grounds, mtime_ns, effects)
    record.end(None)
