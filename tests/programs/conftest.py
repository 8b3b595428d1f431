"""What the program tests share: real source files, a plain directory beside each mount, and commands that must succeed.

Every test here runs a program twice, in a plain directory and in a mount, and wants the same from both; or it runs one
in a mount and wants what that program itself calls right.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import lacking
from tests.served import Served

PACKAGES = ("asyncio", "email", "html", "http", "importlib", "json", "logging", "unittest", "urllib", "xml")
"""The parts of the standard library that stand for a real project: some 250 files, 3 MB."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each test below this directory is slow, mounts, and is not measured for coverage."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.programs)
            item.add_marker(pytest.mark.mounted)
            item.add_marker(pytest.mark.timeout(300))


@dataclass(frozen=True)
class Shell:
    """Runs commands in ``cwd``, with ``environment`` over that of the tests."""

    cwd: Path
    environment: Mapping[str, str]

    def run(self, *command: str | Path, check: bool = True, timeout: float = 240, **extra: str) -> str:
        """What the command prints, both streams; a failure raises AssertionError with it."""
        done = subprocess.run(
            [str(word) for word in command],
            cwd=self.cwd,
            env={**os.environ, **self.environment, **extra},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=timeout,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(map(str, command))} in {self.cwd}: exit {done.returncode}\n{done.stdout}")
        return done.stdout

    def succeeds(self, *command: str | Path) -> bool:
        """True if the command exits with 0."""
        return (
            subprocess.run(command, cwd=self.cwd, env={**os.environ, **self.environment}, check=False).returncode == 0
        )

    def below(self, name: str) -> Shell:
        """The same, one directory further down, which is made if it is not there."""
        path = self.cwd / name
        path.mkdir(exist_ok=True)
        return Shell(path, self.environment)


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Settings under which programs behave the same on every machine and touch nothing of the user's."""
    home = tmp_path_factory.mktemp("user")
    stamp = "2024-05-06T07:08:09Z"
    return {
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "A",
        "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "C",
        "GIT_COMMITTER_EMAIL": "c@example.org",
        "GIT_AUTHOR_DATE": stamp,
        "GIT_COMMITTER_DATE": stamp,
        "npm_config_cache": str(home / "npm"),
        "npm_config_update_notifier": "false",
        "PYTHONDONTWRITEBYTECODE": "",
    }


@pytest.fixture
def plain(tmp_path: Path, environment: dict[str, str]) -> Shell:
    """A plain directory. Its name is as long as that of the mount: some programs look at how long a path is."""
    path = tmp_path / "unmounted"
    path.mkdir()
    return Shell(path, environment)


@pytest.fixture
def inside(mounted: Served, environment: dict[str, str]) -> Shell:
    """The root of an empty mount."""
    return Shell(mounted.path, environment)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of real source files."""
    library = Path(sysconfig.get_path("stdlib"))
    top = tmp_path_factory.mktemp("corpus") / "src"
    for name in PACKAGES:
        shutil.copytree(library / name, top / name, ignore=shutil.ignore_patterns("__pycache__", "test*"))
    return top


@pytest.fixture(scope="session")
def repository(corpus: Path, tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Path:
    """A repository of the corpus: ``main`` with three commits and ``topic`` that leaves it after the first."""
    top = tmp_path_factory.mktemp("origin") / "repository"
    shutil.copytree(corpus, top)
    git = Shell(top, environment)
    git.run("git", "init", "-q", "-b", "main")
    git.run("git", "add", "-A")
    git.run("git", "commit", "-q", "-m", "all of it")
    git.run("git", "checkout", "-q", "-b", "topic")
    for number, path in enumerate(sorted(top.glob("email/*.py"))):
        path.write_text(f"# topic {number}\n{path.read_text()}")
    git.run("git", "commit", "-q", "-a", "-m", "change one package")
    (top / "xml" / "added.py").write_text("added = True\n")
    git.run("git", "add", "-A")
    git.run("git", "commit", "-q", "-m", "add to another")
    git.run("git", "checkout", "-q", "main")
    for path in sorted(top.glob("asyncio/*.py")):
        path.write_text(f"{path.read_text()}\n# the end\n")
    git.run("git", "commit", "-q", "-a", "-m", "change a third")
    git.run("git", "mv", "json", "javascript")
    git.run("git", "rm", "-q", "-r", "urllib")
    git.run("git", "commit", "-q", "-m", "move and remove")
    return top


@pytest.fixture(scope="session")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Iterator[Path]:
    """Wheels and one source distribution from the package index, fetched once for all tests."""
    top = tmp_path_factory.mktemp("wheels")
    shell = Shell(top, {})
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    from_source = ["--no-deps", "--no-binary", ":all:", "click==8.1.8"]
    for arguments in (["requests", "rich", "jinja2"], from_source):
        try:
            shell.run(*pip, *arguments, "--dest", top)
        except AssertionError as error:
            lacking(f"the package index does not answer: {error}")
    yield top


def outcomes(report: Path) -> dict[str, str]:
    """Result by test name, read from a junit report."""
    from xml.etree import ElementTree

    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        result = "skipped" if case.get("result") == "skipped" else (sorted(kinds)[0] if kinds else "passed")
        found[f"{case.get('classname')}::{case.get('name')}"] = result
    return found
