"""A workload: groups of steps that run one after the other in one directory, each of them a line of the table."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.material import Material
from bench.samples import FUSE_OVERLAYFS, Goal, Unit

WARM_READ = (Goal(1.1), Goal(1.0, FUSE_OVERLAYFS))
CHANGE = (Goal(2.5), Goal(1.0, FUSE_OVERLAYFS))
SEQUENTIAL = (Goal(0.7), Goal(1.0, FUSE_OVERLAYFS))
AS_FUSE_OVERLAYFS = (Goal(1.0, FUSE_OVERLAYFS),)


@dataclass(frozen=True)
class Step:
    """One timed action. The line shows seconds per ``count`` things, or, for MB/s, ``count`` bytes per second.

    ``before`` runs untimed; ``cold`` asks for empty kernel caches. An action that returns a float has timed itself.
    """

    line: str
    action: Callable[[], object]
    goals: tuple[Goal, ...] = AS_FUSE_OVERLAYFS
    unit: Unit = "s"
    count: int = 1
    cold: bool = False
    before: Callable[[], object] | None = None

    def figure(self, seconds: float) -> float:
        """What the table shows for an action that took ``seconds``."""
        match self.unit:
            case "MB/s":
                return self.count / 1e6 / seconds
            case "us":
                return seconds * 1e6 / self.count
            case "ms":
                return seconds * 1e3 / self.count
            case _:
                return seconds / self.count


class Group(Protocol):
    """Steps that share a directory and one mount."""

    name: str

    def lacking(self, material: Material) -> str:
        """Why it cannot run here; empty if it can."""
        ...

    def prepare(self, base: Path, material: Material) -> None:
        """Fill the base, before it is mounted."""
        ...

    def steps(self, top: Path, material: Material) -> Iterable[Step]:
        """The steps in ``top``, which is the mount."""
        ...


def command(*words: str | Path, cwd: Path, **environment: str) -> Callable[[], object]:
    """An action that runs a program and wants it to succeed."""
    from bench.material import ENVIRONMENT

    line = [str(word) for word in words]

    def run() -> object:
        done = subprocess.run(
            line,
            cwd=cwd,
            env={**ENVIRONMENT, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(
                f"{' '.join(line)}: exit {done.returncode}: {done.stderr.decode(errors='replace')[-800:]}"
            )
        return done

    return run
