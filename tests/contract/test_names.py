"""Names and what is under them, as POSIX and Linux have it, in a mounted directory."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import stat
from pathlib import Path

import pytest

pytestmark = [pytest.mark.mounted, pytest.mark.timeout(60)]

RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)


def renameat2(source: Path, target: Path, flags: int) -> None:
    if _libc.renameat2(-100, os.fsencode(source), -100, os.fsencode(target), flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def fails(number: int) -> object:
    """The next statement raises OSError with this errno."""
    return pytest.raises(OSError, match=rf"\[Errno {number}\]")


def test_a_new_file_is_there_empty_and_once(place: Path) -> None:
    fd = os.open(place / "a", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o640)
    os.close(fd)
    status = os.stat(place / "a")
    assert (status.st_size, status.st_nlink) == (0, 1)
    with fails(errno.EEXIST):
        os.open(place / "a", os.O_CREAT | os.O_EXCL | os.O_RDWR)
    assert os.listdir(place) == ["a"]


@pytest.mark.parametrize("name", [b"\xff\xfe", b"new\nline", b"n" * 255, b" ", b".wh.x", "é".encode(), b"e\xcc\x81"])
def test_any_bytes_make_a_name(place: Path, name: bytes) -> None:
    top = os.fsencode(place)
    os.close(os.open(top + b"/" + name, os.O_CREAT | os.O_WRONLY))
    assert os.listdir(top) == [name]
    os.rename(top + b"/" + name, top + b"/other")
    assert os.listdir(top) == [b"other"]


def test_a_name_longer_than_statfs_says_is_refused(place: Path) -> None:
    longest = os.statvfs(place).f_namemax
    (place / ("n" * longest)).touch()
    with fails(errno.ENAMETOOLONG):
        (place / ("n" * (longest + 1))).touch()
    with fails(errno.ENAMETOOLONG):
        os.stat(place / ("n" * (longest + 1)))


def test_what_is_absent_is_absent_until_it_is_made(place: Path) -> None:
    for _ in range(2):
        with fails(errno.ENOENT):
            os.stat(place / "later")
    (place / "later").mkdir()
    assert (place / "later").is_dir()


def test_directories_count_their_subdirectories(place: Path) -> None:
    assert os.stat(place).st_nlink == 2
    (place / "a").mkdir()
    (place / "b").mkdir()
    (place / "file").touch()
    assert os.stat(place).st_nlink == 4
    (place / "a").rmdir()
    assert os.stat(place).st_nlink == 3
    os.rename(place / "b", place / "c")
    assert os.stat(place).st_nlink == 3


def test_removing_what_cannot_be_removed(place: Path) -> None:
    (place / "d" / "e").mkdir(parents=True)
    (place / "f").touch()
    with fails(errno.ENOTEMPTY):
        os.rmdir(place / "d")
    with fails(errno.ENOTDIR):
        os.rmdir(place / "f")
    with fails(errno.EISDIR):
        os.unlink(place / "d")
    with fails(errno.ENOENT):
        os.unlink(place / "g")
    with fails(errno.ENOTDIR):
        os.stat(place / "f" / "x")


def test_an_unlinked_file_lives_while_it_is_open(place: Path) -> None:
    fd = os.open(place / "a", os.O_CREAT | os.O_RDWR)
    os.write(fd, b"kept")
    os.unlink(place / "a")
    assert os.fstat(fd).st_nlink == 0
    os.write(fd, b" on")
    assert os.pread(fd, 100, 0) == b"kept on"
    os.close(fd)
    assert os.listdir(place) == []


def test_a_replaced_file_lives_while_it_is_open(place: Path) -> None:
    (place / "a").write_text("old")
    (place / "b").write_text("new")
    with open(place / "a") as old:
        os.rename(place / "b", place / "a")
        assert os.fstat(old.fileno()).st_nlink == 0
        assert old.read() == "old"
    assert (place / "a").read_text() == "new"


def test_hard_links_are_one_file(place: Path) -> None:
    (place / "a").write_text("x")
    os.link(place / "a", place / "b")
    assert os.stat(place / "a").st_nlink == os.stat(place / "b").st_nlink == 2
    assert os.stat(place / "a").st_ino == os.stat(place / "b").st_ino
    with open(place / "b", "a") as file:
        file.write("y")
    assert (place / "a").read_text() == "xy"
    assert os.stat(place / "a").st_size == 2
    os.unlink(place / "a")
    assert os.stat(place / "b").st_nlink == 1
    with fails(errno.EEXIST):
        os.link(place / "b", place / "b")


def test_renaming_one_link_over_another_of_the_same_file_does_nothing(place: Path) -> None:
    (place / "a").touch()
    os.link(place / "a", place / "b")
    os.rename(place / "a", place / "b")
    assert sorted(os.listdir(place)) == ["a", "b"]


def test_symlinks(place: Path) -> None:
    os.symlink("target with space", place / "s")
    assert os.readlink(place / "s") == "target with space"
    assert os.lstat(place / "s").st_size == len("target with space")
    assert stat.S_ISLNK(os.lstat(place / "s").st_mode)
    with fails(errno.ENOENT):
        os.stat(place / "s")
    os.symlink("loop", place / "loop")
    with fails(errno.ELOOP):
        os.stat(place / "loop")
    (place / "d").mkdir()
    (place / "d" / "f").write_text("through")
    os.symlink("d", place / "to-d")
    assert (place / "to-d" / "f").read_text() == "through"
    with fails(errno.ELOOP):
        os.open(place / "to-d", os.O_RDONLY | os.O_NOFOLLOW)
    long = "x/" * 2000
    os.symlink(long, place / "long")
    assert os.readlink(place / "long") == long


def test_rename_moves_whatever_is_below(place: Path) -> None:
    (place / "a" / "b").mkdir(parents=True)
    (place / "a" / "b" / "f").write_text("deep")
    ino = os.stat(place / "a" / "b" / "f").st_ino
    (place / "x").mkdir()
    os.rename(place / "a", place / "x" / "y")
    assert (place / "x" / "y" / "b" / "f").read_text() == "deep"
    assert os.stat(place / "x" / "y" / "b" / "f").st_ino == ino
    assert os.stat(place / "x" / "y" / "..").st_ino == os.stat(place / "x").st_ino
    assert not (place / "a").exists()


def test_rename_refusals(place: Path) -> None:
    (place / "d" / "e").mkdir(parents=True)
    (place / "full" / "x").mkdir(parents=True)
    (place / "empty").mkdir()
    (place / "f").touch()
    with fails(errno.EINVAL):
        os.rename(place / "d", place / "d" / "e" / "g")
    with fails(errno.ENOTEMPTY):
        os.rename(place / "d", place / "full")
    with fails(errno.ENOTDIR):
        os.rename(place / "d", place / "f")
    with fails(errno.EISDIR):
        os.rename(place / "f", place / "empty")
    with fails(errno.ENOENT):
        os.rename(place / "nothing", place / "f")
    os.rename(place / "d", place / "empty")
    assert (place / "empty" / "e").is_dir()


def test_rename_noreplace_and_exchange(place: Path) -> None:
    (place / "a").write_text("a")
    (place / "b").mkdir()
    with fails(errno.EEXIST):
        renameat2(place / "a", place / "b", RENAME_NOREPLACE)
    renameat2(place / "a", place / "b", RENAME_EXCHANGE)
    assert (place / "b").read_text() == "a"
    assert (place / "a").is_dir()
    with fails(errno.ENOENT):
        renameat2(place / "a", place / "c", RENAME_EXCHANGE)
    renameat2(place / "a", place / "c", RENAME_NOREPLACE)
    assert sorted(os.listdir(place)) == ["b", "c"]
    with fails(errno.EINVAL):
        renameat2(place / "b", place / "c", RENAME_EXCHANGE | RENAME_NOREPLACE)


def test_case_only_rename(place: Path) -> None:
    (place / "Name").touch()
    os.rename(place / "Name", place / "name")
    assert os.listdir(place) == ["name"]


def test_fifos_sockets_and_devices(place: Path) -> None:
    os.mkfifo(place / "fifo")
    assert stat.S_ISFIFO(os.stat(place / "fifo").st_mode)
    reader = os.open(place / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(place / "fifo", os.O_WRONLY)
    os.write(writer, b"through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    os.close(writer)
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(place)  # socket paths are short
        try:
            listener.bind("socket")
            listener.listen()
            with socket.socket(socket.AF_UNIX) as client:
                client.connect("socket")
        finally:
            os.chdir("/")
    assert stat.S_ISSOCK(os.stat(place / "socket").st_mode)


@pytest.mark.root
def test_device_nodes_are_kept(place: Path) -> None:
    os.mknod(place / "null", stat.S_IFCHR | 0o600, os.makedev(0, 0))
    os.mknod(place / "disk", stat.S_IFBLK | 0o600, os.makedev(8, 1))
    assert os.stat(place / "null").st_rdev == 0
    assert os.stat(place / "disk").st_rdev == os.makedev(8, 1)
    assert sorted(os.listdir(place)) == ["disk", "null"]


def test_listings_agree_with_stat(place: Path) -> None:
    (place / "d").mkdir()
    (place / "f").touch()
    os.symlink("x", place / "s")
    os.mkfifo(place / "p")
    for _ in range(2):  # cold, then cached
        with os.scandir(place) as entries:
            for entry in entries:
                status = os.lstat(entry.path)
                assert entry.inode() == status.st_ino
                assert entry.is_dir() == stat.S_ISDIR(status.st_mode)
                assert entry.is_symlink() == stat.S_ISLNK(status.st_mode)


def test_dot_and_dotdot_are_listed(place: Path) -> None:
    (place / "d").mkdir()
    rows = _getdents(place / "d")
    assert rows[b"."] == os.stat(place / "d").st_ino
    assert rows[b".."] == os.stat(place).st_ino


def _getdents(path: Path) -> dict[bytes, int]:
    """What getdents64 says, undisturbed by libraries: inode number by name."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    rows: dict[bytes, int] = {}
    try:
        buffer = ctypes.create_string_buffer(65536)
        while (size := _libc.syscall(217, fd, buffer, len(buffer))) > 0:
            at = 0
            while at < size:
                ino = int.from_bytes(buffer.raw[at : at + 8], "little")
                length = int.from_bytes(buffer.raw[at + 16 : at + 18], "little")
                name = buffer.raw[at + 19 : at + length].split(b"\0")[0]
                assert name not in rows, name
                rows[name] = ino
                at += length
    finally:
        os.close(fd)
    return rows


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of getdents64")
def test_a_large_directory_is_listed_once_and_whole(place: Path) -> None:
    names = {b"entry-%04d-%s" % (number, b"x" * (number % 100)) for number in range(3000)}
    for name in names:
        os.mknod(os.fsencode(place) + b"/" + name)
    assert set(_getdents(place)) - {b".", b".."} == names
    assert set(_getdents(place)) - {b".", b".."} == names


