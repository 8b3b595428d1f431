"""Editors that save by rename: the file has the new text, the old one is the backup, and undo follows the name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import lacking
from tests.programs.conftest import Shell
from tests.served import Served


def _vim(shell: Shell, name: str) -> None:
    vim = shutil.which("vim") or shutil.which("vim.tiny")
    if vim is None:
        lacking("no vim")
        return
    # backupcopy=no renames the file to its backup and writes a new one in its place; `dir` puts the swap file beside,
    # and backupskip would spare files below /tmp.
    settings = "set nocompatible backup writebackup backupcopy=no backupext=~ backupskip= swapfile dir=."
    shell.run(vim, "-u", "NONE", "-es", "-c", settings, "-c", "%s/old/new/", "-c", "wq", name)


def _emacs(shell: Shell, name: str) -> None:
    """What emacs does: a lock that is a dangling symlink, an autosave file, backup by rename, then a new file."""
    path = shell.cwd / name
    lock, autosave = shell.cwd / f".#{name}", shell.cwd / f"#{name}#"
    lock.symlink_to("user@host.1234:1700000000")
    text = path.read_text().replace("old", "new")
    autosave.write_text(text)
    mode = path.stat().st_mode
    path.rename(shell.cwd / f"{name}~")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    os.write(descriptor, text.encode())
    os.fsync(descriptor)
    os.fchmod(descriptor, mode & 0o7777)
    os.close(descriptor)
    autosave.unlink()
    lock.unlink()


def _temporary(shell: Shell, name: str) -> None:
    """What nano, gedit and most tools do: write beside, sync, rename over; the backup is a hard link."""
    path, new = shell.cwd / name, shell.cwd / f".{name}.tmp"
    os.link(path, shell.cwd / f"{name}~")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, path.stat().st_mode & 0o7777)
    os.write(descriptor, path.read_text().replace("old", "new").encode())
    os.fsync(descriptor)
    os.close(descriptor)
    new.replace(path)


@pytest.mark.parametrize("save", [_vim, _emacs, _temporary], ids=["vim", "emacs", "temporary"])
def test_save_by_rename(inside: Shell, mounted: Served, save: Callable[[Shell, str], None]) -> None:
    """A reader that has the file open keeps the old text."""
    path = mounted.path / "note.txt"
    path.write_text("some old text\n")
    path.chmod(0o640)
    first = mounted.checkpoint("old")
    with path.open() as reader:
        save(inside, path.name)
        assert reader.read() == "some old text\n"
    assert path.read_text() == "some new text\n"
    assert path.stat().st_mode & 0o7777 == 0o640
    assert Path(f"{path}~").read_text() == "some old text\n"
    assert sorted(entry.name for entry in mounted.path.iterdir()) == ["note.txt", "note.txt~"]
    mounted.checkpoint("new")
    mounted.run("undo")
    assert [entry.name for entry in mounted.path.iterdir()] == ["note.txt"]
    assert path.read_text() == "some old text\n"
    mounted.run("redo")
    assert path.read_text() == "some new text\n"
    assert mounted.run("cat", f"{first}:note.txt").stdout == "some old text\n"
