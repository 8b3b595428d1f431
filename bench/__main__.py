"""``make bench``: one table from one run. ``--quick`` takes a few minutes; without it everything, over an hour."""

from __future__ import annotations

import argparse
import compileall
import os
import shutil
import sys
import tempfile
from pathlib import Path

from bench import agent_turns, checkpoints, footprint, plot, report
from bench.groups import all_groups
from bench.material import KEPT, Material
from bench.rounds import Rounds, note
from bench.samples import Sheet
from bench.targets import all_targets

TOP = Path(__file__).resolve().parent.parent


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller sizes")
    parser.add_argument("--rounds", type=int, help="rounds of the workloads (3, quick 1)")
    parser.add_argument(
        "--only", metavar="WORD", help="only groups whose name contains WORD; also: checkpoints, footprint, agents"
    )
    parser.add_argument("--targets", metavar="NAME,...", help="only these columns")
    parser.add_argument("--directory", type=Path, default=KEPT, help="where to work: decides the disk (%(default)s)")
    parser.add_argument("--plot", type=Path, help="draw the cost curves there (full run: docs/checkpoint-cost.svg)")
    return parser.parse_args()


def as_installed() -> None:
    """Let plyfs start from bytecode, as it does once installed, whatever the environment says."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for package in ("store", "vfs", "harness"):
        compileall.compile_dir(TOP / package, quiet=2)


def main() -> int:
    """The exit status: 0 if everything that could be measured was."""
    options = arguments()
    as_installed()
    options.directory = options.directory.resolve()
    options.directory.mkdir(parents=True, exist_ok=True)
    material = Material(KEPT / "material")
    note("preparing sources, a repository, npm's cache and wheels")
    material.prepare()
    wanted = options.targets.split(",") if options.targets else None
    targets = [target for target in all_targets() if wanted is None or target.name in wanted]
    failures = [f"{target.name}: not measured: {target.lacking()}" for target in targets if target.lacking()]
    targets = [target for target in targets if not target.lacking()]
    groups = [group for group in all_groups(options.quick) if options.only is None or options.only in group.name]
    sheet = Sheet()
    scratch = Path(tempfile.mkdtemp(prefix="run-", dir=options.directory))
    try:
        rounds = Rounds(sheet, material, scratch)
        rounds.run(groups, targets, options.rounds or (1 if options.quick else 3))
        failures += rounds.failures
        channels = [name for name in ("direct", "pyfuse3") if any(f"plyfs {name}" == target.name for target in targets)]
        for channel in channels:
            try:
                costs(sheet, scratch, options, channel)
            except Exception as error:
                failures.append(f"checkpoints and footprint, {channel}: {type(error).__name__}: {error}")
                note(f"FAILED {failures[-1]}")
        if options.only in (None, "agents"):
            try:
                agent_turns.add_to(sheet, (1000, 10_000) if options.quick else agent_turns.SIZES)
            except Exception as error:
                failures.append(f"turns of an agent: {type(error).__name__}: {error}")
                note(f"FAILED {failures[-1]}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    facts = report.machine()
    report.save(KEPT, sheet, facts, failures)
    print(report.markdown(sheet, facts, failures))
    where = options.plot or (TOP / "docs/checkpoint-cost.svg" if not options.quick and options.only is None else None)
    if where is not None and not plot.draw(sheet, where):
        note("no plot: figures or matplotlib are missing")
    note(f"kept in {KEPT}/results.json and results.md")
    return 1 if any("FAILED" in failure or "Error" in failure for failure in failures) else 0


def costs(sheet: Sheet, scratch: Path, options: argparse.Namespace, channel: str) -> None:
    """What checkpoints cost (over the direct channel in full, over pyfuse3 in short) and what plyfs takes itself."""
    direct = channel == "direct"
    if options.only in (None, "checkpoints"):
        sizes = [1000, 10_000] if options.quick or not direct else [1000, 10_000, 100_000, 1_000_000]
        counts = [1, 100] if options.quick or not direct else [1, 100, 1000, 10_000]
        checkpoints.by_size(sheet, scratch, sizes, channel)
        checkpoints.by_history(sheet, scratch, counts, channel)
        if direct:
            checkpoints.of_a_big_file(sheet, scratch, (128 << 20) if options.quick else (1 << 30), channel)
            checkpoints.others(sheet, scratch, sizes[:3])
    if options.only in (None, "footprint"):
        footprint.memory(sheet, scratch, 10_000 if options.quick else 200_000, channel)
        if direct:
            footprint.start(sheet, scratch, 7 if options.quick else 21)


if __name__ == "__main__":
    sys.exit(main())
