"""Behaviours that sank others, as far as a plain directory can meet them and no other test of the scanner has them."""

from __future__ import annotations

import itertools
import mmap
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scan.conftest import Scanned, kinds
from tests.treestate import capture


def same(scanned: Scanned, wanted: object) -> None:
    assert not capture(scanned.path, times=False).differences(wanted)  # type: ignore[arg-type]


# --- namespace ---------------------------------------------------------------------------------------------------


def test_a_renamed_directory_goes_back_by_one_rename(scanned: Scanned) -> None:
    """With all below it: no file is copied, and the store does not grow by one."""
    for number in range(300):
        scanned.write(f"d/{number % 7}/{number}", str(number) * 100)
    ws = scanned.start()
    before = {path: path.stat().st_ino for path in (scanned.path / "d").rglob("*")}
    os.rename(scanned.path / "d", scanned.path / "e")
    ws.checkpoint()
    assert kinds(ws.undo().changes) == {"d": "rename"}
    assert {path: path.stat().st_ino for path in (scanned.path / "d").rglob("*")} == before
    ws.redo()
    assert not (scanned.path / "d").exists()
    assert len(list((scanned.path / "e").rglob("*"))) == len(before)


def test_removed_and_made_again(scanned: Scanned) -> None:
    top = scanned.path
    for name in ("d/a", "d/inner/deep/b", "d/inner/c"):
        scanned.write(name)
    ws = scanned.start()
    before = capture(top, times=False)
    shutil.rmtree(top / "d")
    scanned.write("d/n")
    scanned.write("d/inner/n")
    made = ws.checkpoint()
    assert [row.name for row in ws.ls(made.id, "d")] == ["inner", "n"]
    assert [row.name for row in ws.ls(made.id, "d/inner")] == ["n"]
    assert kinds(ws.diff("base", made.id).changes) == {
        "d/a": "delete", "d/inner/c": "delete", "d/inner/deep": "delete", "d/inner/deep/b": "delete",
        "d/n": "create", "d/inner/n": "create",
    }  # fmt: skip
    after = capture(top, times=False)
    ws.undo()
    same(scanned, before)
    ws.redo()
    same(scanned, after)


def test_no_name_is_magic(scanned: Scanned) -> None:
    """Not even one like those that are given to what is staged."""
    names = [
        ".wh.x",
        ".wh..opq",
        ".wh..wh.aufs",
        ".plyfs-0123456789ab-1",
        ".plyfs",
        ".plyfs-",
        ".fuse_hidden1",
        "x.lock",
    ]
    names += [os.fsdecode(b"\xff\xfe"), "new\nline", "-rf", "~", " ", "...", "e\u0301", "\u00e9", "n" * 255, "\\", "*"]
    names += ["\x01", "README", "readme", "Readme"]
    for number, name in enumerate(names):
        scanned.write(name, f"first {number}")
        scanned.write(f"d/{name}/{name}", "first")
    ws = scanned.start()
    before = capture(scanned.path, times=False)
    for number, name in enumerate(names):
        scanned.write(name, f"second {number}")
    shutil.rmtree(scanned.path / "d")
    ws.checkpoint()
    ws.undo()
    same(scanned, before)
    assert not scanned.again().status().dirty


def test_case_only_rename(scanned: Scanned) -> None:
    scanned.write("readme", "text")
    scanned.write("Dir/inside")
    ws = scanned.start()
    before = capture(scanned.path)
    os.rename(scanned.path / "readme", scanned.path / "README")
    os.rename(scanned.path / "Dir", scanned.path / "dir")
    made = ws.checkpoint()
    assert kinds(ws.diff("base", made.id).changes) == {"README": "rename", "dir": "rename"}
    ws.undo()
    assert not capture(scanned.path).differences(before)


def test_the_same_text_in_other_bytes(scanned: Scanned) -> None:
    scanned.write("\u00e9", "NFC")
    ws = scanned.start()
    os.rename(scanned.path / "\u00e9", scanned.path / "e\u0301")
    ws.checkpoint()
    ws.undo()
    assert scanned.names() == ["\u00e9"]


def a_file(path: Path) -> None:
    path.write_text(f"file {path.name}")


def a_directory(path: Path) -> None:
    (path / "inner/deep").mkdir(parents=True)
    (path / "inner/file").write_text("x")
    (path / "link").symlink_to("inner")


MAKERS: dict[str, Callable[[Path], None]] = {
    "file": a_file,
    "directory": a_directory,
    "empty": lambda path: path.mkdir(),
    "link": lambda path: path.symlink_to("/etc"),
    "loop": lambda path: path.symlink_to(path.name),
    "dangling": lambda path: path.symlink_to("no/where"),
    "fifo": lambda path: os.mkfifo(path),
    "hard": lambda path: os.link(path.parent / "shared", path),
    "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o755),
    "nothing": lambda path: None,
}


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def test_files_become_directories_while_as_many_go(scanned: Scanned) -> None:
    """The names that are still there add up; those that went are noticed all the same, and in both directions."""
    for number in range(3):
        scanned.write(f"gone{number}")
        scanned.write(f"turned{number}")
    ws = scanned.start()
    before = capture(scanned.path, times=False)
    for number in range(3):
        (scanned.path / f"gone{number}").unlink()
        (scanned.path / f"turned{number}").unlink()
        scanned.write(f"turned{number}/inside")
    made = ws.checkpoint()
    assert [row.name for row in ws.ls(made.id)] == ["turned0", "turned1", "turned2"]
    after = capture(scanned.path, times=False)
    ws.undo()
    same(scanned, before)
    ws.redo()
    same(scanned, after)


