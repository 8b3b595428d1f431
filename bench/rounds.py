"""Interleaved rounds: every workload on every target in turn, so that what else the machine does falls on all alike.

Owns the order, the clock and the scratch directories.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.material import Material
from bench.samples import Sheet
from bench.steps import Group, Step
from bench.targets import Target


def note(text: str) -> None:
    """Progress, to standard error."""
    print(f"  {text}", file=sys.stderr, flush=True)


def empty_caches() -> None:
    """Drop the kernel's clean pages, dentries and inodes; needs root."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def timed(step: Step) -> float:
    """What the table shows for one run of ``step``."""
    if step.before is not None:
        step.before()
    if step.cold:
        empty_caches()
    started = time.perf_counter()
    result = step.action()
    seconds = time.perf_counter() - started
    return step.figure(result if isinstance(result, float) else seconds)


class Rounds:
    """Runs groups on targets in ``scratch``; what fails is noted in ``failures`` and the rest goes on."""

    def __init__(self, sheet: Sheet, material: Material, scratch: Path) -> None:
        self._sheet = sheet
        self._material = material
        self._scratch = scratch
        self._cold = os.geteuid() == 0
        self.failures: list[str] = []

    def run(self, groups: Sequence[Group], targets: Sequence[Target], rounds: int) -> None:
        """Each round starts with another target, so that none is always the first after something else."""
        for number in range(rounds):
            for group in groups:
                reason = group.lacking(self._material)
                if reason:
                    if number == 0:
                        self.failures.append(f"{group.name}: not measured: {reason}")
                    continue
                for place in range(len(targets)):
                    target = targets[(place + number) % len(targets)]
                    note(f"round {number + 1}/{rounds}: {group.name} on {target.name}")
                    self._measure(group, target)

    def _measure(self, group: Group, target: Target) -> None:
        top = self._scratch / "turn"
        base = top / "base"
        base.mkdir(parents=True)
        where = "prepare"
        try:
            group.prepare(base, self._material)
            os.sync()
            (top / "scratch").mkdir()
            served = target.open(base, top / "scratch")
            for step in group.steps(served, self._material):
                where = step.line
                if step.cold and not self._cold:
                    continue
                figure = timed(step)
                self._sheet.line(group.name, step.line, step.unit, step.goals).add(target.name, figure)
        except Exception as error:
            self.failures.append(f"{group.name}, {where}, on {target.name}: {type(error).__name__}: {error}")
            note(f"FAILED {self.failures[-1]}")
        finally:
            target.close()
            shutil.rmtree(top)
