"""Chance drives a scanned workspace and its plain model, with the steps of ``tests.model`` and some of its own."""

from __future__ import annotations

import pytest
from hypothesis import seed
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.model.bases import NAMES
from tests.model.plain import GIT
from tests.model.steps import EXAMPLES, SEED, Steps, bases, settings_of
from tests.scan.rig import ScanRig

pytestmark = pytest.mark.root


class ScannedMachine(Steps):
    """The directory is a plain one: whatever happens in it happens behind the scanner's back."""

    possible = tuple(name for name in NAMES if name != GIT)

    @initialize(base=bases, eager=st.booleans())
    def start(self, base, eager):
        self.begin(ScanRig(base), eager)

    @rule()
    def lose_records(self):
        self.rig.lose_records()
        self.rig.check()


ScannedMachine.TestCase.settings = settings_of(EXAMPLES)


@pytest.mark.timeout(0 if EXAMPLES > 1000 else 600)
class TestScannedMachine(ScannedMachine.TestCase):
    pass


if SEED is not None:
    TestScannedMachine = seed(int(SEED))(TestScannedMachine)  # type: ignore[misc]
