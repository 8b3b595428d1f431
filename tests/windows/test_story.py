"""The story on a Windows Python: on Windows itself, or as PLYFS_WINDOWS_PYTHON says, such as `wine C:/python.exe`."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.windows.story import STEPS

ROOT = Path(__file__).resolve().parents[2]
PYTHON = shlex.split(os.environ.get("PLYFS_WINDOWS_PYTHON", "")) or ([sys.executable] if os.name == "nt" else [])


@pytest.mark.skipif(not PYTHON, reason="no Windows Python: PLYFS_WINDOWS_PYTHON names one (docs/testing.md)")
@pytest.mark.timeout(300)
def test_the_main_job() -> None:
    command = [*PYTHON, "-m", "tests.windows.story"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    lines = done.stdout.splitlines()
    assert lines[-1:] == ["done"], (lines, done.stderr)
    assert len(lines) == len(STEPS) + 1
