"""The README's session, run line by line in one shell, prints what the README says; ``...`` stands for anything."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.served import Plyfs

README = Path(__file__).resolve().parents[2] / "README.md"
END = "--- end of command"


def sessions() -> list[list[tuple[str, str]]]:
    """The ``console`` blocks of the README: commands with their output."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE):
        steps: list[tuple[str, str]] = []
        for line in block.splitlines():
            if line.startswith("$ "):
                steps.append((line[2:], ""))
            else:
                command, output = steps[-1]
                steps[-1] = (command, f"{output}{line}\n")
        found.append(steps)
    return found


def pattern(expected: str) -> re.Pattern[str]:
    """What output may be where ``expected`` is written; a line of ``...`` alone stands for any lines, or none."""
    parts = []
    for line in expected.splitlines():
        parts.append(r"(?:.*\n)*" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + r"\n")
    return re.compile("".join(parts))


@pytest.mark.mounted
@pytest.mark.parametrize("number", range(len(sessions())))
def test_session(plyfs: Plyfs, tmp_path: Path, number: int) -> None:
    """Every command succeeds and prints what is written."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project/README.md").write_text("# A project\n")
    plyfs.owns(tmp_path)
    bin_directory = tmp_path / "bin"
    bin_directory.mkdir()
    (bin_directory / "plyfs").write_text(f'#!/bin/sh\nexec {" ".join(plyfs.command())} "$@"\n')
    (bin_directory / "plyfs").chmod(0o755)
    steps = sessions()[number]
    script = "".join(f"{command} 2>&1 || exit 1\necho '{END}'\n" for command, _ in steps)
    environment = {**plyfs.environment, "PATH": f"{bin_directory}:{plyfs.environment['PATH']}"}
    environment["PYTHONPATH"] = str(README.parent)
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    outputs = done.stdout.split(f"{END}\n")
    for (command, expected), output in zip(steps, outputs, strict=False):
        assert pattern(expected).fullmatch(output), f"$ {command}\n{output}\nis not what the README says:\n{expected}"
    assert len(outputs) == len(steps) + 1, f"{steps[len(outputs) - 1][0]} failed:\n{outputs[-1]}{done.stderr}"
    assert (tmp_path / "project/hello.py").read_text() == 'print("hello")\n'
