"""Mounting and unmounting for real, as root and as a user; dead mounts; the mount table."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import lacking, need_programs
from tests.contract.servers import OPEN_DEVICE, Server, open_directory
from vfs.channels import mountinfo, mountpoint

NOBODY = 65534
mounted = pytest.mark.mounted


@pytest.fixture
def point() -> Iterator[Path]:
    path = open_directory()
    yield path
    subprocess.run(["umount", "-l", path], check=False, capture_output=True, timeout=20)
    path.rmdir()


@pytest.fixture
def fusectl() -> Iterator[None]:
    """/sys/fs/fuse/connections, which systemd mounts where there is one."""
    control = "/sys/fs/fuse/connections"
    if os.path.ismount(control):
        yield
        return
    subprocess.run(["mount", "-t", "fusectl", "none", control], check=True, timeout=20)
    yield
    subprocess.run(["umount", control], check=False, timeout=20)


# The mount table, without a mount

TABLE = rb"""22 1 0:20 / / rw,relatime shared:1 - ext4 /dev/root rw
40 22 0:40 / /work\040place/tab\011new\012line\134back rw,nosuid,nodev shared:7 master:2 - fuse.plyfs plyfs rw,user_id=0
41 40 0:41 /sub /work\040place/inner rw - tmpfs tmp\040fs rw
42 22 8:1 / /strange\04x rw - ext4 /dev/sda1 rw
43 22 0:43 / / rw - fuse.plyfs plyfs rw
nonsense
44 x 0:43 / / rw - fuse.plyfs plyfs rw
45 22 0:45 / /b rw
"""


def test_the_table_is_parsed_with_its_escapes_and_without_its_nonsense() -> None:
    mounts = mountinfo.parse(TABLE)
    assert [mount.id for mount in mounts] == [22, 40, 41, 42, 43]
    ours = mounts[1]
    assert ours.point == b"/work place/tab\tnew\nline\\back"
    assert ours.is_ours
    assert (ours.device, ours.parent, ours.source) == ((0, 40), 22, b"plyfs")
    assert (mounts[2].root, mounts[2].source) == (b"/sub", b"tmp fs")
    assert mounts[3].point == rb"/strange\04x"


def test_of_several_mounts_at_one_point_the_last_is_on_top(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mountinfo, "mounts", lambda: mountinfo.parse(TABLE))
    found = mountinfo.mount_at(b"/")
    assert found is not None
    assert found.id == 43
    assert mountinfo.mount_at(b"/nowhere") is None
    assert [mount.id for mount in mountinfo.mounts_below(b"/work place")] == [40, 41]
    assert len(mountinfo.mounts_below(b"/")) == 3


def test_the_real_table_has_a_root() -> None:
    assert mountinfo.mount_at(b"/") is not None
    assert mountpoint.state(b"/") == "absent"


# Refusals that need no mount


def test_no_device_is_said_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mountpoint, "DEVICE", "/dev/no-fuse-here")
    with pytest.raises(mountpoint.MountError) as caught:
        mountpoint.mount(b"/tmp")
    assert caught.value.code == "refused"
    assert "scan" in caught.value.hint


def test_no_fusermount_is_said_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(mountpoint.MountError, match="fusermount3 is not installed") as caught:
        mountpoint.mount(b"/tmp")
    assert "fuse3" in caught.value.hint


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("fusermount3: failed to open /dev/fuse: Permission denied", "chmod 0666 /dev/fuse"),
        ("fusermount3: mount failed: Operation not permitted", "CAP_SYS_ADMIN"),
        ("fusermount3: option allow_other only allowed if 'user_allow_other' is set", "user_allow_other"),
        ("fusermount3: too many FUSE filesystems mounted; mount_max=N can be set", "mount_max"),
        ("something else", "scan"),
    ],
)
def test_what_fusermount_says_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, hint: str
) -> None:
    program = tmp_path / "fusermount3"
    program.write_text(f'#!/bin/sh\necho "{said}" >&2\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    with pytest.raises(mountpoint.MountError) as caught:
        mountpoint.mount(os.fsencode(tmp_path))
    assert said in caught.value.message
    assert hint in caught.value.hint


# Real mounts


@mounted
@pytest.mark.root
def test_root_mounts_and_unmounts(point: Path) -> None:
    name = os.fsencode(point)
    fd = mountpoint.mount(name)
    try:
        assert not os.get_inheritable(fd)
        mount = mountinfo.mount_at(name)
        assert mount is not None
        assert mount.is_ours
        assert mount.source == b"plyfs"
        assert b"allow_other" in mount.super_options
        assert b"default_permissions" in mount.super_options
        assert b"nosuid" in mount.options
    finally:
        os.close(fd)
    assert mountpoint.state(name) == "dead"
    assert mountpoint.mend(name)
    assert mountpoint.state(name) == "absent"
    assert not mountpoint.mend(name)
    with pytest.raises(mountpoint.MountError, match="is not mounted"):
        mountpoint.unmount(name)


@mounted
@pytest.mark.root
def test_what_somebody_else_mounted_on_top_is_left_alone(point: Path) -> None:
    server = Server(point)
    try:
        subprocess.run(["mount", "-t", "tmpfs", "cover", point], check=True, timeout=10)
        with pytest.raises(mountpoint.MountError, match=r"another file system \(tmpfs\)"):
            mountpoint.unmount(os.fsencode(point), lazy=True)
        subprocess.run(["umount", point], check=True, timeout=10)
        assert mountpoint.state(os.fsencode(point)) == "alive"
        mountpoint.unmount(os.fsencode(point))
    finally:
        server.close()


@mounted
@pytest.mark.root
def test_mounting_where_nothing_can_be_mounted(point: Path) -> None:
    with pytest.raises(mountpoint.MountError) as caught:
        mountpoint.mount(os.fsencode(point / "absent"))
    assert caught.value.errno == errno.ENOENT
    (point / "file").touch()
    try:
        with pytest.raises(mountpoint.MountError):
            mountpoint.mount(os.fsencode(point / "file"))
    finally:
        (point / "file").unlink()


@mounted
@pytest.mark.root
def test_somebody_who_only_looks_is_waited_for(point: Path) -> None:
    server = Server(point)
    try:
        held = open(point / "f", "w")
        looked = threading.Timer(0.2, held.close)
        looked.start()
        mountpoint.unmount(os.fsencode(point))
        looked.join()
        assert mountinfo.mount_at(os.fsencode(point)) is None
    finally:
        server.close()


@mounted
@pytest.mark.root
def test_a_busy_mount_is_refused_unless_lazy(point: Path) -> None:
    server = Server(point)
    try:
        held = open(point / "f", "w")
        assert mountpoint.state(os.fsencode(point)) == "alive"
        assert not mountpoint.mend(os.fsencode(point))
        with pytest.raises(mountpoint.BusyError) as caught:
            mountpoint.unmount(os.fsencode(point))
        assert caught.value.code == "conflict"
        mountpoint.unmount(os.fsencode(point), lazy=True)
        held.write("still served")
        held.flush()
        assert os.fstat(held.fileno()).st_size == 12
        assert not server.run("channel.wait(0)")
        held.close()
        assert server.run("channel.wait(10)")
    finally:
        server.close()


@mounted
@pytest.mark.root
@pytest.mark.parametrize("channel", ["direct", "pyfuse3"])
def test_a_killed_server_leaves_a_dead_mount_that_is_mended(point: Path, channel: str) -> None:
    if channel == "pyfuse3":
        pytest.importorskip("pyfuse3")
    server = Server(point, channel)
    try:
        os.stat(point)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(10)
        assert mountpoint.state(os.fsencode(point)) == "dead"
        assert mountpoint.mend(os.fsencode(point))
        assert os.listdir(point) == []
    finally:
        server.close()


@mounted
@pytest.mark.root
def test_a_silent_server_is_noticed_and_can_be_aborted(point: Path, fusectl: None) -> None:
    server = Server(point)
    try:
        server.process.send_signal(signal.SIGSTOP)
        os.waitpid(server.process.pid, os.WUNTRACED)  # until it has stopped
        assert mountpoint.state(os.fsencode(point), 0.2) == "unresponsive"
        mountpoint.abort(os.fsencode(point))
        assert mountpoint.state(os.fsencode(point)) == "dead"
    finally:
        server.process.send_signal(signal.SIGCONT)
        server.close()


@mounted
@pytest.mark.root
@pytest.mark.parametrize("channel", ["direct", "pyfuse3"])
def test_an_unmount_from_outside_ends_the_channel(point: Path, channel: str) -> None:
    if channel == "pyfuse3":
        pytest.importorskip("pyfuse3")
    server = Server(point, channel)
    try:
        (point / "f").write_text("x")
        subprocess.run(["umount", point], check=True, timeout=20)
        assert server.run("channel.wait(10)")
        server.run("channel.stop()")
        server.run("from vfs.channel import Invalidations; channel.invalidate(Invalidations(attributes=(1,)))")
    finally:
        server.close()


USER = """
import os, sys
sys.path.insert(0, sys.argv[3])
from vfs.channels import mountinfo, mountpoint  # while Python's own files can be read
os.setgroups([])
os.setresgid(*[int(sys.argv[2])] * 3)
os.setresuid(*[int(sys.argv[2])] * 3)
point = os.fsencode(sys.argv[1])
fd = mountpoint.mount(point)
assert not os.get_inheritable(fd)
mount = mountinfo.mount_at(point)
assert mount.is_ours and mount.source == b"plyfs", mount
assert b"user_id=%d" % os.getuid() in mount.super_options and b"default_permissions" in mount.super_options
assert b"allow_other" not in mount.super_options
os.close(fd)
assert mountpoint.state(point) == "dead"
assert mountpoint.mend(point)
assert mountpoint.state(point) == "absent"
try: mountpoint.unmount(point)
except mountpoint.MountError as error: assert "is not mounted" in str(error), error
else: raise AssertionError
print("fine")
"""


@mounted
@pytest.mark.root
def test_a_user_mounts_through_fusermount(point: Path) -> None:
    need_programs("fusermount3", "unshare")
    os.chown(point, NOBODY, NOBODY)
    root = Path(__file__).resolve().parents[2]
    command = [*OPEN_DEVICE, sys.executable, "-c", USER, point, str(NOBODY), root]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "fine\n", done.stderr


@mounted
@pytest.mark.root
@pytest.mark.parametrize("channel", ["direct", "pyfuse3"])
def test_a_user_serves(point: Path, channel: str) -> None:
    need_programs("fusermount3", "unshare", "nsenter")
    if channel == "pyfuse3":
        pytest.importorskip("pyfuse3")
    os.chown(point, NOBODY, NOBODY)
    server = Server(point, channel, user=NOBODY, wrapper=OPEN_DEVICE)
    try:
        inside = ["nsenter", "--mount", "--target", str(server.process.pid)]
        if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode != 0:
            lacking("another process's mount namespace cannot be entered (a container without CAP_SYS_PTRACE)")
        code = (
            "import os, sys\nos.setgroups([])\n"
            f"os.setresgid(*[{NOBODY}] * 3)\nos.setresuid(*[{NOBODY}] * 3)\nos.chdir(sys.argv[1])\n"
            "os.mkdir('d')\nopen('d/f', 'w').write('mine')\n"
            "print(open('d/f').read(), os.listdir('d'), os.stat('d').st_uid)"
        )
        command = [*inside, sys.executable, "-c", code, point]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert done.stdout == f"mine ['f'] {NOBODY}\n", done.stderr
        done = subprocess.run([*inside, "ls", point], capture_output=True, text=True, timeout=30)
        assert "Permission denied" in done.stderr  # not even root may look in
        server.run("channel.stop()")
        asked = f"__import__('vfs.channels.mountpoint').channels.mountpoint.state({os.fsencode(point)!r})"
        assert server.run(asked) == "absent"
    finally:
        server.close()
