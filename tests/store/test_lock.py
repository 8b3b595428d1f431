"""Locks: one owner, named; a dead one is no obstacle."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from store import lock as lock_module
from store.errors import LockedError
from store.lock import Lock, Owner, process_start, this_process


@pytest.fixture
def path(top):
    return top + b"/lock"


def test_one_owner_at_a_time_who_is_named(path):
    first, second = Lock(path), Lock(path)
    assert first.owner() is None
    with first:
        assert first.held
        assert second.owner() == this_process()
        assert second.owner().is_alive()
        with pytest.raises(LockedError, match=f"process {os.getpid()} ") as caught:
            second.acquire()
        assert caught.value.hint
        assert not second.held
        with first:  # entering again changes nothing
            pass
        first.acquire()
        first.release()
    with second:
        assert second.held
    first.release()
    assert first.owner() is None


HOLD = """
import os, sys
sys.path.insert(0, sys.argv[2])
from store.lock import Lock
lock = Lock(os.fsencode(sys.argv[1]))
lock.acquire()
if len(sys.argv) > 3 and os.fork():
    print("dies", flush=True)
    os._exit(0)
if len(sys.argv) <= 3:
    print("holds", flush=True)
sys.stdin.read()
"""


def held_by_another(path, *more):
    root = os.path.dirname(os.path.dirname(os.path.abspath(lock_module.__file__)))
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, os.fsdecode(path), root, *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    process.stdout.readline()
    return process


def test_a_killed_owner_is_no_obstacle(path):
    process = held_by_another(path)
    try:
        with pytest.raises(LockedError, match=f"process {process.pid} "):
            Lock(path).acquire()
    finally:
        process.kill()
        process.communicate()
    lock = Lock(path)
    assert not lock.owner().is_alive()
    with lock:
        assert lock.owner() == this_process()


def test_a_lock_that_a_child_of_its_dead_owner_inherited_is_taken_over(path):
    process = held_by_another(path, "fork")
    try:
        process.wait()
        first, second = Lock(path), Lock(path)
        with first:
            assert first.owner() == this_process()
            with pytest.raises(LockedError):
                second.acquire()
    finally:
        process.communicate()


def test_owners_that_cannot_be_seen_count_as_alive():
    me = this_process()
    assert not msgspec.structs.replace(me, start="1").is_alive()
    assert msgspec.structs.replace(me, start="1", namespace=1).is_alive()
    assert msgspec.structs.replace(me, pid=2**22 + 1, boot="another machine").is_alive()
    assert process_start(2**22 + 1) is None


def test_a_zombie_is_dead():
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    process.stdout.read()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process_start(process.pid) is None
    process.wait()
    process.stdout.close()


def test_garbage_in_the_file_names_nobody(path):
    with open(path, "wb") as file:
        file.write(b"garbage")
    assert Lock(path).owner() is None
    with Lock(path) as lock:
        assert isinstance(lock.owner(), Owner)
