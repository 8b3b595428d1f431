"""Real files that the workloads work on, made once and kept in ``.bench/material``: sources, a repository, packages.

Network is used only here, to fill npm's cache and a directory of wheels, never while anything is measured.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

KEPT = Path(__file__).resolve().parent.parent / ".bench"
"""Where everything that the bench makes is kept; not part of the repository."""

LIBRARY = Path(sysconfig.get_path("stdlib"))
NPM_PACKAGES = ("express@4", "eslint@8", "webpack@5")
WHEELS = ("requests", "rich", "jinja2", "sympy")

ENVIRONMENT = {
    "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
    "HOME": str(KEPT / "home"),
    "LC_ALL": "C.UTF-8",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "GIT_AUTHOR_NAME": "bench",
    "GIT_AUTHOR_EMAIL": "bench@example.org",
    "GIT_COMMITTER_NAME": "bench",
    "GIT_COMMITTER_EMAIL": "bench@example.org",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}


class Material:
    """Makes each thing the first time it is asked for. ``lacking`` says what could not be made, and why."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self.lacking: dict[str, str] = {}

    def prepare(self) -> None:
        """Make everything now, so that nothing is made while something is measured."""
        self._top.mkdir(parents=True, exist_ok=True)
        for name, make in (
            ("sources", self._make_sources),
            ("repository", self._make_repository),
            ("archive", self._make_archive),
            ("program", self._make_program),
            ("npm", self._make_npm),
            ("wheels", self._make_wheels),
        ):
            path = self._top / name
            if path.exists():
                continue
            making = self._top / f"making-{name}"
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir()
            try:
                make(making)
            except (OSError, subprocess.CalledProcessError) as error:
                output = getattr(error, "stderr", None) or b""
                self.lacking[name] = f"{error} {output.decode(errors='replace')[-300:]}".strip()
                continue
            making.rename(path)

    @property
    def sources(self) -> Path:
        """The standard library's Python files: about 700, in 60 directories."""
        return self._top / "sources"

    @property
    def repository(self) -> Path:
        """A repository of ``sources``, a second checkout of them, and 20 commits that change a third of the files."""
        return self._top / "repository"

    @property
    def archive(self) -> Path:
        """``sources`` as a tar file."""
        return self._top / "archive/sources.tar"

    @property
    def program(self) -> Path:
        """A C program of 40 files with a Makefile, and one header for all."""
        return self._top / "program"

    @property
    def npm(self) -> Path:
        """package.json, package-lock.json, and a cache that holds every package."""
        return self._top / "npm"

    @property
    def wheels(self) -> Path:
        """Wheels of ``WHEELS`` and what they need, and click's source distribution, unpacked."""
        return self._top / "wheels"

    def _run(self, *command: str | Path, cwd: Path, **environment: str) -> None:
        subprocess.run(
            [str(word) for word in command],
            cwd=cwd,
            env={**ENVIRONMENT, **environment},
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )

    def _make_sources(self, top: Path) -> None:
        skip = shutil.ignore_patterns(
            "__pycache__", "test", "tests", "site-packages", "dist-packages", "*.so", "idlelib", "lib2to3", "config-*"
        )
        shutil.copytree(LIBRARY, top, ignore=skip, dirs_exist_ok=True)

    def _make_repository(self, top: Path) -> None:
        for name in ("one", "two"):
            shutil.copytree(self.sources, top / name)
        self._run("git", "init", "-q", "-b", "main", cwd=top)
        self._run("git", "add", "-A", cwd=top)
        self._run("git", "commit", "-q", "-m", "start", cwd=top)
        files = sorted(path for path in top.glob("two/**/*.py") if path.is_file())
        for number in range(20):
            for path in files[number::60]:
                with path.open("a", encoding="utf-8", errors="surrogateescape") as file:
                    file.write(f"# commit {number}\n")
            (top / f"added{number}").mkdir()
            for new in range(10):
                (top / f"added{number}/{new}.txt").write_text(f"{number} {new}\n" * 50)
            self._run("git", "add", "-A", cwd=top)
            self._run("git", "commit", "-q", "-m", f"commit {number}", cwd=top)
        self._run("git", "tag", "distant", "HEAD~20", cwd=top)
        self._run("git", "gc", "-q", cwd=top)

    def _make_archive(self, top: Path) -> None:
        self._run("tar", "-C", self.sources, "-cf", top / "sources.tar", ".", cwd=top)

    def _make_program(self, top: Path) -> None:
        (top / "common.h").write_text("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n")
        for number in range(40):
            body = "\n".join(
                f'int f{number}_{k}(int x) {{ char b[64]; snprintf(b, 64, "%d", x * {k}); return atoi(b) + {k}; }}'
                for k in range(60)
            )
            (top / f"part{number}.c").write_text(f'#include "common.h"\n{body}\n')
        calls = " + ".join(f"f{number}_1(1)" for number in range(40))
        declarations = "".join(f"int f{number}_1(int);" for number in range(40))
        (top / "main.c").write_text(f"{declarations}\nint main(void) {{ return ({calls}) == 0; }}\n")
        (top / "Makefile").write_text(
            "o := $(patsubst %.c,%.o,$(sort $(wildcard *.c)))\n"
            "program: $o\n\tcc -o $@ $^\n%.o: %.c common.h\n\tcc -c -o $@ $<\n"
        )

    def _make_npm(self, top: Path) -> None:
        (top / "package.json").write_text('{"name": "bench", "version": "1.0.0"}\n')
        flags = ("--no-audit", "--no-fund", "--ignore-scripts", "--no-update-notifier")
        self._run("npm", "install", *flags, "--cache", top / "cache", *NPM_PACKAGES, cwd=top)
        shutil.rmtree(top / "node_modules")

    def _make_wheels(self, top: Path) -> None:
        pip = (sys.executable, "-m", "pip", "download", "-q")
        self._run(*pip, "--dest", top, *WHEELS, cwd=top)
        self._run(*pip, "--no-deps", "--no-binary", ":all:", "--dest", top, "click==8.1.8", cwd=top)
        archive = next(top.glob("click-*.tar.gz"))
        self._run("tar", "-xf", archive, cwd=top)
        next(path for path in top.glob("click-*") if path.is_dir()).rename(top / "click")
        archive.unlink()
