"""What differs between systems, where Python lacks what it has on Linux."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

LIKE_MACOS = """
import signal, sys
del signal.sigwaitinfo, signal.sigtimedwait
from harness.systems.posix import run_child
sys.exit(run_child(sys.argv[2:], sys.argv[1]))
"""


def child(place: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LIKE_MACOS, str(place), *words]
    root = Path(__file__).resolve().parents[2]
    return subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("script", "status"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_a_child_without_sigwaitinfo(tmp_path: Path, script: str, status: int) -> None:
    running = child(tmp_path, "sh", "-c", f"pwd; {script}")
    assert running.communicate(timeout=20)[0] == f"{tmp_path}\n"
    assert running.returncode == status


def test_signals_are_passed_on_without_sigwaitinfo(tmp_path: Path) -> None:
    script = "trap 'echo told; exit 5' TERM; touch up; while :; do sleep 0.05; done"
    running = child(tmp_path, "sh", "-c", script)
    until = time.monotonic() + 20
    while not (tmp_path / "up").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    running.send_signal(signal.SIGTERM)
    assert running.communicate(timeout=20)[0] == "told\n"
    assert running.returncode == 5
