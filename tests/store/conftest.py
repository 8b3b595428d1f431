"""What the tests of the store share."""

from __future__ import annotations

import itertools
import os

import pytest

from store.disk import Disk
from store.home import Home, WorkspaceIdentity
from store.refs import CheckpointId


class Tick:
    """A clock that gives what it is told, else one nanosecond more each time."""

    def __init__(self) -> None:
        self.now = 1_000_000_000_000

    def time_ns(self) -> int:
        self.now += 1
        return self.now


class Counted:
    """Ids in order."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def checkpoint(self) -> CheckpointId:
        return CheckpointId(f"{next(self._numbers):012x}")


@pytest.fixture
def clock():
    return Tick()


@pytest.fixture
def ids():
    return Counted()


@pytest.fixture
def top(tmp_path):
    return os.fsencode(tmp_path)


@pytest.fixture
def home(top, clock, ids):
    return Home.open(top + b"/home", Disk(), clock, ids)


@pytest.fixture
def workspace(home, top):
    os.mkdir(top + b"/project")
    return home.workspace(WorkspaceIdentity.of(top + b"/project"), top + b"/project")
