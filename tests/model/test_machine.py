"""Chance drives a served workspace and its plain model; they must never differ. Here the live tree of a mount, without
a mount; ``tests/scan/test_model.py`` takes the same steps in a scanned directory.

``PLYFS_MODEL_EXAMPLES`` and ``PLYFS_MODEL_STEPS`` make long runs; ``PLYFS_MODEL_SEED`` makes other ones.
"""

from __future__ import annotations

import pytest
from hypothesis import seed
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.model.machine import Rig
from tests.model.plain import walk
from tests.model.steps import EXAMPLES, SEED, Steps, bases, few, lengths, offsets, settings_of


class Machine(Steps):
    """What the kernel does, open files, and sealing step by step come on top."""

    @initialize(base=bases, eager=st.booleans())
    def start(self, base, eager):
        self.begin(Rig(base), eager)

    def linkable(self):
        return [*self.rig.leaves(), *((None, node) for node in self.rig.open if node.serial in self.rig.unnamed)]

    def unnamed(self):
        return [(None, node) for node in self.rig.open if not self.rig.plain.has_name(node)]

    @rule(d=few)
    def tmpfile(self, d):
        self.rig.tmpfile(self.directory(d)[0])

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

    # the working layer

    @rule()
    def fold(self):
        self.rig.fold()

    @rule()
    def seal_one(self):
        self.rig.seal_one()
        self.after()

    @rule()
    def barrier(self):
        self.rig.barrier()


Machine.TestCase.settings = settings_of(EXAMPLES)


@pytest.mark.timeout(0 if EXAMPLES > 1000 else 600)
class TestMachine(Machine.TestCase):
    pass


if SEED is not None:
    TestMachine = seed(int(SEED))(TestMachine)  # type: ignore[misc]
