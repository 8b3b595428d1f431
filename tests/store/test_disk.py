"""The real disk: modes, replacing by rename, and what a full file system becomes."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from store.disk import Disk, RandomIds, SystemClock, boot_id, make_directories, read_file
from store.errors import NoSpaceError
from tests.store.faulty_disk import FaultyDisk


def test_files_and_directories_are_private(top):
    disk = Disk()
    disk.mkdir(top + b"/d")
    disk.write_new(top + b"/d/f", b"x", sync=True)
    assert stat.S_IMODE(os.stat(top + b"/d").st_mode) == 0o700
    assert stat.S_IMODE(os.stat(top + b"/d/f").st_mode) == 0o600
    with pytest.raises(FileExistsError):
        disk.write_new(top + b"/d/f", b"y")
    assert read_file(top + b"/d/f") == b"x"


def test_replace_survives_a_writer_that_was_killed(top):
    disk = Disk()
    path = top + b"/f"
    disk.replace(path, b"one", sync=False)
    disk.write_new(path + b".new", b"half")
    disk.replace(path, b"two", sync=True)
    assert read_file(path) == b"two"
    assert os.listdir(top) == [b"f"]


def test_a_full_file_system_is_its_own_error_and_leaves_no_file(top):
    for code, word in ((errno.ENOSPC, "no space left"), (errno.EDQUOT, "quota")):

        class Full(Disk):
            @staticmethod
            def append(fd, data, code=code):
                raise OSError(code, os.strerror(code))

        with pytest.raises(NoSpaceError, match=word):
            Full().write_new(top + b"/f", b"data")
        assert os.listdir(top) == []


def test_other_failures_stay_what_they_are(top):
    with pytest.raises(FileNotFoundError):
        Disk().rename(top + b"/none", top + b"/other")
    with pytest.raises(NotADirectoryError):
        Disk().write_new(b"/dev/null/x", b"")


def test_a_replacement_that_fails_leaves_the_old_file(top):
    path = top + b"/f"
    Disk().replace(path, b"old", sync=False)
    for full_at in range(6):
        disk = FaultyDisk(full_at=full_at)
        try:
            disk.replace(path, b"new", sync=True)
        except NoSpaceError:
            assert read_file(path) in (b"old", b"new")
        Disk().replace(path, b"old", sync=False)


def test_directories_are_made_up_to_the_root(top):
    make_directories(Disk(), top + b"/a/b/c")
    make_directories(Disk(), top + b"/a/b/c")
    assert os.path.isdir(top + b"/a/b/c")
    Disk().write_new(top + b"/file", b"")
    with pytest.raises((NotADirectoryError, FileExistsError)):
        make_directories(Disk(), top + b"/file/x")


def test_syncfs(top):
    fd = os.open(top, os.O_RDONLY)
    try:
        Disk().syncfs(fd)
    finally:
        os.close(fd)


def test_large_reads(top):
    Disk().write_new(top + b"/f", bytes(3 << 20))
    assert read_file(top + b"/f") == bytes(3 << 20)
    assert len(read_file(b"/proc/self/status")) > 100  # says it has no bytes


def test_names_and_times():
    assert len(RandomIds().checkpoint()) == 12
    assert SystemClock().time_ns() > 1_600_000_000_000_000_000
    assert boot_id() == boot_id() != ""
