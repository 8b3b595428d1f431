"""Bytes of files, as POSIX and Linux have them, in a mounted directory."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.servers import Server

pytestmark = [pytest.mark.mounted, pytest.mark.timeout(60)]

FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    if _libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def python(code: str, *arguments: object) -> str:
    """Run ``code`` in a process of its own and return what it prints."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout


def test_what_is_written_is_read(place: Path) -> None:
    data = os.urandom(3_000_001)
    (place / "a").write_bytes(data)
    assert (place / "a").read_bytes() == data
    assert os.stat(place / "a").st_size == len(data)
    fd = os.open(place / "a", os.O_RDWR)
    os.pwrite(fd, b"patch", 1_234_567)
    assert os.pread(fd, 7, 1_234_566) == data[1_234_566:1_234_567] + b"patch" + data[1_234_572:1_234_573]
    assert os.pread(fd, 10, len(data)) == b""
    os.close(fd)


def test_another_process_reads_it_too(place: Path) -> None:
    (place / "a").write_bytes(b"shared")
    assert python("import sys; print(open(sys.argv[1]).read(), end='')", place / "a") == "shared"
    python("import sys; open(sys.argv[1], 'a').write(' more')", place / "a")
    assert (place / "a").read_bytes() == b"shared more"


def test_append_always_goes_to_the_end(place: Path) -> None:
    one = os.open(place / "a", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    two = os.open(place / "a", os.O_WRONLY | os.O_APPEND)
    for number in range(50):
        os.write(one if number % 2 else two, b"%03d\n" % number)
    assert (place / "a").read_bytes() == b"".join(b"%03d\n" % number for number in range(50))
    os.close(one)
    os.close(two)


def test_processes_that_append_lose_nothing(place: Path) -> None:
    code = (
        "import os, sys\nf = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY | os.O_APPEND)\n"
        "for _ in range(300): os.write(f, sys.argv[2].encode() * 99 + b'\\n')"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, place / "log", letter]) for letter in "abc"]
    assert [writer.wait(40) for writer in writers] == [0, 0, 0]
    lines = (place / "log").read_text().splitlines()
    assert sorted(lines) == sorted(letter * 99 for letter in "abc" * 300)


def test_truncation_and_growth(place: Path) -> None:
    (place / "a").write_bytes(b"0123456789" * 1000)
    os.truncate(place / "a", 15)
    assert (place / "a").read_bytes() == b"012345678901234"
    os.truncate(place / "a", 5000)
    assert (place / "a").read_bytes() == b"012345678901234" + bytes(4985)
    os.close(os.open(place / "a", os.O_WRONLY | os.O_TRUNC))
    assert os.stat(place / "a").st_size == 0
    with open(place / "a", "wb") as file:
        file.seek(10_000)
        file.write(b"end")
    assert (place / "a").read_bytes() == bytes(10_000) + b"end"


def test_truncation_is_seen_by_who_has_it_open(place: Path) -> None:
    (place / "a").write_bytes(b"x" * 10_000)
    with open(place / "a", "rb", buffering=0) as file:
        assert len(file.read(5000)) == 5000
        os.truncate(place / "a", 6000)
        assert len(file.read()) == 1000
        (place / "a").write_bytes(b"new")
        file.seek(0)
        assert file.read() == b"new"


def test_shared_mappings_are_the_file(place: Path) -> None:
    (place / "a").write_bytes(bytes(8192))
    with open(place / "a", "r+b") as file, mmap.mmap(file.fileno(), 8192) as first:
        code = (
            "import mmap, sys\nf = open(sys.argv[1], 'r+b')\n"
            "with mmap.mmap(f.fileno(), 8192) as m: m[5000:5005] = b'other'"
        )
        python(code, place / "a")
        assert first[5000:5005] == b"other"
        first[0:4] = b"mine"
        first.flush()
        assert os.pread(file.fileno(), 4, 0) == b"mine"
        os.pwrite(file.fileno(), b"written", 100)
        assert first[100:107] == b"written"
    assert (place / "a").read_bytes()[:4] == b"mine"


