"""Python's tools: compileall, imports, venv with pip, and the tests of a real package."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from bench.material import Material
from bench.steps import WARM_READ, Step, command

IMPORTS = (
    "import asyncio, concurrent.futures, email.mime.text, http.server, unittest.mock, xml.dom.minidom, sqlite3.dump"
)


class PythonPackages:
    """What a Python developer's tools do."""

    name = "python"

    def lacking(self, material: Material) -> str:
        """Wheels, sources."""
        return material.lacking.get("wheels") or material.lacking.get("sources", "")

    def prepare(self, base: Path, material: Material) -> None:
        """Sources without bytecode, and click with its tests."""
        shutil.copytree(material.sources, base / "src")
        shutil.copytree(material.wheels / "click", base / "click")

    def steps(self, top: Path, material: Material) -> Iterable[Step]:
        """Seconds per command."""
        imports = command(sys.executable, "-c", IMPORTS, cwd=top, PYTHONPATH=str(top / "src"))
        pip = (top / "env/bin/python", "-m", "pip", "install", "-q", "--no-index", "--find-links", material.wheels)
        pytest = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default")
        tests = command(
            *pytest, f"--basetemp={top / 'tmp'}", "tests", cwd=top / "click", PYTHONPATH=str(top / "click/src")
        )
        return [
            Step("compileall", command(sys.executable, "-m", "compileall", "-q", "src", cwd=top)),
            Step("imports, warm", imports, WARM_READ, before=imports),
            Step("venv", command(sys.executable, "-m", "venv", "--without-pip", "env", cwd=top)),
            Step(
                "pip install of four packages",
                command(*pip, "requests", "rich", "jinja2", "sympy", cwd=top),
                before=command(sys.executable, "-m", "venv", "--clear", "env", cwd=top),
            ),
            Step("pytest of click", tests, before=tests),
        ]