def test_listing_while_it_changes_skips_and_repeats_nothing_that_stays(place: Path) -> None:
    for number in range(1000):
        (place / f"stay-{number}").touch()
        (place / f"go-{number}").touch()
    seen: list[str] = []
    with os.scandir(place) as entries:
        for position, entry in enumerate(entries):
            seen.append(entry.name)
            if position < 1000:
                os.unlink(place / f"go-{position}")
                (place / f"new-{position}").touch()
    assert len(seen) == len(set(seen))
    assert {name for name in seen if name.startswith("stay-")} == {f"stay-{number}" for number in range(1000)}
    assert len(os.listdir(place)) == 2000


class Listing:
    """A directory stream of the C library."""

    def __init__(self, path: Path) -> None:
        _libc.opendir.restype = _libc.readdir.restype = ctypes.c_void_p
        _libc.telldir.restype = ctypes.c_long
        self._stream = ctypes.c_void_p(_libc.opendir(os.fsencode(path)))

    def next(self) -> bytes | None:
        row = _libc.readdir(self._stream)
        return ctypes.string_at(row + 19) if row else None

    def rest(self) -> list[bytes]:
        return list(iter(self.next, None))

    def tell(self) -> int:
        return int(_libc.telldir(self._stream))

    def seek(self, position: int) -> None:
        _libc.seekdir(self._stream, ctypes.c_long(position))

    def rewind(self) -> None:
        _libc.rewinddir(self._stream)

    def close(self) -> None:
        _libc.closedir(self._stream)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the layout of struct dirent")
