"""Four processes at once, each at its own small files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from multiprocessing import get_context
from pathlib import Path

from bench.groups.small_files import create, read
from bench.material import Material
from bench.steps import CHANGE, WARM_READ, Step

PROCESSES = 4


def _create(arguments: tuple[str, int]) -> None:
    directory, count = arguments
    os.mkdir(directory)
    create([f"{directory}/{number}" for number in range(count)])


def _read(arguments: tuple[str, int]) -> None:
    directory, count = arguments
    read([f"{directory}/{number}" for number in range(count)])


def _rename_and_unlink(arguments: tuple[str, int]) -> None:
    directory, count = arguments
    for number in range(count):
        os.rename(f"{directory}/{number}", f"{directory}/moved")
        os.unlink(f"{directory}/moved")


class FourProcesses:
    """``count`` files for each process."""

    name = "four processes"

    def __init__(self, count: int) -> None:
        self._count = count

    def lacking(self, material: Material) -> str:
        """Nothing."""
        return ""

    def prepare(self, base: Path, material: Material) -> None:
        """Nothing."""

    def steps(self, top: Path, material: Material) -> Iterable[Step]:
        """Microseconds per file, all processes together."""
        work = [(f"{top}/{number}", self._count) for number in range(PROCESSES)]
        total = PROCESSES * self._count
        pool = get_context("fork").Pool(PROCESSES)
        with pool:
            yield from (
                Step("create, write, close", lambda: pool.map(_create, work), CHANGE, "us", total),
                Step(
                    "open, read, close",
                    lambda: pool.map(_read, work),
                    WARM_READ,
                    "us",
                    total,
                    before=lambda: pool.map(_read, work),
                ),
                Step("rename and unlink", lambda: pool.map(_rename_and_unlink, work), CHANGE, "us", total),
            )
