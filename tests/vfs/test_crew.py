"""Whose turn it is to serve, without a mount: requests come from queues."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from vfs.channels.crew import Crew, Member

pytestmark = pytest.mark.timeout(30)


class Office:
    """A crew that runs callables from a queue; None ends it."""

    def __init__(self, size: int) -> None:
        self.requests: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.ended = threading.Event()
        self.served_by: list[str] = []
        self.crew = Crew(size, self._serve, self.ended.set)
        self.crew.start()

    def _serve(self, member: Member) -> bool:
        while self.crew.leader is member:
            request = self.requests.get()
            if request is None:
                return False
            member.turns += 1
            if self.crew.dozing:
                self.crew.rouse()
            self.served_by.append(threading.current_thread().name)
            request()
            member.turns += 1
        return True

    def close(self) -> None:
        self.requests.put(None)
        assert self.crew.wait(10)
        assert self.ended.is_set()


@pytest.fixture
def office() -> Iterator[Office]:
    office = Office(3)
    yield office
    office.close()


def test_one_thread_serves_as_long_as_it_is_quick(office: Office) -> None:
    done = threading.Event()
    for _ in range(500):
        office.requests.put(lambda: None)
    office.requests.put(done.set)
    assert done.wait(10)
    assert len(set(office.served_by)) == 1


def test_a_slow_request_does_not_hold_up_the_next(office: Office) -> None:
    release, done = threading.Event(), threading.Event()
    for _ in range(5):
        office.requests.put(lambda: release.wait(10) and None)
        office.requests.put(done.set)
        assert done.wait(5), "nobody relieved the blocked thread"
        done.clear()
        release.set()
        time.sleep(0.02)
        release.clear()


def test_who_says_it_will_block_is_relieved_at_once(office: Office) -> None:
    release, done = threading.Event(), threading.Event()

    def block() -> None:
        office.crew.relieve()
        office.crew.relieve()  # no longer the leader: nothing happens
        release.wait(10)

    office.requests.put(block)
    office.requests.put(done.set)
    assert done.wait(5)
    release.set()


def test_when_all_are_blocked_the_rest_waits_for_the_first_to_be_free(office: Office) -> None:
    release, done = threading.Event(), threading.Event()
    for _ in range(3):
        office.requests.put(lambda: (office.crew.relieve(), release.wait(10), None)[2])
    office.requests.put(done.set)
    assert not done.wait(0.1)
    release.set()
    assert done.wait(5)


def test_others_relieve_nobody(office: Office) -> None:
    office.crew.relieve()
    assert office.crew.leader.thread is not threading.current_thread()


def test_the_lookout_sleeps_and_is_roused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vfs.channels.crew.DOZE_TICKS", 2)
    office = Office(2)
    deadline = time.monotonic() + 10
    while not office.crew.dozing:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    release, done = threading.Event(), threading.Event()
    office.requests.put(lambda: release.wait(10) and None)
    office.requests.put(done.set)
    assert done.wait(5)
    release.set()
    office.close()


def test_a_crew_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    office = Office(1)
    done = threading.Event()
    office.requests.put(office.crew.relieve)
    office.requests.put(lambda: time.sleep(0.05))
    office.requests.put(done.set)
    assert done.wait(5)
    office.close()
