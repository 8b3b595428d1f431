"""CPython's own file tests with their working folder and TMPDIR in a mount: each ends as in a plain directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import lacking
from tests.programs.conftest import Shell, outcomes

MODULES = (
    "test_os",
    "test_shutil",
    "test_pathlib",
    "test_tempfile",
    "test_mmap",
    "test_zipfile",
    "test_tarfile",
    "test_fcntl",
)
INTERPRETER = Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")


def _results(shell: Shell, module: str) -> dict[str, str]:
    work, temporary = shell.below("work"), shell.below("tmp")
    report = shell.cwd / "report.xml"
    work.run(
        *(INTERPRETER, "-X", "utf8", "-m", "test", "--tempdir", work.cwd, "--junit-xml", report, module),
        check=False,
        TMPDIR=str(temporary.cwd),
        PYTHONPATH="",
    )
    return outcomes(report)


@pytest.mark.parametrize("module", MODULES)
def test_module(plain: Shell, inside: Shell, module: str) -> None:
    """Every single test has the same result: passed, skipped or failed."""
    if subprocess.run([INTERPRETER, "-c", f"import test.{module}"], capture_output=True, check=False).returncode != 0:
        lacking(f"{INTERPRETER} has no test package (Debian: libpython3.N-testsuite)")
    wanted = _results(plain, module)
    found = _results(inside, module)
    assert len(wanted) > 3
    assert {name: result for name, result in found.items() if wanted.get(name) != result} == {}
    assert found.keys() == wanted.keys()
