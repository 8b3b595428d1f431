"""Chance drives a served workspace and its plain model; they must never differ.

``PLYFS_MODEL_EXAMPLES`` and ``PLYFS_MODEL_STEPS`` make long runs; ``PLYFS_MODEL_SEED`` makes other ones.
"""

from __future__ import annotations

import os
import stat
import sys

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.model.bases import NAMES
from tests.model.machine import Rig
from tests.model.plain import DIR, LNK, REG, walk

EXAMPLES = int(os.environ.get("PLYFS_MODEL_EXAMPLES", "120"))
STEPS = int(os.environ.get("PLYFS_MODEL_STEPS", "40"))
SEED = os.environ.get("PLYFS_MODEL_SEED")

few = st.integers(0, 15)
names = st.integers(0, len(NAMES) + 7)
offsets = st.sampled_from([0, 1, 60, 200, 250, 300, 1024, 2500])
lengths = st.sampled_from([1, 10, 100, 300, 1500])
kinds = st.sampled_from([REG, REG, REG, DIR, DIR, LNK, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR])


class Machine(RuleBasedStateMachine):
    rig: Rig | None = None

    @initialize(base=st.sampled_from([0, 1, 2, 2, 3, 3, 4, *range(5, 25)]), eager=st.booleans())
    def start(self, base, eager):
        self.eager = eager
        self.rig = Rig(base)

    def teardown(self):
        if self.rig is not None:
            try:
                if sys.exc_info()[0] is None:  # what follows a failure is of no interest
                    self.rig.check()
                    self.rig.check_checkpoints()
                    self.rig.check_sealed()
            finally:
                self.rig.close()

    def after(self):
        if self.eager:
            self.rig.check()

    def directory(self, number):
        found = self.rig.directories()
        return found[number % len(found)]

    def name(self, node, number):
        """One that is there, mostly, or may be."""
        there = sorted(node.entries)
        if number >= len(NAMES) and there:
            return there[number % len(there)]
        return NAMES[number % len(NAMES)]

    def file(self, number):
        found = self.rig.files()
        return found[number % len(found)] if found else None

    # names

    @rule(d=few, n=names, kind=kinds, mode=st.sampled_from([0o644, 0o700, 0o2755, 0o0]), uid=st.sampled_from([0, 7]))
    def make(self, d, n, kind, mode, uid):
        path, node = self.directory(d)
        self.rig.make(path, self.name(node, n), kind, mode, uid)
        self.after()

    @rule(f=few, d=few, n=names)
    def link(self, f, d, n):
        found = [*self.rig.leaves(), *((None, node) for node in self.rig.open if node.serial in self.rig.unnamed)]
        if found:
            path, node = self.directory(d)
            self.rig.link(*found[f % len(found)], path, self.name(node, n))
            self.after()

    @rule(d=few, n=names, directory=st.booleans())
    def remove(self, d, n, directory):
        path, node = self.directory(d)
        self.rig.remove(path, self.name(node, n), directory)
        self.after()

    @rule(d=few, n=names, d2=few, n2=names, flags=st.sampled_from([0, 0, 0, 1, 2]))
    def rename(self, d, n, d2, n2, flags):
        path, node = self.directory(d)
        other_path, other = self.directory(d2)
        self.rig.rename(path, self.name(node, n), other_path, self.name(other, n2), flags)
        self.after()

    @rule(d=few)
    def tmpfile(self, d):
        self.rig.tmpfile(self.directory(d)[0])

    @rule(d=few)
    def remove_all(self, d):
        """rm -r of what is in a directory."""
        top, node = self.directory(d)
        for path, found in reversed(list(walk(node, top))):
            if found is not node:
                above, _, name = path.rpartition(b"/")
                self.rig.remove(above, name, found.kind == DIR)
        self.after()

    # content and attributes

    @rule(f=few, offset=offsets, length=lengths, kill=st.booleans())
    def write(self, f, offset, length, kill):
        if file := self.file(f):
            self.rig.write(*file, offset, self.rig.random.randbytes(length), kill)
            self.after()

    @rule(f=few, size=st.sampled_from([0, 0, 1, 100, 300, 1024, 4000]))
    def truncate(self, f, size):
        if file := self.file(f):
            self.rig.truncate(*file, size)
            self.after()

    @rule(f=few, offset=offsets, length=lengths, zero=st.booleans(), keep=st.booleans())
    def hole(self, f, offset, length, zero, keep):
        if file := self.file(f):
            self.rig.hole(*file, offset, length, zero, keep)
            self.after()

    @rule(f=few, offset=offsets, g=few, to=offsets, length=lengths)
    def copy(self, f, offset, g, to, length):
        if file := self.file(f):
            self.rig.copy(file, offset, self.file(g), to, length)
            self.after()

    @rule(
        f=few,
        mode=st.sampled_from([None, 0o600, 0o755, 0o6755, 0o0]),
        uid=st.sampled_from([None, 3]),
        mtime=st.sampled_from([None, 1_000_000_001, 1_000_000_002]),
    )
    def set(self, f, mode, uid, mtime):
        found = [*((path, node) for path, node in walk(self.rig.plain.root) if node.kind != LNK), *self._unlinked()]
        self.rig.set(*found[f % len(found)], mode, uid, None, mtime)
        self.after()

    def _unlinked(self):
        return [(None, node) for node in self.rig.open if not self.rig.plain.has_name(node)]

    @rule(f=few, name=st.sampled_from([b"user.a", b"user.one"]), value=st.sampled_from([None, b"", b"v" * 100]))
    def xattr(self, f, name, value):
        found = [*walk(self.rig.plain.root), *self._unlinked()]
        self.rig.xattr(*found[f % len(found)], name, value)
        self.after()

    # the kernel

    @rule(f=few)
    def look(self, f):
        found = list(walk(self.rig.plain.root))
        self.rig.look(*found[f % len(found)])

    @rule()
    def look_everywhere(self):
        for path, node in walk(self.rig.plain.root):
            self.rig.look(path, node)

    @rule(f=few)
    def hold(self, f):
        found = [(path, node) for path, node in walk(self.rig.plain.root) if path]
        if found:
            self.rig.hold(*found[f % len(found)])

    @precondition(lambda self: self.rig is not None and self.rig.open)
    @rule(f=few)
    def let_go(self, f):
        self.rig.let_go(f % len(self.rig.open))

    @rule(which=few)
    def shrink(self, which):
        self.rig.kernel.shrink(lambda count: which % count)
        self.after()

    @rule()
    def shrink_all(self):
        self.rig.kernel.shrink_all()
        self.after()

    @rule(d=few)
    def begin_reading(self, d):
        self.rig.begin_reading(*self.directory(d))

    @precondition(lambda self: self.rig is not None and self.rig.cursors)
    @rule(which=few)
    def read_on(self, which):
        self.rig.read_on(which % len(self.rig.cursors))

    # checkpoints and moves

    @rule()
    def fold(self):
        self.rig.fold()

    @rule(seal=st.booleans())
    def checkpoint(self, seal):
        self.rig.checkpoint()
        if seal:
            self.rig.world.seal_all()
        self.after()

    @rule()
    def seal_one(self):
        self.rig.seal_one()
        self.after()

    @rule(count=st.sampled_from([1, 1, 2, 3]))
    def undo(self, count):
        self.rig.undo(count)
        self.rig.check()

    @rule(count=st.sampled_from([1, 1, 2]))
    def redo(self, count):
        self.rig.redo(count)
        self.rig.check()

    @rule(which=few, with_git=st.booleans())
    def restore(self, which, with_git):
        self.rig.restore(self.chosen(which), with_git)
        self.rig.check()

    @rule(which=few, paths=st.lists(few, min_size=1, max_size=2))
    def restore_paths(self, which, paths):
        id = self.chosen(which)
        there = sorted({path for path, _ in [*walk(self.rig.snaps[id]), *walk(self.rig.plain.root)]})
        self.rig.restore_paths(id, sorted({there[path % len(there)] for path in paths}))
        self.rig.check()

    def chosen(self, which):
        ids = list(self.rig.snaps)
        return ids[which % len(ids)]

    # the daemon's life

    @rule()
    def barrier(self):
        self.rig.barrier()

    @rule()
    def crash(self):
        self.rig.crash()
        self.rig.check()

    @rule()
    def reopen(self):
        self.rig.reopen()
        self.rig.check()


Machine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    database=None,
    derandomize=SEED is None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
    print_blob=False,
)


@pytest.mark.timeout(0 if EXAMPLES > 1000 else 600)
class TestMachine(Machine.TestCase):
    pass


if SEED is not None:
    TestMachine = seed(int(SEED))(TestMachine)  # type: ignore[misc]
