"""One thread while there is work to do, several once it is the disk that is waited for; the same results either way."""

from __future__ import annotations

import threading
import types

import pytest

from vfs.scan import workers
from vfs.scan.workers import Workers, in_order


class Clocks:
    """Time that passes by itself, of which ``share`` is work."""

    def __init__(self, share: float) -> None:
        self.now = 0.0
        self.share = share

    def perf_counter(self) -> float:
        self.now += 0.002
        return self.now

    def thread_time(self) -> float:
        return self.now * self.share


@pytest.fixture(params=["working", "waiting"])
def several(request, monkeypatch) -> bool:
    """Whether several threads are to be expected."""
    clocks = Clocks(1.0 if request.param == "working" else 0.1)
    monkeypatch.setattr(
        workers, "time", types.SimpleNamespace(perf_counter=clocks.perf_counter, thread_time=clocks.thread_time)
    )
    return request.param == "waiting"


def test_results_in_order(several: bool) -> None:
    seen: set[str] = set()

    def one(task: int) -> int:
        seen.add(threading.current_thread().name)
        return task * 2

    assert list(in_order(one, range(100), 4)) == [2 * task for task in range(100)]
    assert any(name.startswith("plyfs-read") for name in seen) == several
    seen.clear()
    assert list(in_order(one, range(100), 1)) == [2 * task for task in range(100)]
    assert seen == {threading.current_thread().name}


def test_a_heap_that_grows(several: bool) -> None:
    seen: set[str] = set()
    done: list[int] = []

    def one(task: int) -> list[int]:
        seen.add(threading.current_thread().name)
        done.append(task)
        return [2 * task, 2 * task + 1] if task < 500 else []

    Workers(one).run([1], 4)
    assert sorted(done) == list(range(1, 1000))
    assert ("plyfs-walk" in seen) == several


def test_the_first_failure_ends_all(several: bool) -> None:
    def one(task: int) -> int:
        if task == 40:
            raise ValueError(task)
        return task

    taken = []
    with pytest.raises(ValueError, match="40"):
        for result in in_order(one, range(100), 4):
            taken.append(result)
    assert taken == list(range(40))
    with pytest.raises(ValueError, match="40"):
        Workers(lambda task: [one(task) + 1]).run([1], 4)
