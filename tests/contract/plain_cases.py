"""Things that programs do to files that were there before: each fills a directory, then works in it.

``CASES`` by name: (fill, act). Both get an empty or filled directory of their own; ``act`` returns what a program sees
(errors by name, values), which must be the same in a plain directory and in a mount over an equal one. Nothing here
knows plyfs.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

MOMENT_NS = 1_600_000_000_123_456_789
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
DEEP = "d" * 200
_libc = ctypes.CDLL(None, use_errno=True)


class Case(NamedTuple):
    """``root`` cases need privilege."""

    fill: Callable[[Path], None]
    act: Callable[[Path], object]
    root: bool = False


CASES: dict[str, Case] = {}


def case(
    fill: Callable[[Path], None], root: bool = False
) -> Callable[[Callable[[Path], object]], Callable[[Path], object]]:
    """Enter the decorated function as a case that begins with ``fill``."""

    def enter(act: Callable[[Path], object]) -> Callable[[Path], object]:
        CASES[act.__name__] = Case(fill, act, root)
        return act

    return enter


def seen(call: Callable[..., object], *arguments: object) -> object:
    """What a call gives, or the name of its error."""
    try:
        return call(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))


def renameat2(source: Path, target: Path, flags: int) -> None:
    if _libc.renameat2(-100, os.fsencode(source), -100, os.fsencode(target), flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def names(path: Path) -> object:
    return seen(lambda: sorted(os.listdir(path)))


def links(*paths: Path) -> list[object]:
    return [seen(lambda path=path: os.lstat(path).st_nlink) for path in paths]  # type: ignore[misc]


def make(top: Path, *paths: str, content: bytes = b"there before") -> None:
    """Files, and directories for names that end in a slash, all of one moment."""
    for path in paths:
        if path.endswith("/"):
            (top / path).mkdir(parents=True, exist_ok=True)
        else:
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            (top / path).write_bytes(content + path.encode())


def some_tree(top: Path) -> None:
    make(top, "d/f", "d/e/f", "d/e/deep/f", "other/g", "empty/", "file")
    os.symlink("d", top / "link")


@case(some_tree)
def an_untouched_directory_is_renamed(top: Path) -> object:
    os.rename(top / "d", top / "moved")
    first = [names(top / "moved"), names(top / "moved/e/deep"), names(top / "d"), (top / "moved/e/f").read_bytes()]
    os.rename(top / "moved", top / "other/again")
    (top / "d").mkdir()
    (top / "d/n").write_bytes(b"new")
    into_itself = seen(os.rename, top / "other", top / "other/again/e/x")
    return [*first, names(top / "d"), names(top / "other/again/e"), into_itself, links(top, top / "other", top / "d")]


@case(some_tree)
def a_renamed_directory_comes_back(top: Path) -> object:
    os.rename(top / "d", top / "moved")
    os.unlink(top / "moved/f")
    os.rename(top / "moved", top / "d")
    os.rename(top / "d/e/deep", top / "d/f")
    return [names(top / "d"), names(top / "d/f"), links(top / "d", top / "d/e")]


@case(some_tree)
def a_directory_is_removed_and_made_again(top: Path) -> object:
    shutil.rmtree(top / "d")
    (top / "d").mkdir()
    (top / "d/n").write_bytes(b"n")
    first = [names(top / "d"), names(top / "d/e")]
    (top / "d/e").mkdir()
    (top / "d/e/deep").mkdir()
    second = [names(top / "d/e"), names(top / "d/e/deep"), seen(os.rmdir, top / "d")]
    os.rmdir(top / "d/e/deep")
    os.rmdir(top / "d/e")
    return [first, second, names(top / "d"), links(top / "d")]


@case(some_tree)
def a_directory_becomes_a_file_and_a_link_and_back(top: Path) -> object:
    shutil.rmtree(top / "d")
    (top / "d").write_bytes(b"now a file")
    first = seen(os.stat, top / "d/f")
    os.unlink(top / "d")
    os.symlink("other", top / "d")
    second = names(top / "d")
    os.unlink(top / "d")
    (top / "d").mkdir()
    os.unlink(top / "link")
    (top / "link").mkdir()
    os.unlink(top / "file")
    make(top, "file/in/it")
    return [first, second, names(top / "d"), names(top / "link"), names(top / "file/in")]


@case(some_tree)
def names_are_exchanged(top: Path) -> object:
    def exchange(a: str, b: str) -> object:
        return seen(renameat2, top / a, top / b, RENAME_EXCHANGE)

    answers = [exchange("d", "other"), names(top / "d"), names(top / "other"), exchange("file", "other/e")]
    answers += [names(top / "file"), exchange("d", "d/g"), exchange("other/e", "none"), exchange("link", "empty")]
    answers += [seen(renameat2, top / "link", top / "empty", RENAME_NOREPLACE), exchange("other", "other/f")]
    return [*answers, links(top, top / "d", top / "other", top / "file", top / "link")]


@case(some_tree)
def a_directory_replaces_an_empty_one(top: Path) -> object:
    answers = [seen(os.rename, top / "d", top / "other"), seen(os.rename, top / "file", top / "empty")]
    answers += [seen(os.rename, top / "empty", top / "file"), seen(os.rename, top / "d", top / "empty")]
    shutil.rmtree(top / "other/", ignore_errors=False)
    (top / "other").mkdir()
    return [*answers, names(top / "empty"), seen(os.rename, top / "empty", top / "other"), names(top / "other/e")]


def linked_tree(top: Path) -> None:
    make(top, "d/", "e/", "one")
    os.link(top / "one", top / "d/two")
    os.link(top / "one", top / "e/three")
    os.symlink("one", top / "soft")
    os.link(top / "soft", top / "d/soft-too", follow_symlinks=False)


@case(linked_tree)
def hard_links_stay_one_file(top: Path) -> object:
    answers: list[object] = [links(top / "one", top / "d/two", top / "soft")]
    os.rename(top / "one", top / "d/two")
    answers.append([names(top), links(top / "one")])
    (top / "d/two").write_bytes(b"changed through one name")
    answers.append([(top / "one").read_bytes(), (top / "e/three").read_bytes()])
    os.link(top / "e/three", top / "four")
    os.unlink(top / "e/three")
    answers.append(links(top / "one", top / "four", top / "e/three"))
    answers.append([seen(os.link, top / "d", top / "dd"), seen(os.link, top / "one", top / "four")])
    os.rename(top / "d", top / "moved")
    with open(top / "four", "ab") as file:
        file.write(b", appended")
    os.chmod(top / "four", 0o640)
    answers.append([(top / "moved/two").read_bytes(), stat.S_IMODE(os.stat(top / "one").st_mode)])
    os.unlink(top / "moved/soft-too")
    return [*answers, links(top / "soft"), os.stat(top / "one").st_ino == os.stat(top / "moved/two").st_ino]


def odd_names(top: Path) -> None:
    for name in (b"\xff\xfe", b"new\nline", b"n" * 255, b" ", "é".encode(), b"e\xcc\x81", b".wh.x", b".wh..wh..opq"):
        with open(os.fsencode(top) + b"/" + name, "wb") as file:
            file.write(name)
    make(top, "d/.wh.gone", "d/gone", "Case", "worktree/.git", "nested/.git/HEAD", "unborn/.git/")


@case(odd_names)
def no_name_is_special(top: Path) -> object:
    here = os.fsencode(top) + b"/"
    os.unlink(top / ".wh.x")
    os.unlink(top / "d/gone")
    os.rename(top / "d/.wh.gone", top / "d/gone")
    (top / "d/.wh..opq").write_bytes(b"plain")
    os.rename(here + b"n" * 255, here + b"m" * 255)
    os.rename(here + b"\xff\xfe", here + b"\xfe\xff")
    os.unlink(here + b"new\nline")
    os.rename(top / "Case", top / "case")
    os.rename(top / "nested", top / "unborn/nested")
    (top / "worktree/.git").write_bytes(b"gitdir: elsewhere\n")
    too_long = [seen(os.mkdir, here + b"n" * 256), seen(os.rename, top / "case", here + b"n" * 256)]
    return [sorted(os.listdir(here)), names(top / "d"), names(top / "unborn/nested/.git"), too_long]


def special_files(top: Path) -> None:
    os.mkfifo(top / "fifo", 0o620)
    os.mknod(top / "socket", stat.S_IFSOCK | 0o600)
    for target in ("nowhere", "/etc/hostname", "loop", "fifo"):
        os.symlink(target, top / target.strip("/").replace("etc/hostname", "absolute").replace("fifo", "to-fifo"))


@case(special_files)
def special_files_are_kept(top: Path) -> object:
    os.rename(top / "fifo", top / "moved")
    os.chmod(top / "socket", 0o666)
    os.mkfifo(top / "fifo", 0o600)
    created = seen(lambda: os.close(os.open(top / "nowhere", os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW)))
    excluded = seen(lambda: os.close(os.open(top / "nowhere", os.O_CREAT | os.O_EXCL | os.O_WRONLY)))
    followed = [seen(lambda n=n: stat.S_IFMT(os.stat(top / n).st_mode)) for n in ("to-fifo", "loop", "nowhere")]  # type: ignore[misc]
    return [created, excluded, followed, os.readlink(top / "absolute"), stat.S_IFMT(os.stat(top / "moved").st_mode)]


def devices(top: Path) -> None:
    os.mknod(top / "zero", stat.S_IFCHR | 0o600, os.makedev(0, 0))
    os.mknod(top / "disk", stat.S_IFBLK | 0o640, os.makedev(8, 1))
    make(top, "hidden")


@case(devices, root=True)
def a_device_zero_is_no_deletion(top: Path) -> object:
    os.unlink(top / "hidden")
    os.mknod(top / "hidden", stat.S_IFCHR | 0o644, os.makedev(0, 0))
    os.rename(top / "zero", top / "moved")
    os.unlink(top / "disk")
    return [names(top), os.stat(top / "moved").st_rdev]


def closed(top: Path) -> None:
    make(top, "shut/in", "secret", "program", "shared/", "sticky/")
    os.chmod(top / "program", 0o6755)
    os.chmod(top / "shared", 0o2775)
    os.chmod(top / "sticky", 0o1777)
    os.chmod(top / "secret", 0)
    os.chmod(top / "shut", 0)


@case(closed, root=True)
def closed_files_and_every_mode_bit(top: Path) -> object:
    answers = [names(top / "shut"), (top / "secret").read_bytes()]
    (top / "shut/new").write_bytes(b"n")
    os.chmod(top / "secret", 0o200)
    os.chown(top / "program", 5, 6)
    os.chown(top / "shared", -1, 1234)
    (top / "shared/f").touch()
    (top / "shared/d").mkdir()
    born = [(os.stat(top / "shared" / n).st_gid, oct(os.stat(top / "shared" / n).st_mode)) for n in "fd"]
    return [*answers, born, oct(os.stat(top / "program").st_mode), names(top / "shut")]


def contents(top: Path) -> None:
    make(top, "cut", "append", "patched", "gone", content=bytes(range(256)) * 40)
    with open(top / "sparse", "wb") as file:
        file.truncate(6 << 30)
        file.seek(5 << 30)
        file.write(b"in the middle")
    for path in top.iterdir():
        os.utime(path, ns=(MOMENT_NS, MOMENT_NS))


@case(contents)
def old_content_is_changed_in_part(top: Path) -> object:
    os.truncate(top / "cut", 100)
    os.truncate(top / "cut", 5000)
    with open(top / "append", "ab", buffering=0) as file:
        file.write(b"tail")
    with open(top / "patched", "r+b", buffering=0) as file:
        file.seek(4000)
        file.write(b"patch")
    os.utime(top / "patched", ns=(5, 6))
    fd = os.open(top / "gone", os.O_RDWR)
    os.unlink(top / "gone")
    os.pwrite(fd, b"x", 0)
    held = [os.fstat(fd).st_nlink, os.pread(fd, 4, 0)]
    os.close(fd)
    both = (top / "cut").read_bytes() + (top / "patched").read_bytes()
    return [held, both, os.stat(top / "append").st_size, os.stat(top / "patched").st_mtime_ns]


@case(contents)
def old_content_is_copied(top: Path) -> object:
    source, target = os.open(top / "append", os.O_RDWR), os.open(top / "copy", os.O_CREAT | os.O_RDWR)
    count = os.copy_file_range(source, target, 5000, 100, 50)
    os.pwrite(source, b"changed afterwards", 100)
    within = os.copy_file_range(target, target, 1000, 0, 20_000)
    overlapping = seen(os.copy_file_range, target, target, 1000, 0, 10)
    copied = os.pread(target, 30_000, 0)
    os.close(source)
    os.close(target)
    return [count, within, overlapping, copied]


@case(contents)
def a_sparse_file_stays_sparse(top: Path) -> object:
    fd = os.open(top / "sparse", os.O_RDWR)
    answers: list[object] = [os.fstat(fd).st_blocks < 64]
    os.pwrite(fd, b"f" * 4096, 4 << 30)
    answers.append(os.fstat(fd).st_blocks < 64)
    os.ftruncate(fd, (5 << 30) + 4096)
    answers += [os.fstat(fd).st_blocks < 64, os.pread(fd, 20, 5 << 30)]
    os.close(fd)
    return answers


@case(contents)
def data_and_holes_are_found(top: Path) -> object:
    fd = os.open(top / "sparse", os.O_RDWR)
    answers: list[object] = [os.lseek(fd, 0, os.SEEK_DATA), os.lseek(fd, 0, os.SEEK_HOLE)]
    os.pwrite(fd, b"f" * 4096, 4 << 30)
    for whence in (os.SEEK_DATA, os.SEEK_HOLE):
        answers += [seen(os.lseek, fd, at, whence) for at in (0, 4 << 30, (4 << 30) + 4096, 5 << 30, 6 << 30, 7 << 30)]
    os.close(fd)
    return answers


def attributes(top: Path) -> None:
    make(top, "f", "d/")
    os.setxattr(top / "f", "user.kept", b"v")
    os.setxattr(top / "f", "user.gone", b"v")
    os.setxattr(top / "d", "user.dir", b"\0binary")
    for path in (top / "f", top / "d"):
        os.utime(path, ns=(MOMENT_NS, MOMENT_NS))


@case(attributes)
def attributes_change_without_content(top: Path) -> object:
    os.chmod(top / "f", 0o600)
    os.setxattr(top / "f", "user.new", b"w")
    os.removexattr(top / "f", "user.gone")
    os.chmod(top / "d", 0o700)
    spaces = ("user.none", "user.", "foo.bar", "system.foo", "system.posix_acl_access")
    answers = []
    for name in spaces:
        path = top / "f"
        answers.append([seen(os.getxattr, path, name), seen(os.setxattr, path, name, b"v")])
        answers.append(seen(os.removexattr, path, name))
    return [answers, sorted(os.listxattr(top / "f")), os.stat(top / "f").st_mtime_ns, os.stat(top / "d").st_mtime_ns]


def many(top: Path) -> None:
    for number in range(1500):
        (top / f"{number:05}").touch()
    make(top, "sub/")


@case(many)
def a_large_directory_changes(top: Path) -> object:
    for number in range(0, 1500, 3):
        os.unlink(top / f"{number:05}")
    for number in range(700):
        (top / f"new-{number}").touch()
    os.rename(top / "00001", top / "sub/00001")
    with os.scandir(top) as entries:
        agree = all(entry.inode() == os.lstat(entry.path).st_ino for entry in entries)
    return [agree, names(top), names(top / "sub")]


def deeper_than_a_path(top: Path) -> None:
    """Directories whose path from ``top`` on is longer than PATH_MAX."""
    at = os.open(top, os.O_RDONLY)
    for number in range(24):
        os.mkdir(DEEP, dir_fd=at)
        below = os.open(DEEP, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
        for name in (f"file-{number}", f"other-{number}"):
            fd = os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=at)
            os.write(fd, b"there before")
            os.close(fd)
    os.close(at)


@case(deeper_than_a_path)
def deeper_than_any_path(top: Path) -> object:
    """Changes at the bottom, then at the top: everything below keeps being found."""
    found: list[object] = []

    def descend() -> int:
        at = os.open(top, os.O_RDONLY)
        for _ in range(24):
            below = os.open(DEEP, os.O_RDONLY, dir_fd=at)
            os.close(at)
            at = below
            found.append([(name, os.stat(name, dir_fd=at).st_size) for name in sorted(os.listdir(at)) if name != DEEP])
        return at

    at = descend()
    fd = os.open("file-23", os.O_RDWR, dir_fd=at)
    os.pwrite(fd, b"changed", 5)
    found.append(os.pread(fd, 100, 0))
    os.close(fd)
    os.mkdir("new", dir_fd=at)
    os.rename("other-23", "new/renamed", src_dir_fd=at, dst_dir_fd=at)
    os.close(at)
    os.rename(top / DEEP, top / "moved")
    os.mkdir(top / DEEP)
    os.rename(top / "moved" / DEEP, top / DEEP / DEEP)
    os.close(descend())
    return found


@case(some_tree)
def paths_are_resolved_as_everywhere(top: Path) -> object:
    calls: list[tuple[Callable[..., object], *tuple[object, ...]]] = [
        (os.rmdir, f"{top}/empty/."),
        (os.rmdir, f"{top}/d/e/.."),
        (os.rename, f"{top}/empty/.", top / "x"),
        (os.rename, f"{top}/empty/", f"{top}/renamed/"),
        (os.mkdir, f"{top}/made/"),
        (os.stat, f"{top}/file/"),
        (os.stat, top / "file/x"),
        (os.unlink, top / "d"),
        (os.open, top / "d", os.O_WRONLY),
        (os.open, top / "d", os.O_CREAT | os.O_RDWR),
        (os.open, top / "link", os.O_RDONLY | os.O_NOFOLLOW),
        (os.open, f"{top}/new/", os.O_CREAT | os.O_WRONLY),
        (os.listdir, top / "file"),
        (os.link, top / "file", f"{top}/hard/"),
        (os.symlink, "x" * 4095, top / "long"),
        (os.symlink, "x" * 4096, top / "longer"),
        (os.symlink, "", top / "nothing"),
    ]
    return [seen(*call) for call in calls] + [names(top)]
