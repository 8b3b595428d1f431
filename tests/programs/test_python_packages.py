"""venv, pip and pytest in a mount."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

import pytest

from tests.programs.conftest import Shell, outcomes

pytestmark = pytest.mark.network


def test_venv_and_pip(inside: Shell, wheelhouse: Path) -> None:
    """Make a venv, install, run what was installed, uninstall."""
    inside.run("python3", "-m", "venv", "env")
    pip = (inside.cwd / "env/bin/pip", "--disable-pip-version-check")
    inside.run(*pip, "install", "--quiet", "--no-index", "--find-links", wheelhouse, "requests", "rich", "jinja2")
    inside.run(*pip, "check")
    line = "import requests, rich, jinja2; print(jinja2.Template('{{ 6 * 7 }}').render())"
    assert inside.run("env/bin/python", "-c", line) == "42\n"
    inside.run(*pip, "uninstall", "--quiet", "--yes", "rich")
    assert "No module named 'rich'" in inside.run("env/bin/python", "-c", "import rich", check=False)
    assert "rich" not in inside.run(*pip, "freeze")


def test_pytest_of_a_real_package(plain: Shell, inside: Shell, wheelhouse: Path) -> None:
    """click's own tests end as they do in a plain directory, each of them."""
    results = []
    for shell in (plain, inside):
        with tarfile.open(next(wheelhouse.glob("click-*.tar.gz"))) as archive:
            archive.extractall(shell.cwd)
        top = next(shell.cwd.glob("click-*"))
        report = shell.cwd / "report.xml"
        command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default")
        shell.run(
            *command,
            f"--basetemp={shell.cwd / 'tmp'}",
            f"--junit-xml={report}",
            f"--rootdir={top}",
            top / "tests",
            PYTHONPATH=str(top / "src"),
            check=False,
        )
        results.append(outcomes(report))
    assert len(results[0]) > 400
    assert results[1] == results[0]
