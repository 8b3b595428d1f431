"""Large files and databases: sequential and random throughput, and SQLite's many small commits."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from bench.material import ENVIRONMENT, Material
from bench.steps import AS_FUSE_OVERLAYFS, SEQUENTIAL, Step

BLOCK = 1 << 20


class Data:
    """One GiB in sequence (128 MiB when ``quick``), 4 KiB at random, rows."""

    name = "data"

    def __init__(self, quick: bool) -> None:
        self._bytes = (128 if quick else 1024) << 20
        self._rows = 200 if quick else 1000

    def lacking(self, material: Material) -> str:
        """Nothing; fio's lines are left out if there is no fio."""
        return ""

    def prepare(self, base: Path, material: Material) -> None:
        """A big file in the base."""
        block = os.urandom(BLOCK)
        with (base / "old").open("wb") as file:
            for _ in range(self._bytes // BLOCK):
                file.write(block)

    def steps(self, top: Path, material: Material) -> Iterable[Step]:
        """MB/s of the big files, milliseconds per transaction."""
        size = self._bytes
        steps = [
            Step("sequential write", lambda: write(top / "new", size), SEQUENTIAL, "MB/s", size),
            Step("sequential read, cold", lambda: read(top / "old"), SEQUENTIAL, "MB/s", size, cold=True),
            Step("sequential read, warm", lambda: read(top / "old"), SEQUENTIAL, "MB/s", size),
            Step("4 KiB written in a file of the base", lambda: patch(top / "old"), AS_FUSE_OVERLAYFS, "ms"),
            Step("SQLite transaction, WAL", rows(top / "wal.db", "wal", self._rows), unit="ms", count=self._rows),
            Step(
                "SQLite transaction, DELETE", rows(top / "delete.db", "delete", self._rows), unit="ms", count=self._rows
            ),
        ]
        if shutil.which("fio"):
            count = 16 << 20
            steps += [
                Step("random 4 KiB reads", fio(top, "randread"), AS_FUSE_OVERLAYFS, "MB/s", count, cold=True),
                Step("random 4 KiB writes", fio(top, "randwrite"), AS_FUSE_OVERLAYFS, "MB/s", count),
            ]
        return steps


def write(path: Path, size: int) -> None:
    """As ``dd bs=1M conv=fsync`` does."""
    block = memoryview(os.urandom(BLOCK))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    for _ in range(size // BLOCK):
        os.write(descriptor, block)
    os.fsync(descriptor)
    os.close(descriptor)


def read(path: Path) -> None:
    """As ``dd bs=1M of=/dev/null`` does."""
    buffer = bytearray(BLOCK)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def patch(path: Path) -> None:
    """Change one page in the middle."""
    descriptor = os.open(path, os.O_WRONLY)
    os.pwrite(descriptor, b"\x01" * 4096, os.fstat(descriptor).st_size // 2)
    os.fsync(descriptor)
    os.close(descriptor)


def rows(path: Path, mode: str, count: int) -> Callable[[], object]:
    """``count`` transactions of one row."""

    def run() -> None:
        base = sqlite3.connect(path, isolation_level=None)
        base.execute(f"pragma journal_mode={mode}")
        base.execute("pragma synchronous=normal")
        base.execute("create table t (n integer primary key, data blob)")
        for number in range(count):
            base.execute("insert into t values (?, ?)", (number, b"x" * 500))
        base.close()

    return run


def fio(top: Path, mode: str) -> Callable[[], object]:
    """16 MiB in pieces of 4 KiB at random places of a 64 MiB file; the seconds are those that fio itself counts."""
    words = ["fio", f"--name={mode}", f"--directory={top}", "--size=64m", "--io_size=16m", "--bs=4k", f"--rw={mode}"]
    words += ["--filename=random", "--ioengine=psync", "--randseed=1", "--output-format=json", "--fallocate=none"]

    def run() -> float:
        done = subprocess.run(
            words, cwd=top, env=ENVIRONMENT, check=True, capture_output=True, stdin=subprocess.DEVNULL
        )
        job = json.loads(done.stdout)["jobs"][0]
        assert job["error"] == 0
        return float(job[mode.removeprefix("rand")]["runtime"]) / 1000

    if not (top / "random").exists():
        write(top / "random", 64 << 20)
    return run
