"""What a turn of a coding agent costs with plyfs against none, for workspaces of several sizes.

The agent is the real Pi, with a scripted model that answers at once, so that nothing hides the cost. Each turn runs one
bash command that changes 10 files. Agents with plyfs (mounted, scanned) and without take turns in one run, each in a
workspace of its own; lower quartiles are compared. ``python -m bench.agent_turns`` alone takes about three minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.checkpoints import fill
from bench.samples import Goal, Sheet
from tests.agents import toolchain
from tests.agents.rpc import Agent
from tests.agents.stage import Stage
from tests.served import Plyfs

GROUP = "turn of an agent"
SIZES = (1000, 10_000, 50_000)
TURNS = 21
WARM = 3
GOAL_SECONDS = 0.020
"""So much more may a turn take with plyfs than without."""

HOWS = ("none", "mounted", "scanned")
MODES = {"mounted": "fuse", "scanned": "scan"}
COMMAND = "for d in 00 01 02 03 04 05 06 07 08 09; do echo turn >> 000/$d/00.txt; done"


class Row:
    """One size and way: seconds of each turn, each /undo and each /redo."""

    def __init__(self, size: int, how: str) -> None:
        self.size = size
        self.how = how
        self.turns: list[float] = []
        self.undos: list[float] = []
        self.redos: list[float] = []

    @property
    def turn(self) -> float:
        """The turn that a quarter of them undercut, seconds: a median would tell of what else the machine does."""
        return statistics.quantiles(self.turns, n=4)[0]


@contextlib.contextmanager
def agent_in(top: Path, size: int, how: str) -> Iterator[tuple[Stage, Agent]]:
    """A running agent in a workspace of ``size`` files."""
    workspace = top / "workspace"
    workspace.mkdir(parents=True)
    fill(workspace, size)
    plyfs = Plyfs(measured=False)
    stage = Stage("pi", plyfs, workspace, top)
    try:
        if how == "none":
            stage.extensions = []
        else:
            config = Path(plyfs.environment["XDG_CONFIG_HOME"]) / "plyfs"
            config.mkdir(parents=True)
            text = f'[mount]\nmode = "{MODES[how]}"\n[agents]\non_exit = "leave"\n'
            (config / "config.toml").write_text(text)
        agent = stage.start()
        if how != "none":
            stage.served_by(agent, 120)
        yield stage, agent
    finally:
        stage.close()
        plyfs.close()


def measure(sizes: tuple[int, ...] = SIZES, turns: int = TURNS) -> list[Row]:
    """Every row."""
    toolchain.install()
    rows = []
    for size in sizes:
        top = Path(tempfile.mkdtemp(prefix="plyfs-turns-"))
        try:
            rows += _measure_size(top, size, turns)
        finally:
            shutil.rmtree(top, ignore_errors=True)
    return rows


def _measure_size(top: Path, size: int, turns: int) -> list[Row]:
    rows = {how: Row(size, how) for how in HOWS}
    with contextlib.ExitStack() as stack:
        running = {how: stack.enter_context(agent_in(top / how, size, how)) for how in HOWS}
        prompts = {how: stage.model.bash("turn", COMMAND) for how, (stage, _) in running.items()}
        for number in range(WARM + turns):
            order = HOWS[number % len(HOWS) :] + HOWS[: number % len(HOWS)]
            for how in order:
                seconds = running[how][1].prompt(prompts[how])
                if number >= WARM:
                    rows[how].turns.append(seconds)
        for how in ("mounted", "scanned"):
            agent = running[how][1]
            for _ in range(5):
                rows[how].undos.append(agent.command("/undo", quiet=0.02))
            for _ in range(5):
                rows[how].redos.append(agent.command("/redo", quiet=0.02))
            agent.drain(0.05)
    return list(rows.values())


def add_to(sheet: Sheet, sizes: tuple[int, ...]) -> None:
    """Measure, as a part of the whole bench."""
    rows = measure(sizes)
    base = {row.size: row.turn for row in rows if row.how == "none"}
    for row in rows:
        if row.how == "mounted":
            goals = (Goal(GOAL_SECONDS * 1000, None),)
            line = sheet.line(GROUP, f"more for a turn of Pi, {row.size:,} files", "ms", goals)
            line.add("plyfs direct", (row.turn - base[row.size]) * 1000)


def table(rows: list[Row]) -> str:
    """The rows as Markdown, milliseconds."""
    lines = [
        "| files | plyfs | turn | more than none | /undo | /redo |",
        "| ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    base = {row.size: row.turn for row in rows if row.how == "none"}
    for row in rows:
        more = "" if row.how == "none" else f"{(row.turn - base[row.size]) * 1000:+.1f}"
        undo = f"{statistics.median(row.undos) * 1000:.1f}" if row.undos else ""
        redo = f"{statistics.median(row.redos) * 1000:.1f}" if row.redos else ""
        lines.append(f"| {row.size} | {row.how} | {row.turn * 1000:.1f} | {more} | {undo} | {redo} |")
    return "\n".join(lines)


def missed(rows: list[Row]) -> list[str]:
    """The mounted rows that miss the goal."""
    base = {row.size: row.turn for row in rows if row.how == "none"}
    goal = f"not {GOAL_SECONDS * 1000:.0f}"
    return [
        f"a turn in {row.size} files takes {(row.turn - base[row.size]) * 1000:.1f} ms more, {goal}"
        for row in rows
        if row.how == "mounted" and row.turn - base[row.size] > GOAL_SECONDS
    ]


def main() -> int:
    """The exit status: 0 if every goal is met."""
    parser = argparse.ArgumentParser(prog="python -m bench.agent_turns", description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="how many files (%(default)s)")
    parser.add_argument("--turns", type=int, default=TURNS, help="turns of each (%(default)s)")
    options = parser.parse_args()
    rows = measure(tuple(int(size) for size in options.sizes.split(",")), options.turns)
    print(table(rows))
    failures = missed(rows)
    for failure in failures:
        print(f"MISSED {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
