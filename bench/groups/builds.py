"""A C program, built and built again."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from bench.material import Material
from bench.steps import WARM_READ, Step, command


class Builds:
    """make of 41 files with two jobs."""

    name = "builds"

    def lacking(self, material: Material) -> str:
        """A compiler and make."""
        return "" if shutil.which("cc") and shutil.which("make") else "no cc or make"

    def prepare(self, base: Path, material: Material) -> None:
        """The sources."""
        shutil.copytree(material.program, base, dirs_exist_ok=True)

    def steps(self, top: Path, material: Material) -> Iterable[Step]:
        """Seconds per command."""
        make = command("make", "-j2", cwd=top)
        return [
            Step("make -j2", make),
            Step("make with nothing to do", make, WARM_READ, before=make),
            Step("make after one header changed", make, before=lambda: (top / "common.h").touch()),
        ]
