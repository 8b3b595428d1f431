"""npm with a mid-size package set, from a warm cache."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from bench.material import Material
from bench.steps import CHANGE, WARM_READ, Step, command


class JavaScript:
    """Install, load, remove."""

    name = "npm"

    def lacking(self, material: Material) -> str:
        """npm, or its cache."""
        return material.lacking.get("npm", "") if shutil.which("npm") else "no npm"

    def prepare(self, base: Path, material: Material) -> None:
        """The manifest and the lock file."""
        for name in ("package.json", "package-lock.json"):
            shutil.copy(material.npm / name, base / name)

    def steps(self, top: Path, material: Material) -> Iterable[Step]:
        """Seconds per command."""
        flags = ("--no-audit", "--no-fund", "--ignore-scripts", "--no-update-notifier", "--offline")
        load = command("node", "-e", "require('express'); require('webpack'); require('eslint')", cwd=top)
        return [
            Step("npm ci", command("npm", "ci", *flags, "--cache", material.npm / "cache", cwd=top), CHANGE),
            Step("node loads the packages, warm", load, WARM_READ, before=load),
            Step("rm -rf node_modules", command("rm", "-rf", "node_modules", cwd=top)),
        ]
