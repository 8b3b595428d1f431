"""What plyfs itself takes: memory at rest and per inode that the kernel knows, and the start of its commands."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil

from bench.checkpoints import session
from bench.rounds import note
from bench.samples import Goal, Sheet
from tests.served import Plyfs

GROUP = "footprint"


def memory(sheet: Sheet, scratch: Path, files: int, channel: str) -> None:
    """Resident memory after mount, and what each of ``files`` inodes adds once all have been looked up."""
    column = f"plyfs {channel}"
    note(f"memory over {files:,} files, {channel}")
    with session(scratch, files, channel) as served:
        process = psutil.Process(served.pid)
        rest = sum(each.memory_info().rss for each in (process, *process.children()))
        sheet.line(GROUP, "daemon at rest", "MiB", (Goal(60.0, None),)).add(column, rest / (1 << 20))
        seen = 0
        for _, names, others in os.walk(served.top):
            seen += len(names) + len(others)
        for folder, _, names in os.walk(served.top):
            for name in names:
                os.stat(os.path.join(folder, name))
        grown = sum(each.memory_info().rss for each in (process, *process.children())) - rest
        sheet.line(GROUP, "memory per inode", "KiB", (Goal(1.2, None),)).add(column, grown / seen / 1024)


def start(sheet: Sheet, scratch: Path, rounds: int) -> None:
    """Wall time of short commands against that of ``python3 -c pass``."""
    note("start of commands")
    with session(scratch, 1000, "direct") as served:
        plyfs = Plyfs("direct", environment={"PLYFS_HOME": str(served.home)}, measured=False)
        try:
            commands = {
                "python3 -c pass": [sys.executable, "-c", "pass"],
                "plyfs --help": plyfs.command("--help"),
                "plyfs status": plyfs.command("status", "-C", str(served.top)),
                "plyfs log": plyfs.command("log", "-C", str(served.top)),
                "plyfs checkpoint without a change": plyfs.command("checkpoint", "-C", str(served.top)),
            }
            figures: dict[str, list[float]] = {name: [] for name in commands}
            for _ in range(rounds):
                for name, command in commands.items():
                    started = time.perf_counter()
                    subprocess.run(command, env=plyfs.environment, check=True, capture_output=True, cwd="/")
                    figures[name].append((time.perf_counter() - started) * 1000)
        finally:
            plyfs.close()
    floor = statistics.median(figures["python3 -c pass"])
    for name, values in figures.items():
        goals = () if name.startswith("python3") else (Goal(2.5 * floor, None),)
        line = sheet.line(GROUP, name, "ms", goals)
        for value in values:
            line.add("plain" if name.startswith("python3") else "plyfs direct", value)
