"""Modes, owners, times, extended attributes and ACLs, as POSIX and Linux have them, in a mounted directory."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.servers import Server

pytestmark = [pytest.mark.mounted, pytest.mark.timeout(60)]

NOBODY = 65534
_libc = ctypes.CDLL(None, use_errno=True)


def as_nobody(code: str, *arguments: object) -> str:
    """Run ``code`` as an unprivileged user and return what it prints. (Python itself may lie where only root looks.)"""
    drop = f"import os\nos.setgroups([])\nos.setresgid(*[{NOBODY}] * 3)\nos.setresuid(*[{NOBODY}] * 3)\n"
    command = [sys.executable, "-c", drop + code, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30, cwd="/")
    return done.stdout


def permissions(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def test_every_mode_bit_is_kept(place: Path) -> None:
    (place / "f").touch()
    (place / "d").mkdir()
    for mode in (0, 0o600, 0o644, 0o4755, 0o2755, 0o1777, 0o7777):
        os.chmod(place / "f", mode)
        os.chmod(place / "d", mode)
        assert permissions(place / "f") == permissions(place / "d") == mode


def test_the_umask_applies(place: Path) -> None:
    old = os.umask(0o027)
    try:
        (place / "f").touch()
        (place / "d").mkdir()
        os.mkfifo(place / "p")
    finally:
        os.umask(old)
    assert permissions(place / "f") == 0o640
    assert permissions(place / "d") == 0o750
    assert permissions(place / "p") == 0o640


def test_setgid_directories_hand_down_their_group(place: Path) -> None:
    os.chown(place, -1, 1234) if os.geteuid() == 0 else None
    os.chmod(place, 0o2777)
    group = os.stat(place).st_gid
    (place / "f").touch()
    (place / "d").mkdir()
    assert os.stat(place / "f").st_gid == os.stat(place / "d").st_gid == group
    assert os.stat(place / "d").st_mode & stat.S_ISGID


@pytest.mark.root
def test_owners(place: Path) -> None:
    (place / "f").touch()
    os.chown(place / "f", 1000, 1001)
    assert (os.stat(place / "f").st_uid, os.stat(place / "f").st_gid) == (1000, 1001)
    os.symlink("f", place / "s")
    os.chown(place / "s", 7, 8, follow_symlinks=False)
    assert (os.lstat(place / "s").st_uid, os.stat(place / "f").st_uid) == (7, 1000)


@pytest.mark.root
def test_new_things_belong_to_who_made_them(place: Path) -> None:
    as_nobody(
        "import os, sys\nos.chdir(sys.argv[1])\nopen('f', 'w')\nos.mkdir('d')\nos.symlink('x', 's')\nos.mkfifo('p')",
        place,
    )
    for name in "fdsp":
        assert os.lstat(place / name).st_uid == NOBODY
        assert os.lstat(place / name).st_gid == NOBODY


@pytest.mark.root
def test_a_change_of_owner_takes_setuid(place: Path) -> None:
    (place / "f").touch()
    os.chmod(place / "f", 0o6755)
    os.chown(place / "f", 1, 1)
    assert permissions(place / "f") == 0o755
    os.chmod(place / "f", 0o6744)
    os.chown(place / "f", 2, -1)
    assert permissions(place / "f") & stat.S_ISUID == 0


@pytest.mark.root
@pytest.mark.parametrize("how", ["write", "truncate", "open"])
def test_a_write_by_an_unprivileged_user_takes_setuid(place: Path, how: str) -> None:
    (place / "f").write_text("content")
    os.chmod(place / "f", 0o6777)
    (place / "f").write_text("as root")
    assert permissions(place / "f") == 0o6777
    code = {
        "write": "f = os.open(p, os.O_WRONLY); os.write(f, b'x')",
        "truncate": "os.truncate(p, 3)",
        "open": "os.open(p, os.O_WRONLY | os.O_TRUNC)",
    }[how]
    as_nobody(f"import os, sys\np = sys.argv[1]\n{code}", place / "f")
    assert permissions(place / "f") == 0o777


@pytest.mark.root
def test_permissions_are_checked(place: Path) -> None:
    (place / "secret").write_text("x")
    os.chmod(place / "secret", 0o600)
    (place / "closed").mkdir(0o700)
    (place / "closed" / "f").touch()
    code = """
