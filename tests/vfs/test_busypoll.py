"""When a serving thread waits awake for the next request, and when it stops doing so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vfs.channels import busypoll
from vfs.channels.busypoll import BusyPoll


class World:
    """A descriptor with or without something to read, a clock that each look moves on, and what the scheduler did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reader, self.writer = os.pipe()
        self.now = 0
        self.looks = 0
        self.switches = 0
        monkeypatch.setattr(busypoll.time, "monotonic_ns", self._clock)
        monkeypatch.setattr(busypoll, "_taken_away", lambda: self.switches)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})

    def _clock(self) -> int:
        self.looks += 1
        self.now += busypoll.WINDOW_NS // 10
        return self.now

    def ask(self) -> None:
        """Somebody makes a request before the thread waits."""
        os.write(self.writer, b"x")

    def taken(self) -> None:
        """The request was read."""
        os.read(self.reader, 1)

    def awake(self, poll: BusyPoll) -> bool:
        """Whether the next wait looks at all."""
        before = self.looks
        poll.wait()
        return self.looks > before

    def served(self, poll: BusyPoll, count: int) -> int:
        """``count`` requests, each there at once; returns for how many of them the thread waited awake."""
        awake = 0
        for _ in range(count):
            self.ask()
            awake += self.awake(poll)
            self.taken()
        return awake


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(monkeypatch)
    yield world
    os.close(world.reader)
    os.close(world.writer)


def started(world: World) -> BusyPoll:
    """A thread that has led long enough to wait awake."""
    poll = BusyPoll(world.reader)
    assert world.served(poll, busypoll.FIRST_REST) == 0
    return poll


def test_requests_that_follow_each_other_are_waited_for_awake(world: World) -> None:
    assert world.served(started(world), 1000) == 1000


def test_a_wait_in_vain_ends_with_its_window(world: World) -> None:
    poll = started(world)
    begin = world.now
    poll.wait()
    assert busypoll.WINDOW_NS < world.now - begin < 2 * busypoll.WINDOW_NS


def test_waits_in_vain_become_rare(world: World) -> None:
    poll = started(world)
    awake = sum(world.awake(poll) for _ in range(10_000))
    assert awake < 60
    later = sum(world.awake(poll) for _ in range(10 * (busypoll.LONGEST_REST + 1)))
    assert 0 < later <= 10


def test_it_is_tried_again_and_kept_up_once_it_pays(world: World) -> None:
    poll = started(world)
    for _ in range(5000):
        poll.wait()
    world.served(poll, busypoll.LONGEST_REST + 1)
    assert world.served(poll, 100) == 100


def test_now_and_then_in_vain_is_put_up_with(world: World) -> None:
    poll = started(world)
    for _ in range(100):
        assert world.awake(poll)
        assert world.served(poll, busypoll.PATIENCE) == busypoll.PATIENCE


def test_the_processor_is_left_to_others_when_the_scheduler_took_it(world: World) -> None:
    poll = started(world)
    world.served(poll, 5)
    world.switches += 1
    assert world.served(poll, busypoll.CHECKED_EVERY) <= busypoll.CHECKED_EVERY
    assert world.served(poll, busypoll.CROWDED_REST - busypoll.CHECKED_EVERY) == 0
    assert world.served(poll, 2 * busypoll.CHECKED_EVERY) > busypoll.CHECKED_EVERY // 2


def test_whoever_takes_the_lead_begins_asleep(world: World) -> None:
    poll = started(world)
    assert world.awake(poll)
    poll.begin()
    assert world.served(poll, busypoll.FIRST_REST) == 0
    assert world.served(poll, 1) == 1


def test_with_one_processor_nobody_waits_awake(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert world.served(BusyPoll(world.reader), 1000) == 0


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, 2),
        ({"cpu.max": "max 100000\n"}, 2),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n", "a/b/cpu.max": "50000 100000\n"}, 0.5),
        ({"cpu.max": "800000 100000\n"}, 2),
        ({"cpu.max": "nonsense"}, 2),
    ],
)
def test_the_quota_of_the_control_group_counts(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limits: dict[str, str], expected: float
) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    for name, text in limits.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "cgroup").write_text("1:name=x:/c\n0::/a/b\n")
    monkeypatch.setattr(busypoll, "CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(busypoll, "CGROUP_ROOT", tmp_path)
    assert busypoll.processors() == expected
    assert (world.served(BusyPoll(world.reader), 1000) > 0) is (expected >= 2)
    monkeypatch.setattr(busypoll, "CGROUP", tmp_path / "none")
    assert busypoll.processors() == 2