def test_every_type_becomes_every_other(scanned: Scanned) -> None:
    """All in one turn, through nothing and through each other, and back, and forth."""
    scanned.write("shared", "shared")
    pairs = list(itertools.permutations(MAKERS, 2))
    for one, other in pairs:
        MAKERS[one](scanned.path / f"{one}-{other}")
    ws = scanned.start()
    before = capture(scanned.path, times=False)
    for one, other in pairs:
        remove(scanned.path / f"{one}-{other}")
        MAKERS["link"](scanned.path / f"{one}-{other}")
        remove(scanned.path / f"{one}-{other}")
        MAKERS[other](scanned.path / f"{one}-{other}")
    ws.checkpoint()
    after = capture(scanned.path, times=False)
    for _ in range(2):
        assert not ws.undo().kept
        same(scanned, before)
        assert not ws.redo().kept
        same(scanned, after)
    assert not scanned.again().status().dirty


def test_deeper_than_any_path(scanned: Scanned) -> None:
    names = ["n" * 200] * 30
    where = os.open(scanned.path, os.O_RDONLY)

    def at_the_bottom(act: Callable[[int], None]) -> None:
        at = os.dup(where)
        for name in names:
            try:
                os.mkdir(name, dir_fd=at)
            except FileExistsError:
                pass
            inner = os.open(name, os.O_RDONLY, dir_fd=at)
            os.close(at)
            at = inner
        act(at)
        os.close(at)

    def write(text: bytes) -> Callable[[int], None]:
        def act(at: int) -> None:
            fd = os.open("f", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, dir_fd=at)
            os.write(fd, text)
            os.close(fd)

        return act

    def reads(text: bytes) -> Callable[[int], None]:
        def act(at: int) -> None:
            fd = os.open("f", os.O_RDONLY, dir_fd=at)
            assert os.read(fd, 100) == text
            os.close(fd)

        return act

    at_the_bottom(write(b"first"))
    ws = scanned.start()
    at_the_bottom(write(b"second"))
    ws.checkpoint()
    ws.undo()
    at_the_bottom(reads(b"first"))
    shutil.rmtree(scanned.path / names[0])
    ws.checkpoint()
    ws.undo()
    at_the_bottom(reads(b"first"))
    os.close(where)


def test_a_link_to_an_ignored_name_keeps_its_bytes(scanned: Scanned) -> None:
    subprocess.run(["git", "init", "-q", scanned.path], check=True)
    scanned.write(".gitignore", "ignored/\n")
    path = scanned.write("file", "first")
    (scanned.path / "ignored").mkdir()
    os.link(path, scanned.path / "ignored/file")
    ws = scanned.start()
    path.write_text("second")
    ws.checkpoint()
    undone = ws.undo()
    assert path.read_text() == "first"
    assert (scanned.path / "ignored/file").read_text() == "second", "nobody asked for that"
    assert kinds(undone.changes) == {"file": "overwrite"}
    assert not ws.status().dirty


def test_attributes_of_a_file_with_a_name_outside(scanned: Scanned, tmp_path: Path) -> None:
    """Giving them back would give them to the other name, too."""
    path = scanned.write("file", "text")
    path.chmod(0o600)
    ws = scanned.start()
    path.chmod(0o644)
    os.link(path, tmp_path / "outside")
    ws.checkpoint()
    ws.undo()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "outside").stat().st_mode) == 0o644


def test_names_of_a_file_that_became_files_of_their_own(scanned: Scanned) -> None:
    """With the bytes that they had: only their times tell, and they are one file again."""
    top = scanned.path
    scanned.write("a", "text")
    for name in ("b", "c"):
        os.link(top / "a", top / name)
    ws = scanned.start()
    before = capture(top, times=False)
    for name in "ab":
        os.unlink(top / name)
        os.utime(scanned.write(name, "text"), ns=(1, 10**18))
    ws.checkpoint()
    ws.undo()
    assert not capture(top, times=False).differences(before)
    ws.redo()
    assert len({(top / name).stat().st_ino for name in "abc"}) == 3


# --- attributes ------------------------------------------------------------------------------------------------


