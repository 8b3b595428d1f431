"""Samples of one run and what a table shows of them: the median, and the spread around it.

Owns the numbers; knows nothing of how they came about.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any, Literal

Unit = Literal["s", "ms", "us", "MB/s", "KiB", "MiB"]

PLAIN = "plain"
FUSE_OVERLAYFS = "fuse-overlayfs"


@dataclass(frozen=True)
class Goal:
    """What plyfs must reach on a line, against another column of the same run.

    ``ratio`` bounds the plyfs figure divided by that of ``against``: from above, or from below for a throughput. None
    for ``against`` makes it an absolute bound.
    """

    ratio: float
    against: str | None = PLAIN

    def words(self) -> str:
        """As the table's goal column shows it."""
        return f"{self.ratio:.4g}" if self.against is None else f"{self.ratio:.4g} x {self.against}"


@dataclass
class Line:
    """One row: samples by column. ``better`` says which way is good."""

    group: str
    name: str
    unit: Unit
    goals: tuple[Goal, ...] = ()
    samples: dict[str, list[float]] = field(default_factory=dict)

    @property
    def more_is_better(self) -> bool:
        """True for throughput."""
        return self.unit == "MB/s"

    def add(self, column: str, value: float) -> None:
        """One more sample."""
        self.samples.setdefault(column, []).append(value)

    def median(self, column: str) -> float | None:
        """The middle sample of ``column``, None if there is none."""
        values = self.samples.get(column)
        return statistics.median(values) if values else None

    def spread(self, column: str) -> tuple[float, float] | None:
        """The least and the greatest sample."""
        values = self.samples.get(column)
        return (min(values), max(values)) if values else None

    def ratio(self, column: str, against: str = PLAIN) -> float | None:
        """How many times the median of ``against`` that of ``column`` is."""
        mine, other = self.median(column), self.median(against)
        return mine / other if mine is not None and other else None

    def verdict(self, column: str) -> list[tuple[Goal, float, bool]]:
        """For each goal that can be judged: the figure it speaks of and whether it is met."""
        found = []
        for goal in self.goals:
            figure = self.median(column) if goal.against is None else self.ratio(column, goal.against)
            if figure is not None:
                met = figure >= goal.ratio if self.more_is_better else figure <= goal.ratio
                found.append((goal, figure, met))
        return found

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "group": self.group,
            "name": self.name,
            "unit": self.unit,
            "goals": [{"ratio": goal.ratio, "against": goal.against} for goal in self.goals],
            "samples": self.samples,
        }


class Sheet:
    """All lines of a run, in the order they first appeared."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, str], Line] = {}

    def line(self, group: str, name: str, unit: Unit, goals: tuple[Goal, ...] = ()) -> Line:
        """The line of that name, made if it is new."""
        key = (group, name)
        if key not in self.lines:
            self.lines[key] = Line(group, name, unit, goals)
        return self.lines[key]
