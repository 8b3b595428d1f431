"""Working files: any number of them with few descriptors, and bytes that outlive closing."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from vfs.errors import FsError
from vfs.live.working import MOST_OPEN, OpenFiles, WorkingData, WorkingFile


@pytest.fixture
def data(tmp_path: Path) -> WorkingData:
    return WorkingData(os.fsencode(tmp_path))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_more_files_than_descriptors(data: WorkingData) -> None:
    before = descriptors()
    files = [data.create() for _ in range(MOST_OPEN + 200)]
    for number, file in enumerate(files):
        file.pwrite(b"file %d" % number, 1000)
    assert descriptors() - before <= MOST_OPEN
    assert [file.pread(6, 1000) for file in files[:10]] == [b"file %d" % number for number in range(10)]
    for file in files:
        file.sync()
    assert descriptors() - before <= MOST_OPEN
    del files, file
    data.freeze()
    assert descriptors() == before


def test_a_file_closed_meanwhile_is_as_it_was(tmp_path: Path) -> None:
    few = OpenFiles(most=2)
    files = [WorkingFile(few, os.fsencode(tmp_path / str(number)), number, False) for number in range(5)]
    assert [file.descriptor is not None for file in files] == [False, False, False, True, True]
    files[0].pwrite(b"first", 0)
    files[1].pwrite(b"second", 0)
    files[2].pwrite(b"third", 0)
    assert files[0].descriptor is None
    files[0].sync()
    assert files[0].pread(5, 0) == b"first"
    assert files[0].synced
    files[1].temporary = True
    files[1] = files[0]
    assert not (tmp_path / "1").exists()


def test_one_that_is_gone_is_an_error(tmp_path: Path) -> None:
    few = OpenFiles(most=1)
    first, _second = (WorkingFile(few, os.fsencode(tmp_path / str(number)), number, False) for number in range(2))
    (tmp_path / "0").unlink()
    with pytest.raises(FsError):
        first.pread(1, 0)


def test_readers_beside_closing(tmp_path: Path) -> None:
    few = OpenFiles(most=2)
    files = [WorkingFile(few, os.fsencode(tmp_path / str(number)), number, False) for number in range(8)]
    for file in files:
        file.pwrite(b"%d" % file.number * 100, 0)
    wrong: list[object] = []

    def read(start: int) -> None:
        for step in range(2000):
            file = files[(start + step) % len(files)]
            try:
                if file.pread(100, 0) != b"%d" % file.number * 100:
                    wrong.append(file.number)
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
