"""The results as a markdown table for people and as JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

from bench.samples import PLAIN, Line, Sheet

GOAL_COLUMN = "plyfs direct"


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    top = Path(__file__).parent
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=top, capture_output=True, text=True, check=False
    )
    return {
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / (1 << 30)),
        "load": os.getloadavg()[0],
        "commit": commit.stdout.strip(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _cell(line: Line, column: str) -> str:
    median, spread = line.median(column), line.spread(column)
    if median is None or spread is None:
        return ""
    text = _number(median)
    if len(line.samples[column]) > 1:
        text += f" ({_number(spread[0])} to {_number(spread[1])})"
    ratio = line.ratio(column)
    if ratio is not None and column != PLAIN:
        text += f" **{ratio:.2f}x**"
    return text


def _goal(line: Line) -> str:
    """Each goal with whether the direct channel meets it."""
    verdicts = {goal: (figure, met) for goal, figure, met in line.verdict(GOAL_COLUMN)}
    words = []
    for goal in line.goals:
        if goal in verdicts:
            figure, met = verdicts[goal]
            sign = ">=" if line.more_is_better else "<="
            words.append(f"{sign} {goal.words()}: {'met' if met else f'MISSED ({figure:.2f})'}")
    return "; ".join(words)


def markdown(sheet: Sheet, facts: dict[str, Any], failures: list[str]) -> str:
    """One table for each group of lines, each with the columns that it has figures for."""
    known = ", ".join(f"{name} {value}" for name, value in facts.items())
    out = [f"Medians (least to greatest) of one run, **ratio to the plain directory**. {known}.", ""]
    groups: dict[str, list[Line]] = {}
    for line in sheet.lines.values():
        groups.setdefault(line.group, []).append(line)
    for group, lines in groups.items():
        columns: list[str] = []
        for line in lines:
            columns += [column for column in line.samples if column not in columns]
        out += [f"### {group}", "", f"| | {' | '.join(columns)} | goal |", f"|---|{'---|' * (len(columns) + 1)}"]
        for line in lines:
            cells = " | ".join(_cell(line, column) for column in columns)
            out.append(f"| {line.name}, {line.unit} | {cells} | {_goal(line)} |")
        out.append("")
    if failures:
        out += ["### not measured", "", *(f"- {failure}" for failure in failures), ""]
    return "\n".join(out)


def save(path: Path, sheet: Sheet, facts: dict[str, Any], failures: list[str]) -> None:
    """``results.json`` and ``results.md`` in the directory ``path``."""
    path.mkdir(parents=True, exist_ok=True)
    lines = [line.plain() for line in sheet.lines.values()]
    value = {"machine": facts, "lines": lines, "not_measured": failures}
    (path / "results.json").write_text(json.dumps(value, indent=1) + "\n")
    (path / "results.md").write_text(markdown(sheet, facts, failures))
