"""Removing folders of the attic, whatever is in them."""

from __future__ import annotations

import os

from store import attic
from store.disk import Disk
from tests.store.faulty_disk import Crash, FaultyDisk


def fill(where):
    os.makedirs(where + b"/1/a/b/c")
    os.makedirs(where + b"/1/closed")
    os.makedirs(where + b"/2/other")
    for path in (b"/1/f", b"/1/a/f", b"/1/a/b/c/f", b"/1/closed/f", b"/2/other/f"):
        with open(where + path, "wb") as file:
            file.write(b"x")
    os.symlink(b"../2", where + b"/1/link")
    os.mkfifo(where + b"/1/a/fifo")
    os.chmod(where + b"/1/closed/f", 0)
    os.chmod(where + b"/1/closed", 0)
    os.chmod(where + b"/1/a/b", 0o500)


def test_only_the_folder_goes(top):
    fill(top)
    assert attic.folders(top) == [1, 2]
    attic.remove_folder(Disk(), top, 1)
    assert os.listdir(top) == [b"2"]
    assert os.path.exists(top + b"/2/other/f")


def test_a_kill_at_any_step_leaves_what_the_next_removal_takes(top):
    step = 0
    finished = False
    while not finished:
        step += 1
        where = top + b"/%d" % step
        os.mkdir(where)
        fill(where)
        try:
            attic.remove_folder(FaultyDisk(stop_after=step), where, 1)
            finished = True
        except Crash:
            assert 1 not in attic.folders(where)
        attic.remove_leftovers(Disk(), where)
        assert os.listdir(where) == [b"2"]
        assert os.path.exists(where + b"/2/other/f")
    assert step > 12


def test_paths_longer_than_a_path_may_be(top):
    name = b"n" * 200
    os.mkdir(top + b"/1")
    fd = os.open(top + b"/1", os.O_RDONLY)
    for _ in range(40):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    attic.remove_folder(Disk(), top, 1)
    assert os.listdir(top) == []
