"""Single operations on many small files, in one process: what each costs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from bench.material import Material
from bench.steps import CHANGE, WARM_READ, Step

CONTENT = b"x" * 1000


class SmallFiles:
    """Create, stat, look for what is not there, open and read, list, rename and unlink ``count`` files."""

    name = "small files"

    def __init__(self, count: int) -> None:
        self._count = count

    def lacking(self, material: Material) -> str:
        """Nothing."""
        return ""

    def prepare(self, base: Path, material: Material) -> None:
        """As many files in the base, to be read without having been written there."""
        (base / "old").mkdir()
        for number in range(self._count):
            (base / f"old/{number}").write_bytes(CONTENT)

    def steps(self, top: Path, material: Material) -> Iterable[Step]:
        """Microseconds per file."""
        names = [f"{top}/new/{number}" for number in range(self._count)]
        old = [f"{top}/old/{number}" for number in range(self._count)]
        os.mkdir(top / "new")
        count = self._count
        return [
            Step("create, write 1 KB, close", lambda: create(names), CHANGE, "us", count),
            Step("stat, first after writing", lambda: stat(names), unit="us", count=count),
            Step("stat", lambda: stat(names), WARM_READ, "us", count, before=lambda: stat(names)),
            Step(
                "stat of a missing name", lambda: missing(names), WARM_READ, "us", count, before=lambda: missing(names)
            ),
            Step("open, read, close", lambda: read(names), WARM_READ, "us", count, before=lambda: read(names)),
            Step("open, read, close, cold", lambda: read(old), unit="us", count=count, cold=True),
            Step(
                "list and stat", lambda: listed(top / "new"), WARM_READ, "us", count, before=lambda: listed(top / "new")
            ),
            Step("overwrite a file of the base", lambda: create(old), CHANGE, "us", count),
            Step("rename", lambda: rename(names), CHANGE, "us", count),
            Step("unlink", lambda: unlink([f"{name}.moved" for name in names]), CHANGE, "us", count),
            Step("unlink a file of the base", lambda: unlink(old), CHANGE, "us", count),
        ]


def create(names: list[str]) -> None:
    """Make or overwrite each with a kilobyte."""
    for name in names:
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(descriptor, CONTENT)
        os.close(descriptor)


def stat(names: list[str]) -> None:
    """Ask for the attributes of each."""
    for name in names:
        os.stat(name)


def read(names: list[str]) -> None:
    """Read each whole."""
    for name in names:
        descriptor = os.open(name, os.O_RDONLY)
        assert len(os.read(descriptor, 4096)) == len(CONTENT)
        os.close(descriptor)


def missing(names: list[str]) -> None:
    """Look for as many names that are not there."""
    for name in names:
        try:
            os.stat(f"{name}.missing")
        except FileNotFoundError:
            continue
        raise AssertionError(name)


def listed(directory: Path) -> None:
    """What ``ls -l`` does."""
    with os.scandir(directory) as entries:
        for entry in entries:
            entry.stat(follow_symlinks=False)


def rename(names: list[str]) -> None:
    """Give each another name in the same directory."""
    for name in names:
        os.rename(name, f"{name}.moved")


def unlink(names: list[str]) -> None:
    """Remove each."""
    for name in names:
        os.unlink(name)