def test_what_a_directory_gives_to_what_is_made_in_it(scanned: Scanned) -> None:
    """Default ACLs, setgid and the umask change nothing in what comes back."""
    top = scanned.path
    scanned.write("d/private", "x").chmod(0o600)
    scanned.write("d/inner/open", "x").chmod(0o666)
    (top / "d/inner").chmod(0o700)
    ws = scanned.start()
    before = capture(top, times=False)
    acl = bytes.fromhex("0200000001000700ffffffff04000700ffffffff10000700ffffffff20000700ffffffff")
    os.setxattr(top / "d", "system.posix_acl_default", acl)
    os.chown(top / "d", 0, 1234)
    (top / "d").chmod(0o2777)
    os.unlink(top / "d/private")
    shutil.rmtree(top / "d/inner")
    ws.checkpoint()
    old = os.umask(0o077)
    try:
        ws.undo()
    finally:
        os.umask(old)
    same(scanned, before)
    ws.redo()
    assert os.getxattr(top / "d", "system.posix_acl_default") == acl
    ws.undo()
    same(scanned, before)


def test_attributes_of_a_symbolic_link_itself(scanned: Scanned) -> None:
    """Only privileged ones can be there: the kernel has no ``user.`` attributes on links."""
    (scanned.path / "link").symlink_to("nowhere")
    try:
        os.setxattr(scanned.path / "link", "trusted.note", b"one", follow_symlinks=False)
    except PermissionError:
        pytest.skip("NOT RUN: no right to set trusted attributes")
    ws = scanned.start()
    os.unlink(scanned.path / "link")
    (scanned.path / "link").symlink_to("elsewhere")
    ws.checkpoint()
    ws.undo()
    assert os.readlink(scanned.path / "link") == "nowhere"
    assert os.getxattr(scanned.path / "link", "trusted.note", follow_symlinks=False) == b"one"
    assert ws.drift().changes == []


def test_setuid_and_capabilities_survive_their_owner(scanned: Scanned) -> None:
    top = scanned.path
    scanned.write("suid", "x")
    os.chown(top / "suid", 12, 34)
    (top / "suid").chmod(0o6755)
    scanned.write("cap", "x")
    os.chown(top / "cap", 12, 34)
    os.setxattr(top / "cap", "security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))
    ws = scanned.start()
    before = capture(top, times=False)
    for name in ("suid", "cap"):
        scanned.write(name, "y")
    ws.checkpoint()
    ws.undo()
    same(scanned, before)
    for name in ("suid", "cap"):
        os.chown(top / name, 0, 0)
    ws.checkpoint()
    ws.undo()
    same(scanned, before)


# --- data --------------------------------------------------------------------------------------------------------


def test_a_mapping_that_is_written_through(scanned: Scanned) -> None:
    path = scanned.write("f", "first" * 1000)
    ws = scanned.start()
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as shared:
        shared[:6] = b"second"
        shared.flush()
        made = ws.checkpoint().id
        assert ws.cat(made, "f", 0, 6) == b"second"
        with mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE) as private:
            private[:6] = b"secret"
            assert not ws.checkpoint().created
        ws.undo()
        assert shared[:6] == b"second", "whoever has it mapped keeps what it was"
        shared[:6] = b"third "
        shared.flush()
    assert path.read_bytes()[:6] == b"firstf"


def test_a_huge_file_with_a_hole(scanned: Scanned) -> None:
    path = scanned.path / "huge"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
        file.seek(5 << 30)
        file.write(b"island")
    ws = scanned.start()
    os.truncate(path, 10)
    ws.checkpoint()
    ws.undo()
    assert path.stat().st_size == 1 << 40
    assert path.stat().st_blocks < 1000
    with open(path, "rb") as file:
        file.seek(5 << 30)
        assert file.read(7) == b"island\0"
        assert os.lseek(file.fileno(), 0, os.SEEK_DATA) <= 5 << 30
    assert ws.timeline.home.objects.inventory.bytes_used() < 100_000


def test_starting_changes_nothing_that_make_or_git_look_at(scanned: Scanned) -> None:
    for number in range(30):
        scanned.write(f"d{number % 3}/{number}").chmod(0o400 if number % 2 else 0o000)

    def seen() -> dict[Path, tuple[int, ...]]:
        found = {}
        for path in scanned.path.rglob("*"):
            one = path.lstat()
            found[path] = (one.st_ino, one.st_mode, one.st_mtime_ns, one.st_ctime_ns, one.st_size)
        return found

    before = seen()
    ws = scanned.start()
    ws.checkpoint()
    ws.status()
    ws.unmount()
    assert seen() == before


def test_line_ends_empty_files_and_bytes(scanned: Scanned) -> None:
    data = {"crlf": b"a\r\nb\r\n", "cr": b"a\rb", "none": b"no end", "empty": b"", "nul": bytes(5000)}
    data["all"] = bytes(range(256)) * 99
    for name, content in data.items():
        scanned.write(name, content)
    scanned.write(".gitattributes", "* text=auto eol=lf\n")
    ws = scanned.start()
    for name in data:
        scanned.write(name, b"other\n")
    ws.checkpoint()
    ws.undo()
    assert {name: (scanned.path / name).read_bytes() for name in data} == data
