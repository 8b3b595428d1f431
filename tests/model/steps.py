"""The steps that chance can take in any workspace, whichever way it is served: what users do and what plyfs does.

``Steps`` has them for every ``tests.model.story.Story``; a machine for one of them starts it and adds what only it has.
"""

from __future__ import annotations

import os
import stat
import sys

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.model.bases import NAMES
from tests.model.plain import DIR, LNK, REG, walk

EXAMPLES = int(os.environ.get("PLYFS_MODEL_EXAMPLES", "120"))
STEPS = int(os.environ.get("PLYFS_MODEL_STEPS", "40"))
SEED = os.environ.get("PLYFS_MODEL_SEED")

few = st.integers(0, 15)
names = st.integers(0, len(NAMES) + 7)
offsets = st.sampled_from([0, 1, 60, 200, 250, 300, 1024, 2500])
lengths = st.sampled_from([1, 10, 100, 300, 1500])
kinds = st.sampled_from([REG, REG, REG, DIR, DIR, LNK, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR])
bases = st.sampled_from([0, 1, 2, 2, 3, 3, 4, *range(5, 25)])


class Steps(RuleBasedStateMachine):
    """``rig`` is the workspace and its model; ``eager`` compares after every step, not only after moves."""

    rig = None
    possible = NAMES

    def begin(self, rig, eager):
        self.rig = rig
        self.eager = eager

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

    # choosing

    def directory(self, number):
        found = self.rig.directories()
        return found[number % len(found)]

    def name(self, node, number):
        """One that is there, mostly, or may be."""
        there = sorted(node.entries)
        if number >= len(NAMES) and there:
            return there[number % len(there)]
        return self.possible[number % len(self.possible)]

    def file(self, number):
        found = self.rig.files()
        return found[number % len(found)] if found else None

    def chosen(self, which):
        ids = list(self.rig.snaps)
        return ids[which % len(ids)]

    def linkable(self):
        """What can be given a further name."""
        return self.rig.leaves()

    def unnamed(self):
        """What is only open."""
        return []

    # names

    @rule(d=few, n=names, kind=kinds, mode=st.sampled_from([0o644, 0o700, 0o2755, 0o0]), uid=st.sampled_from([0, 7]))
    def make(self, d, n, kind, mode, uid):
        path, node = self.directory(d)
        self.rig.make(path, self.name(node, n), kind, mode, uid)
        self.after()

    @rule(f=few, d=few, n=names)
    def link(self, f, d, n):
        found = self.linkable()
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

    @rule(
        f=few,
        mode=st.sampled_from([None, 0o600, 0o755, 0o6755, 0o0]),
        uid=st.sampled_from([None, 3]),
        mtime=st.sampled_from([None, 1_000_000_001, 1_000_000_002]),
    )
    def set(self, f, mode, uid, mtime):
        found = [*((path, node) for path, node in walk(self.rig.plain.root) if node.kind != LNK), *self.unnamed()]
        self.rig.set(*found[f % len(found)], mode, uid, None, mtime)
        self.after()

    @rule(f=few, name=st.sampled_from([b"user.a", b"user.one"]), value=st.sampled_from([None, b"", b"v" * 100]))
    def xattr(self, f, name, value):
        found = [*walk(self.rig.plain.root), *self.unnamed()]
        self.rig.xattr(*found[f % len(found)], name, value)
        self.after()

    # checkpoints and moves

    @rule(seal=st.booleans())
    def checkpoint(self, seal):
        self.rig.checkpoint()
        if seal:
            self.rig.seal_all()
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

    # the daemon's life

    @rule()
    def crash(self):
        self.rig.crash()
        self.rig.check()

    @rule()
    def reopen(self):
        self.rig.reopen()
        self.rig.check()


def settings_of(examples: int) -> settings:
    """How long chance has: ``PLYFS_MODEL_EXAMPLES`` and ``PLYFS_MODEL_STEPS`` make long runs."""
    return settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        derandomize=SEED is None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        print_blob=False,
    )