import os, sys
os.chdir(sys.argv[1])
for act in (
    lambda: open("secret"), lambda: os.listdir("closed"), lambda: os.stat("closed/f"), lambda: os.chmod("secret", 511),
    lambda: open("closed/new", "w"), lambda: os.utime("secret"), lambda: os.truncate("secret", 0),
):
    try: act()
    except PermissionError: print("denied")
    else: print("allowed")
"""
    assert as_nobody(code, place) == "denied\n" * 7
    assert as_nobody("import os, sys; print(os.access(sys.argv[1], os.R_OK))", place / "secret") == "False\n"


@pytest.mark.root
def test_the_sticky_bit_protects(place: Path) -> None:
    os.chmod(place, 0o1777)
    (place / "mine").touch()
    code = "import os, sys\ntry: os.unlink(sys.argv[1])\nexcept PermissionError: print('denied')"
    assert as_nobody(code, place / "mine") == "denied\n"


@pytest.mark.parametrize("time_ns", [0, 1, 1_234_567_890_123_456_789, -1, -1_500_000_000, 1 << 62])
def test_times_are_kept_to_the_nanosecond(place: Path, time_ns: int) -> None:
    (place / "f").touch()
    os.utime(place / "f", ns=(time_ns, time_ns + 1))
    status = os.stat(place / "f")
    assert (status.st_atime_ns, status.st_mtime_ns) == (time_ns, time_ns + 1)
    os.symlink("f", place / "s")
    os.utime(place / "s", ns=(5, 6), follow_symlinks=False)
    assert os.lstat(place / "s").st_mtime_ns == 6
    assert os.stat(place / "f").st_mtime_ns == time_ns + 1


def test_times_change_when_they_should(place: Path) -> None:
    (place / "f").write_text("x")
    os.utime(place / "f", ns=(1, 1))
    changed = os.stat(place / "f").st_ctime_ns
    assert changed > 1
    os.chmod(place / "f", 0o600)
    status = os.stat(place / "f")
    assert status.st_mtime_ns == 1
    assert status.st_ctime_ns > changed
    with open(place / "f", "a") as file:
        file.write("y")
    assert os.stat(place / "f").st_mtime_ns > 1
    os.utime(place / "f", ns=(1, 1))
    os.truncate(place / "f", 0)
    assert os.stat(place / "f").st_mtime_ns > 1
    os.utime(place / "f", ns=(1, 1))
    os.utime(place / "f")
    assert os.stat(place / "f").st_mtime_ns > 1


def test_touch_never_goes_back(place: Path, server: Server) -> None:
    tick = 0 if server.channel == "direct" else 10_000_000  # pyfuse3 gives the time of the kernel's last tick
    for _ in range(50):
        (place / "f").touch()
        first = os.stat(place / "f").st_mtime_ns
        os.utime(place / "f")
        second = os.stat(place / "f").st_mtime_ns
        assert second >= first - tick
        os.utime(place / "f")
        assert os.stat(place / "f").st_mtime_ns >= second - tick
        os.unlink(place / "f")


def test_utime_after_a_write_stays(place: Path) -> None:
    with open(place / "f", "wb") as file:
        file.write(b"x" * 100_000)
        os.utime(place / "f", ns=(42, 42))
    assert os.stat(place / "f").st_mtime_ns == 42


def test_extended_attributes(place: Path) -> None:
    (place / "f").touch()
    os.setxattr(place / "f", "user.one", b"1")
    os.setxattr(place / "f", "user.empty", b"")
    os.setxattr(place / "f", "user.big", b"x" * 60_000)
    assert os.getxattr(place / "f", "user.one") == b"1"
    assert os.getxattr(place / "f", "user.empty") == b""
    assert os.getxattr(place / "f", "user.big") == b"x" * 60_000
    assert sorted(os.listxattr(place / "f")) == ["user.big", "user.empty", "user.one"]
    os.setxattr(place / "f", "user.one", b"2", os.XATTR_REPLACE)
    with pytest.raises(FileExistsError):
        os.setxattr(place / "f", "user.one", b"3", os.XATTR_CREATE)
    with pytest.raises(OSError, match=rf"\[Errno {errno.ENODATA}\]"):
        os.setxattr(place / "f", "user.none", b"3", os.XATTR_REPLACE)
    assert os.getxattr(place / "f", "user.one") == b"2"
    os.removexattr(place / "f", "user.one")
    with pytest.raises(OSError, match=rf"\[Errno {errno.ENODATA}\]"):
        os.getxattr(place / "f", "user.one")
    with pytest.raises(OSError, match=rf"\[Errno {errno.ENODATA}\]"):
        os.removexattr(place / "f", "user.one")


def test_sizes_of_extended_attributes(place: Path) -> None:
    (place / "f").touch()
    os.setxattr(place / "f", "user.aaa", b"12345")
    path, room = os.fsencode(place / "f"), ctypes.create_string_buffer(100)

    def asked(size: int) -> list[int]:
        answers = []
        for answer in (_libc.listxattr(path, room, size), _libc.getxattr(path, b"user.aaa", room, size)):
            answers.append(answer if answer >= 0 else -ctypes.get_errno())
        return answers

    assert asked(0) == asked(100) == [9, 5]
    assert asked(9) == [9, 5]
    assert asked(5) == [-errno.ERANGE, 5]
    assert asked(4) == [-errno.ERANGE, -errno.ERANGE]
    os.setxattr(place / "f", "user." + "n" * 250, b"longest")
    with pytest.raises(OSError, match=rf"\[Errno {errno.ERANGE}\]"):
        os.setxattr(place / "f", "user." + "n" * 251, b"too long")


@pytest.mark.root
def test_extended_attributes_of_a_symlink_are_its_own(place: Path) -> None:
    (place / "f").touch()
    os.symlink("f", place / "s")
    os.setxattr(place / "s", "trusted.x", b"link", follow_symlinks=False)
    assert os.getxattr(place / "s", "trusted.x", follow_symlinks=False) == b"link"
    assert os.listxattr(place / "f") == []


@pytest.mark.root
def test_trusted_attributes_are_for_root_alone(place: Path) -> None:
    (place / "f").touch()
    os.setxattr(place / "f", "trusted.x", b"1")
    os.setxattr(place / "f", "user.x", b"1")
    assert sorted(os.listxattr(place / "f")) == ["trusted.x", "user.x"]
    assert as_nobody("import os, sys; print(os.listxattr(sys.argv[1]))", place / "f") == "['user.x']\n"


def acl(user: int, named: tuple[int, int], group: int, mask: int, other: int) -> bytes:
    """An ACL with one named user, as the xattr holds it."""
    undefined = 0xFFFFFFFF
    rows = [
        (0x01, user, undefined),
        (0x02, named[1], named[0]),
        (0x04, group, undefined),
        (0x10, mask, undefined),
        (0x20, other, undefined),
    ]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *row) for row in rows)


@pytest.mark.root
def test_acls_grant_what_the_mode_does_not(place: Path) -> None:
    (place / "f").write_text("for nobody")
    os.chmod(place / "f", 0o600)
    read = "import sys\ntry: print(open(sys.argv[1]).read())\nexcept PermissionError: print('denied')"
    assert as_nobody(read, place / "f") == "denied\n"
    os.setxattr(place / "f", "system.posix_acl_access", acl(6, (NOBODY, 4), 0, 4, 0))
    assert as_nobody(read, place / "f") == "for nobody\n"
    assert permissions(place / "f") == 0o640
    os.chmod(place / "f", 0o600)
    assert as_nobody(read, place / "f") == "denied\n"


@pytest.mark.root
def test_default_acls_take_the_place_of_the_umask(place: Path, server: Server) -> None:
    os.setxattr(place, "system.posix_acl_default", acl(7, (NOBODY, 7), 5, 7, 5))
    old = os.umask(0o077)
    try:
        fd = os.open(place / "f", os.O_CREAT | os.O_WRONLY, 0o666)
        os.close(fd)
        (place / "d").mkdir(0o777)
    finally:
        os.umask(old)
    assert os.getxattr(place / "d", "system.posix_acl_default") == acl(7, (NOBODY, 7), 5, 7, 5)
    if server.channel == "direct":
        assert permissions(place / "f") == 0o664
        assert os.getxattr(place / "f", "system.posix_acl_access") == acl(6, (NOBODY, 7), 5, 6, 4)


def test_the_file_system_has_a_size(place: Path) -> None:
    space = os.statvfs(place)
    assert space.f_blocks > 0
    assert space.f_bsize > 0
    assert space.f_namemax == 255


def test_held_files_change_with_their_path(place: Path) -> None:
    with open(place / "f", "w+") as file:
        os.chmod(place / "f", 0o600)
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
        os.fchmod(file.fileno(), 0o644)
        assert permissions(place / "f") == 0o644
        os.unlink(place / "f")
        os.fchmod(file.fileno(), 0o600)
        os.ftruncate(file.fileno(), 10)
        assert os.fstat(file.fileno()).st_size == 10