def test_private_mappings_stay_private(place: Path) -> None:
    (place / "a").write_bytes(b"original" * 512)
    with open(place / "a", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as private:
        private[0:8] = b"changed!"
        assert private[0:8] == b"changed!"
    assert (place / "a").read_bytes()[:8] == b"original"


def test_direct_io(place: Path) -> None:
    (place / "a").write_bytes(bytes(range(256)) * 64)
    fd = os.open(place / "a", os.O_RDWR | os.O_DIRECT)
    with mmap.mmap(-1, 8192) as aligned:
        assert os.preadv(fd, [aligned], 0) == 8192
        assert aligned[:] == bytes(range(256)) * 32
        aligned[:4] = b"dire"
        assert os.pwritev(fd, [aligned], 0) == 8192
    os.close(fd)
    assert (place / "a").read_bytes()[:4] == b"dire"


def test_fsync_and_friends_succeed(place: Path) -> None:
    fd = os.open(place / "a", os.O_CREAT | os.O_WRONLY)
    os.write(fd, b"x")
    os.fsync(fd)
    os.fdatasync(fd)
    os.close(fd)
    directory = os.open(place, os.O_RDONLY)
    os.fsync(directory)
    assert _libc.syncfs(directory) == 0
    os.close(directory)


@pytest.mark.parametrize(
    ("mode", "offset", "length", "size", "content"),
    [
        (FALLOC_KEEP_SIZE | FALLOC_PUNCH_HOLE, 1000, 3000, 10_000, b"x" * 1000 + bytes(3000) + b"x" * 6000),
        (FALLOC_KEEP_SIZE, 0, 30_000, 10_000, b"x" * 10_000),
        (0, 0, 20_000, 20_000, b"x" * 10_000 + bytes(10_000)),
    ],
    ids=["punch", "keep", "grow"],
)
def test_fallocate_is_done_or_cleanly_refused(
    place: Path, mode: int, offset: int, length: int, size: int, content: bytes
) -> None:
    (place / "a").write_bytes(b"x" * 10_000)
    (place / "a").read_bytes()
    with open(place / "a", "r+b") as file:
        try:
            fallocate(file.fileno(), mode, offset, length)
        except OSError as error:
            assert error.errno == errno.EOPNOTSUPP
            size, content = 10_000, b"x" * 10_000
    assert os.stat(place / "a").st_size == size
    assert (place / "a").read_bytes() == content


def test_more_than_there_is_room_for_is_not_allocated(place: Path) -> None:
    (place / "a").touch()
    space = os.statvfs(place)
    with open(place / "a", "r+b") as file:
        with pytest.raises(OSError, match=rf"\[Errno ({errno.ENOSPC}|{errno.EOPNOTSUPP})\]"):
            fallocate(file.fileno(), 0, 0, (space.f_blocks + 1) * space.f_frsize)
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
    assert os.stat(place / "a").st_size == 1 << 20


def test_seeking_data_and_holes(place: Path) -> None:
    (place / "a").write_bytes(b"x" * 10_000)
    fd = os.open(place / "a", os.O_RDONLY)
    assert os.lseek(fd, 0, os.SEEK_DATA) == 0
    assert os.lseek(fd, 0, os.SEEK_HOLE) == 10_000
    with pytest.raises(OSError, match=rf"\[Errno {errno.ENXIO}\]"):
        os.lseek(fd, 10_000, os.SEEK_DATA)
    os.close(fd)


def test_copy_file_range(place: Path) -> None:
    (place / "a").write_bytes(bytes(range(256)) * 100)
    (place / "b").write_bytes(b"-" * 100)
    source, target = os.open(place / "a", os.O_RDONLY), os.open(place / "b", os.O_RDWR)
    assert os.copy_file_range(source, target, 5000, 256, 50) == 5000
    os.close(source)
    os.close(target)
    expected = b"-" * 50 + (bytes(range(256)) * 100)[256:5256]
    assert (place / "b").read_bytes() == expected
    assert os.stat(place / "b").st_size == len(expected)


def test_files_without_a_name(place: Path, server: Server) -> None:
    try:
        fd = os.open(place, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as error:
        assert error.errno == errno.EOPNOTSUPP
        assert server.channel == "pyfuse3"
        return
    os.write(fd, b"later named")
    assert os.listdir(place) == []
    assert os.fstat(fd).st_nlink == 0
    at_fdcwd, follow = -100, 0x400
    assert _libc.linkat(at_fdcwd, b"/proc/self/fd/%d" % fd, at_fdcwd, os.fsencode(place / "named"), follow) == 0
    os.close(fd)
    assert (place / "named").read_bytes() == b"later named"
    assert os.stat(place / "named").st_nlink == 1


def test_locks_hold_between_processes(place: Path) -> None:
    (place / "lock").touch()
    attempt = (
        "import fcntl, sys\nf = open(sys.argv[1], 'r+')\n"
        "try: getattr(fcntl, sys.argv[2])(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except OSError: print('held')\nelse: print('free')"
    )
    for kind in ("flock", "lockf"):
        with open(place / "lock", "r+") as file:
            getattr(fcntl, kind)(file, fcntl.LOCK_EX)
            assert python(attempt, place / "lock", kind) == "held\n"
        assert python(attempt, place / "lock", kind) == "free\n"


def test_ioctls_are_refused_as_by_a_plain_file(place: Path) -> None:
    (place / "a").touch()
    for path in (place / "a", place):
        fd = os.open(path, os.O_RDONLY)
        with pytest.raises(OSError, match=rf"\[Errno {errno.ENOTTY}\]"):
            fcntl.ioctl(fd, 0x5401, bytes(64))
        os.close(fd)


def test_a_program_runs_from_the_mount_and_can_be_replaced(place: Path) -> None:
    (place / "tool").write_text("#!/bin/sh\necho one\n")
    (place / "tool").chmod(0o755)
    assert subprocess.run([place / "tool"], capture_output=True, check=True, timeout=10).stdout == b"one\n"
    (place / "next").write_text("#!/bin/sh\necho two\n")
    (place / "next").chmod(0o755)
    os.rename(place / "next", place / "tool")
    assert subprocess.run([place / "tool"], capture_output=True, check=True, timeout=10).stdout == b"two\n"


def test_a_running_program_cannot_be_written_to_but_replaced(place: Path) -> None:
    shutil.copy("/bin/sleep", place / "tool")
    running = subprocess.Popen([place / "tool", "30"])
    try:
        for act in (lambda: os.open(place / "tool", os.O_WRONLY), lambda: os.truncate(place / "tool", 0)):
            with pytest.raises(OSError, match=rf"\[Errno {errno.ETXTBSY}\]"):
                act()
        shutil.copy("/bin/true", place / "next")
        os.rename(place / "next", place / "tool")
        assert running.poll() is None
        assert subprocess.run([place / "tool"], timeout=10, check=False).returncode == 0
    finally:
        running.kill()
        running.wait()


@pytest.mark.parametrize(
    "flags", [os.O_NOATIME, os.O_SYNC, os.O_DSYNC, os.O_APPEND, os.O_TRUNC, os.O_APPEND | os.O_TRUNC]
)
def test_flags_of_open(place: Path, flags: int) -> None:
    (place / "f").write_bytes(b"0123456789")
    fd = os.open(place / "f", os.O_RDWR | flags)
    os.write(fd, b"ab")
    os.close(fd)
    before = b"" if flags & os.O_TRUNC else b"0123456789"
    assert (place / "f").read_bytes() == (before + b"ab" if flags & os.O_APPEND else b"ab" + before[2:])


def test_a_file_that_may_only_be_written_to(place: Path) -> None:
    (place / "f").write_bytes(b"x" * 10_000)
    (place / "f").chmod(0o200)
    fd = os.open(place / "f", os.O_WRONLY)
    os.pwrite(fd, b"y", 5000)
    os.close(fd)
    (place / "f").chmod(0o600)
    assert (place / "f").read_bytes() == b"x" * 5000 + b"y" + b"x" * 4999


def test_a_lock_file_renamed_into_place_is_never_missing_nor_short(place: Path) -> None:
    (place / "index").write_bytes(b"x" * 5000)
    reader = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys\nfor _ in range(2000):\n  assert len(open(sys.argv[1], 'rb').read()) == 5000",
            place / "index",
        ]
    )
    for number in range(200):
        with open(place / "index.lock", "xb") as file:
            file.write(b"%d" % (number % 10) * 5000)
            file.flush()
            os.fsync(file.fileno())
        os.rename(place / "index.lock", place / "index")
    assert reader.wait(40) == 0
