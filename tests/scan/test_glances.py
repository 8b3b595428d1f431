"""What is compared of a directory's files is the same however it is asked for, and any change of it shows."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from vfs.scan import glances
from vfs.scan.glances import SLOTS, columns, glance

TIMES = (0, 1, -1, -1_500_000_001, 999_999_999, 1_796_134_137_495_750_712, 10_413_792_000_123_456_789)


@pytest.fixture(params=["statx", "lstat"])
def top(request, monkeypatch, tmp_path: Path) -> Path:
    if request.param == "lstat":
        monkeypatch.setattr(glances._mine, "statx", None)
    else:
        assert glances._mine.statx is not None
    return tmp_path


def look(top: Path, names: list[bytes]) -> bytes:
    handle = os.open(top, os.O_PATH | os.O_DIRECTORY)
    try:
        return glance(handle, names)
    finally:
        os.close(handle)


def known(top: Path, names: list[bytes]) -> bytes:
    found = [os.lstat(os.fsencode(top) + b"/" + name) for name in names]
    return columns((one.st_ino, one.st_size, one.st_ctime_ns, one.st_mtime_ns) for one in found)


@pytest.mark.parametrize("count", [0, 1, SLOTS - 1, SLOTS, SLOTS + 1, 2 * SLOTS + 7])
def test_any_number_of_files(top: Path, count: int) -> None:
    names = [b"%d \xff" % number for number in range(count)]
    for number, name in enumerate(names):
        with open(os.fsencode(top) + b"/" + name, "wb") as file:
            file.write(b"x" * number)
    assert look(top, names) == known(top, names)


def test_times_before_1970_and_after_2262(top: Path) -> None:
    for number, ns in enumerate(TIMES):
        (top / str(number)).touch()
        os.utime(top / str(number), ns=(ns, ns))
    names = [str(number).encode() for number in range(len(TIMES))]
    assert look(top, names) == known(top, names)


def test_links_are_not_followed_and_what_is_gone_is_told(top: Path) -> None:
    (top / "file").write_text("content")
    os.symlink("file", top / "link")
    os.mkfifo(top / "fifo")
    names = [b"link", b"fifo", b"file"]
    assert look(top, names) == known(top, names)
    (top / "fifo").unlink()
    with pytest.raises(FileNotFoundError, match="fifo"):
        look(top, names)


def test_by_several_threads(top: Path) -> None:
    for thread in range(4):
        (top / str(thread)).mkdir()
        for number in range(300):
            (top / str(thread) / str(number)).write_bytes(b"x" * number)
    names = [str(number).encode() for number in range(300)]
    wrong = []

    def watch(directory: Path) -> None:
        expected = known(directory, names)
        wrong.extend(directory for _ in range(30) if look(directory, names) != expected)

    threads = [threading.Thread(target=watch, args=(top / str(thread),)) for thread in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert wrong == []


def test_every_change_shows(top: Path) -> None:
    path = top / "file"
    path.write_text("before")
    seen = look(top, [b"file"])
    status = path.stat()
    time.sleep(0.02)
    path.write_text("behind")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert look(top, [b"file"]) != seen, "its change time"
    seen = look(top, [b"file"])
    path.read_text()
    os.utime(top)
    assert look(top, [b"file"]) == seen
    (top / "other").write_text("behind")
    os.rename(top / "other", path)
    assert look(top, [b"file"]) != seen