def test_positions_in_a_listing_stay_good_while_it_changes(place: Path) -> None:
    for number in range(2000):
        (place / f"{number}").touch()
    listing = Listing(place)
    rows: list[tuple[int, bytes]] = []
    while True:
        position, name = listing.tell(), listing.next()
        if name is None:
            break
        rows.append((position, name))
    assert len({position for position, _ in rows}) == len(rows) == 2002
    for position, name in [*rows[::97], *rows[::-113]]:
        listing.seek(position)
        assert listing.next() == name
    for _, name in rows[500:1500]:
        os.unlink(place / os.fsdecode(name))
    for position, name in rows[1500::97]:
        listing.seek(position)
        assert listing.next() == name
    listing.seek(rows[100][0])
    rest = listing.rest()
    assert len(set(rest)) == len(rest)
    gone = {name for _, name in rows[500:1500]}  # POSIX leaves open whether these are seen before a rewind
    assert sorted(set(rest) - gone) == sorted(name for _, name in rows[100:500] + rows[1500:])
    (place / "new").touch()
    listing.rewind()
    rest = listing.rest()
    assert b"new" in rest
    assert not gone & set(rest)
    listing.close()


def test_a_listing_sees_each_change_at_once(place: Path) -> None:
    for number in range(20):
        (place / f"{number}").touch()
        assert len(os.listdir(place)) == number + 1
        assert len(os.listdir(place)) == number + 1
    for number in range(20):
        os.unlink(place / f"{number}")
        assert len(os.listdir(place)) == 19 - number


