"""The project of the demo and what its scripted agent does to it, turn by turn.

The project is a clone of this very repository with a dependency tree of some size. Nothing here needs the network or
knows plyfs: the turns are what any program could do.
"""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pip

REPOSITORY = Path(__file__).resolve().parents[2]
BIG_BYTES = 96 << 20


def create(top: Path) -> None:
    """A clone of this repository, or a copy of it if it is no repository (a source archive)."""
    command = ["git", "clone", "--quiet", "--no-hardlinks", str(REPOSITORY), str(top)]
    if not (REPOSITORY / ".git").exists() or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        shutil.copytree(REPOSITORY, top, ignore=shutil.ignore_patterns(".venv", ".*cache", "__pycache__", ".git"))


def edit_and_build(top: Path, say: Callable[[str], None]) -> None:
    """A turn with the edit tool, and a build that leaves compiled files."""
    say("edit store/refs.py; write NOTES.md; python -m compileall store")
    source = top / "store/refs.py"
    source.write_text(source.read_text().replace("REF_BYTES = 32", "REF_BYTES = 32  # BLAKE3-256"))
    (top / "NOTES.md").write_text("# Notes\n\nWhat the agent found out.\n")
    compileall.compile_dir(top / "store", quiet=2)


def install_dependencies(top: Path, say: Callable[[str], None]) -> None:
    """A turn with a package manager: node_modules, ignored by git, with programs linked into .bin.

    The packages are those bundled in pip, so that no network is needed.
    """
    say("npm install    # stands in: several hundred files and .bin links, ignored by git")
    modules = top / "node_modules"
    bundled = Path(pip.__file__).parent / "_vendor"
    (modules / ".bin").mkdir(parents=True)
    for package in sorted(path for path in bundled.iterdir() if path.is_dir() and path.name != "__pycache__"):
        shutil.copytree(package, modules / package.name)
        program = modules / package.name / "run.sh"
        program.write_text(f"#!/bin/sh\necho {package.name}\n")
        program.chmod(0o755)
        (modules / ".bin" / package.name).symlink_to(f"../{package.name}/run.sh")


def go_wrong(top: Path, say: Callable[[str], None]) -> None:
    """A turn that does everything that is hard to take back by hand."""
    say("rm -rf docs vfs; mv store warehouse; ln -s warehouse store; chmod 600 LICENSE; chmod +x README.md")
    shutil.rmtree(top / "docs")
    shutil.rmtree(top / "vfs")
    (top / "store").rename(top / "warehouse")
    (top / "store").symlink_to("warehouse")
    (top / "LICENSE").chmod(0o600)
    (top / "README.md").chmod(0o755)
    say(f"head -c {BIG_BYTES >> 20}M /dev/urandom > model.bin; mkdir empty; mkfifo pipe")
    block = os.urandom(1 << 20)
    with (top / "model.bin").open("wb") as file:
        for number in range(BIG_BYTES >> 20):
            file.write(number.to_bytes(8, "big") + block[8:])
    (top / "empty").mkdir()
    os.mkfifo(top / "pipe")
    say("rm -rf node_modules/rich; echo oops > pyproject.toml")
    shutil.rmtree(top / "node_modules/rich")
    (top / "pyproject.toml").write_text("oops\n")


def take_another_way(top: Path, say: Callable[[str], None]) -> None:
    """A turn from an earlier state, which makes a branch."""
    say("echo 'print(\"another way\")' > tool.py; chmod +x tool.py; rm NOTES.md")
    (top / "tool.py").write_text('print("another way")\n')
    (top / "tool.py").chmod(0o755)
    (top / "NOTES.md").unlink()


def keep_working(top: Path, say: Callable[[str], None]) -> None:
    """Work that no checkpoint holds."""
    say("echo more >> tool.py; mkdir drafts; 200 small files; mv LICENSE LICENCE")
    with (top / "tool.py").open("a") as file:
        file.write("print('more')\n")
    (top / "drafts").mkdir()
    for number in range(200):
        (top / "drafts" / f"{number}.txt").write_text(f"draft {number}\n")
    (top / "LICENSE").rename(top / "LICENCE")
