"""SQLite in a mount: four processes at once, in rollback and in write-ahead mode; and undo of a database."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs.conftest import Shell
from tests.served import Served

WRITER = """
import sqlite3, sys
path, writer, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
base = sqlite3.connect(path, timeout=60, isolation_level=None)
base.execute("pragma synchronous=normal")
for number in range(count):
    base.execute("begin immediate")
    (total,) = base.execute("select total from counter").fetchone()
    base.execute("update counter set total = ?", (total + 1,))
    base.execute("insert into rows values (?, ?, ?)", (writer, number, bytes([writer]) * 700))
    base.execute("commit")
print("done", flush=True)
if len(sys.argv) > 4:
    sys.stdin.read()
"""


def _create(path: Path, mode: str) -> None:
    base = sqlite3.connect(path)
    assert base.execute(f"pragma journal_mode={mode}").fetchone() == (mode,)
    base.executescript(
        "create table counter (total integer); insert into counter values (0);"
        "create table rows (writer integer, number integer, data blob, primary key (writer, number))"
    )
    base.close()


def _check(path: Path, total: int) -> None:
    base = sqlite3.connect(path, timeout=60)
    assert base.execute("pragma integrity_check").fetchall() == [("ok",)]
    assert base.execute("select total from counter").fetchone() == (total,)
    assert base.execute("select count(*) from rows").fetchone() == (total,)
    base.close()


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_four_processes_lose_nothing(inside: Shell, mode: str) -> None:
    """Each adds one to a shared counter; no addition is lost and the database is whole."""
    path, count = inside.cwd / "base.db", 100
    _create(path, mode)
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, path, str(n), str(count)], stdout=subprocess.DEVNULL)
        for n in range(4)
    ]
    assert [writer.wait(timeout=200) for writer in writers] == [0, 0, 0, 0]
    _check(path, 4 * count)


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_undo_of_a_database(mounted: Served, mode: str) -> None:
    """A checkpoint holds the database with its log and index of shared memory as they belong together."""
    path = mounted.path / "base.db"
    _create(path, mode)
    for number in range(2):
        # The writer is killed with the database open, so that nothing is folded back from the log.
        arguments = [sys.executable, "-c", WRITER, str(path), str(number), "50", "wait"]
        writer = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"done\n"
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        assert writer.stdin is not None
        writer.stdin.close()
        writer.stdout.close()
        assert (mounted.path / "base.db-wal").exists() == (mode == "wal")
        mounted.checkpoint(f"{number}")
    mounted.run("undo")
    _check(path, 50)
    mounted.run("restore", "1")
    _check(path, 100)
