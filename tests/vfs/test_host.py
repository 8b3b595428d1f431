"""The host reads a directory by origin, whatever the names, modes and lengths."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
import textwrap

import pytest

from store.entries import below
from store.format import Directory, Origin, Original, Regular, Special, Symlink
from vfs.errors import FsError
from vfs.trees.host import HASHED_DEVICE, ROOT_INO, Host, open_beneath, parent


@pytest.fixture
def host(tmp_path):
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield Host({0: fd})
    os.close(fd)


def at(path: bytes = b"") -> Origin:
    return Origin(0, path)


def test_the_root_is_inode_one_and_others_keep_their_number(host, tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    assert host.ino(host.stat(at())) == ROOT_INO
    assert host.ino(host.stat(at(b"f"))) == (tmp_path / "f").stat().st_ino


def test_list_gives_names_numbers_and_types(host, tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / os.fsdecode(b"d/\xff\n")).write_bytes(b"")
    os.symlink("nowhere", tmp_path / "d/l")
    os.mkfifo(tmp_path / "d/p")
    os.mkdir(tmp_path / "d/sub")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "d/s"))
    rows = {row.name: row for row in host.list(at(b"d"))}
    assert {name: row.type << 12 for name, row in rows.items()} == {
        b"\xff\n": stat.S_IFREG,
        b"l": stat.S_IFLNK,
        b"p": stat.S_IFIFO,
        b"sub": stat.S_IFDIR,
        b"s": stat.S_IFSOCK,
    }
    assert all(row.ino == host.ino(host.stat(at(b"d/" + name))) for name, row in rows.items())


def test_entries_of_every_type(host, tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    path.chmod(0o4750)
    os.utime(path, ns=(5, 1234567890123456789))
    os.setxattr(path, "user.b", b"2")
    os.setxattr(path, "user.a", b"1")
    entry = host.entry(at(b"f"))
    assert isinstance(entry, Regular)
    assert entry.content == Original(at(b"f"), 3, 1234567890123456789)
    assert (entry.attributes.mode, entry.attributes.mtime_ns) == (0o4750, 1234567890123456789)
    assert entry.attributes.xattrs == ((b"user.a", b"1"), (b"user.b", b"2"))
    os.symlink(b"/x\xfe", os.fsencode(tmp_path / "l"))
    link = host.entry(at(b"l"))
    assert isinstance(link, Symlink)
    assert link.target == b"/x\xfe"
    os.mkfifo(tmp_path / "p", 0o600)
    assert isinstance(pipe := host.entry(at(b"p")), Special)
    assert (pipe.file_type, pipe.rdev) == (stat.S_IFIFO, 0)
    (tmp_path / "d").mkdir()
    assert isinstance(directory := host.entry(at(b"d")), Directory)
    assert (directory.origin, directory.node) == (at(b"d"), None)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")
def test_a_device_keeps_its_number(host, tmp_path):
    os.mknod(tmp_path / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    entry = host.entry(at(b"null"))
    assert isinstance(entry, Special)
    assert (entry.file_type, entry.rdev) == (stat.S_IFCHR, os.makedev(1, 3))


def test_errors_carry_the_errno_and_name_the_path(host, tmp_path):
    with pytest.raises(FsError, match="missing/x") as caught:
        host.stat(at(b"missing/x"))
    assert caught.value.errno == errno.ENOENT
    assert not host.exists(at(b"missing/x"))
    with pytest.raises(FsError) as caught:
        host.stat(Origin(3, b"x"))
    assert caught.value.errno == errno.EIO
    os.mkfifo(tmp_path / "p")
    with pytest.raises(FsError) as caught:
        host.open(at(b"p"))
    assert caught.value.errno == errno.EIO


def test_a_path_longer_than_path_max(host, tmp_path):
    fd = os.open(tmp_path, os.O_RDONLY)
    parts = []
    for index in range(30):
        name = bytes([97 + index % 26]) * 250
        os.mkdir(name, dir_fd=fd)
        inner = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
        parts.append(name)
    leaf = os.open("leaf", os.O_WRONLY | os.O_CREAT, dir_fd=fd)
    os.write(leaf, b"deep")
    os.close(leaf)
    os.symlink("t", "link", dir_fd=fd)
    os.close(fd)
    deep = at(b"/".join(parts))
    assert {row.name for row in host.list(deep)} == {b"leaf", b"link"}
    assert host.stat(below(deep, b"leaf")).st_size == 4
    assert host.readlink(below(deep, b"link")) == b"t"
    assert host.xattrs(below(deep, b"leaf")) == ()
    opened = host.open(below(deep, b"leaf"))
    assert os.read(opened, 9) == b"deep"
    os.close(opened)


def test_a_symbolic_link_on_the_way_is_not_followed(host, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"secret")
    os.symlink("outside", tmp_path / "d")
    with pytest.raises(FsError):
        host.open(at(b"d/f"))
    with pytest.raises(FsError):
        host.list(at(b"d/"))
    fd = open_beneath(host.tree(0), b"outside/f", os.O_RDONLY)
    os.close(fd)


def test_names_of_a_file_with_several(host, tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "a").write_bytes(b"")
    os.link(tmp_path / "a", tmp_path / "d/b")
    ino = host.ino(host.stat(at(b"a")))
    assert host.names({ino}) == {ino: (b"a", b"d/b")}
    os.link(tmp_path / "a", tmp_path / "c")
    assert host.names({ino}) == {ino: (b"a", b"d/b")}, "remembered"
    host.forget_names()
    assert host.names({ino}) == {ino: (b"a", b"c", b"d/b")}


def test_numbers_of_other_devices_stay_apart_and_stay_the_same(host, tmp_path):
    other = os.stat("/proc/self")
    first = host.ino(other)
    assert first != other.st_ino
    again = Host({0: host.tree(0)}, host.devices)
    again.ino(os.stat("/dev/null"))
    assert again.ino(other) == first
    huge = os.stat_result((0o100644, 1 << 60, host.stat(at()).st_dev, 1, 0, 0, 0, 0, 0, 0))
    assert host.ino(huge) >> 52 == HASHED_DEVICE


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")
def test_a_mount_below_is_listed_with_the_number_that_stat_gives(tmp_path):
    (tmp_path / "m n").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path / "m n"], check=True)
    try:
        fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
        host = Host({0: fd})
        (row,) = host.list(at())
        assert row.ino == host.ino(host.stat(at(b"m n"))) != (tmp_path / "m n").stat().st_ino
        os.close(fd)
    finally:
        subprocess.run(["umount", tmp_path / "m n"], check=True)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root, to stop being it")
def test_what_our_own_mode_forbids_is_opened_up_and_put_back(tmp_path):
    script = textwrap.dedent(
        """
        import os, sys
        from store.format import Origin
        from vfs.trees.host import Host
        top = sys.argv[1]
        os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
        os.makedirs(top + "/shut/inner")
        with open(top + "/shut/inner/f", "w") as f: f.write("kept")
        os.chmod(top + "/shut/inner/f", 0); os.chmod(top + "/shut/inner", 0); os.chmod(top + "/shut", 0)
        host = Host({0: os.open(top, os.O_RDONLY)})
        assert [row.name for row in host.list(Origin(0, b"shut"))] == [b"inner"]
        assert [row.name for row in host.list(Origin(0, b"shut/inner"))] == [b"f"]
        assert host.stat(Origin(0, b"shut/inner/f")).st_size == 4
        fd = host.open(Origin(0, b"shut/inner/f"))
        assert os.read(fd, 9) == b"kept"
        assert os.stat(top + "/shut").st_mode & 0o777 == 0
        assert host.opened_up
        os.chmod(top + "/shut", 0o700)
        assert os.stat(top + "/shut/inner").st_mode & 0o777 == 0
        os.chmod(top + "/shut/inner", 0o700)
        assert os.stat(top + "/shut/inner/f").st_mode & 0o777 == 0
        """
    )
    tmp_path.chmod(0o777)
    for above in (tmp_path.parent, tmp_path.parent.parent):
        above.chmod(above.stat().st_mode | 0o055)
    subprocess.run([sys.executable, "-c", script, tmp_path], check=True, cwd=os.getcwd())


def test_parent_and_below():
    assert parent(b"a/b/c") == (b"a/b", b"c")
    assert parent(b"a") == (b"", b"a")
    assert below(at(), b"x") == at(b"x")
    assert below(at(b"x"), b"y") == at(b"x/y")
