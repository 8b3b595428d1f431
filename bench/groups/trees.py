"""Programs that walk, copy and remove whole trees."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from bench.material import Material
from bench.steps import WARM_READ, Step, command


class Trees:
    """grep, find, cp, tar and rm."""

    name = "trees"

    def lacking(self, material: Material) -> str:
        """The sources."""
        return material.lacking.get("sources") or material.lacking.get("archive", "")

    def prepare(self, base: Path, material: Material) -> None:
        """The sources in the base."""
        shutil.copytree(material.sources, base / "src")

    def steps(self, top: Path, material: Material) -> Iterable[Step]:
        """Seconds per command."""
        grep = command("sh", "-c", "grep -r xyzzy_nowhere . || true", cwd=top / "src")
        find = command("find", ".", "-newer", "nothing.py", cwd=top / "src")
        (top / "src/nothing.py").touch()
        (top / "extracted").mkdir()
        return [
            Step("grep -r, cold", grep, cold=True),
            Step("grep -r, warm", grep, WARM_READ, before=grep),
            Step("find, cold", find, cold=True),
            Step("find, warm", find, WARM_READ, before=find),
            Step("cp -r", command("cp", "-r", "src", "copy", cwd=top)),
            Step("tar extract", command("tar", "-xf", material.archive, cwd=top / "extracted")),
            Step("rm -rf of what was made", command("rm", "-rf", "copy", cwd=top)),
            Step("rm -rf of what the base has", command("rm", "-rf", "src", cwd=top)),
        ]
