"""The workloads, one module for each kind."""

from __future__ import annotations

from bench.groups.builds import Builds
from bench.groups.data import Data
from bench.groups.javascript import JavaScript
from bench.groups.processes import FourProcesses
from bench.groups.python import PythonPackages
from bench.groups.repositories import Repositories
from bench.groups.small_files import SmallFiles
from bench.groups.trees import Trees
from bench.steps import Group


def all_groups(quick: bool) -> list[Group]:
    """Every workload, in the order of the table."""
    return [
        SmallFiles(500 if quick else 3000),
        Repositories(),
        Trees(),
        JavaScript(),
        PythonPackages(),
        Builds(),
        Data(quick),
        FourProcesses(200 if quick else 1000),
    ]