def test_a_directory_changes_its_time_exactly_when_an_entry_does(place: Path) -> None:
    def times() -> tuple[int, int]:
        first, second = os.stat(place), os.stat(place)
        assert first == second
        return first.st_mtime_ns, first.st_ctime_ns

    before = times()
    (place / "a").touch()
    assert times() > before
    before = times()
    (place / "a").write_text("content")
    os.chmod(place / "a", 0o600)
    os.listdir(place)
    assert times() == before
    os.rename(place / "a", place / "b")
    assert times() > before
    before = times()
    os.unlink(place / "b")
    assert times() > before


def test_a_removed_working_directory_is_an_error_not_a_hang(place: Path) -> None:
    (place / "d").mkdir()
    fd = os.open(place / "d", os.O_RDONLY)
    os.rmdir(place / "d")
    (place / "f").touch()
    assert os.fstat(fd).st_nlink == 0
    assert os.listdir(fd) == []
    for act in (
        lambda: os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=fd),
        lambda: os.mkdir("x", dir_fd=fd),
        lambda: os.rename(place / "f", "x", dst_dir_fd=fd),
        lambda: os.link(place / "f", "x", dst_dir_fd=fd),
        lambda: os.symlink("f", "x", dir_fd=fd),
    ):
        with fails(errno.ENOENT):
            act()
    os.close(fd)
    (place / "d").mkdir()
    (place / "d" / "again").touch()
    assert os.listdir(place / "d") == ["again"]
