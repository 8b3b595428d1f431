"""Build tools that go by times: after a mount, an undo or a remount they rebuild exactly what changed."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from tests.conftest import need_programs
from tests.programs.conftest import Shell
from tests.served import Served

MAKEFILE = """
objects := $(patsubst %.c,%.o,$(sort $(wildcard *.c)))
program: $(objects)
\tcc -o $@ $^
%.o: %.c common.h
\t@echo "compiling $<"
\t@cc -c -o $@ $<
"""


@pytest.fixture
def project(workspace: Served, environment: dict[str, str]) -> Shell:
    """A C program that has been built; not mounted yet."""
    need_programs("make", "cc")
    top = workspace.path
    (top / "Makefile").write_text(MAKEFILE)
    (top / "common.h").write_text("#define N 5\n")
    for number in range(8):
        (top / f"part{number}.c").write_text(
            f'#include "common.h"\nint part{number}(void) {{ return N * {number}; }}\n'
        )
    (top / "main.c").write_text("int part7(void);\nint main(void) { return part7() - 35; }\n")
    shell = Shell(top, environment)
    shell.run("make", "-j2")
    time.sleep(0.02)  # so that what is changed next is younger than what was built, whatever the clock's grain
    return shell


def _compiled(shell: Shell) -> list[str]:
    return sorted(line.split()[1] for line in shell.run("make", "-j2").splitlines() if line.startswith("compiling"))


def test_mount_and_remount_rebuild_nothing(project: Shell, workspace: Served) -> None:
    """make's own question mode finds everything up to date."""
    workspace.mount()
    assert project.succeeds("make", "-q")
    assert project.succeeds("./program")
    workspace.checkpoint("built")
    workspace.remount()
    assert project.succeeds("make", "-q")


def test_undo_rebuilds_what_it_changed(project: Shell, workspace: Served) -> None:
    """Also when the edit undone is older than the object built from it."""
    workspace.mount()
    built = workspace.checkpoint()
    source = Path(workspace.path, "part3.c")
    source.write_text(source.read_text().replace("N * 3", "N * 4"))
    workspace.checkpoint("edited")
    assert _compiled(project) == ["part3.c"]
    time.sleep(0.02)
    workspace.run("restore", built, "part3.c")
    assert _compiled(project) == ["part3.c"]
    assert project.succeeds("make", "-q")


def test_undo_takes_the_build_along(project: Shell, workspace: Served) -> None:
    """Undoing a turn that edited and built leaves a tree where sources and objects fit each other."""
    workspace.mount()
    header = Path(workspace.path, "common.h")
    header.write_text("#define N 6\n")
    assert len(_compiled(project)) == 9
    workspace.checkpoint("rebuilt")
    assert not project.succeeds("./program")
    workspace.run("undo")
    assert header.read_text() == "#define N 5\n"
    assert project.succeeds("./program")


@pytest.mark.crash
def test_what_an_undo_changed_is_rebuilt_after_a_crash_too(project: Shell, workspace: Served) -> None:
    """The fresh times that a restore gave to what it changed outlive the daemon."""
    workspace.mount()
    built = workspace.checkpoint()
    source = Path(workspace.path, "part3.c")
    source.write_text(source.read_text().replace("N * 3", "N * 4"))
    workspace.checkpoint("edited")
    assert _compiled(project) == ["part3.c"]
    time.sleep(0.02)
    workspace.run("restore", built, "part3.c")
    before = source.stat()
    workspace.kill()
    workspace.run("status")
    after = source.stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert _compiled(project) == ["part3.c"]


def test_what_an_undo_brought_back_keeps_its_time_over_unmount(project: Shell, workspace: Served) -> None:
    """The real directory shows the times that the mount showed, so that make decides the same there."""
    source = Path(workspace.path, "library/part.c")
    source.parent.mkdir()
    source.write_text("int part(void) { return 0; }\n")
    workspace.mount()
    shutil.rmtree(source.parent)
    workspace.checkpoint("removed")
    workspace.run("undo")
    shown = source.stat().st_mtime_ns
    workspace.unmount()
    assert source.stat().st_mtime_ns == shown
