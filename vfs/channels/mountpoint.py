"""Mounting, unmounting and telling a dead mount: what root does with system calls and others through fusermount3.

Owns the mount table's side of a mount; what is said over the descriptor is the channel's business. Never opens or
lists a path inside a mount: whether one is alive is asked with statfs, which the kernel never answers from a cache.

Concurrency: no state; every function may be called from any thread that answers no requests of the mount concerned.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import socket
import subprocess
import threading
import time
from typing import Literal

from vfs.channels import mountinfo
from vfs.libc import libc
from vfs.workspace import ConflictError, RefusedError

DEVICE = "/dev/fuse"
SOURCE = "plyfs"

MS_NOSUID = 2
MS_NODEV = 4
MNT_DETACH = 2
UMOUNT_NOFOLLOW = 8

FUSERMOUNT_SECONDS = 20.0

State = Literal["absent", "alive", "dead", "unresponsive"]


class MountError(RefusedError):
    """Mounting or unmounting failed; ``errno`` is the kernel's, or 0 if fusermount3 spoke."""

    def __init__(self, message: str, hint: str = "", errno: int = 0) -> None:
        super().__init__(message, hint)
        self.errno = errno


class BusyError(ConflictError):
    """Something in the mount is still open, mapped, or somebody's working directory."""


def mount(point: bytes, *, allow_other: bool | None = None) -> int:
    """Mount FUSE at the directory ``point`` and return the descriptor that requests come from (close-on-exec).

    ``allow_other`` (others than the mounting user may look in) is, if None, what can be had without configuration:
    True for root, False for others. Raises MountError. Until INIT is answered, whoever touches the mount waits.
    """
    if not os.path.exists(DEVICE):
        raise MountError(f"{DEVICE} does not exist", "load the kernel's fuse module, or use --mode scan", errno.ENOENT)
    if os.geteuid() == 0:
        return _mount_as_root(point, True if allow_other is None else allow_other)
    return _mount_as_user(point, bool(allow_other))


def _mount_as_root(point: bytes, allow_other: bool) -> int:
    try:
        fd = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise _device_error(error) from error
    options = f"fd={fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},default_permissions"
    if allow_other:
        options += ",allow_other"
    arguments = (SOURCE.encode(), point, mountinfo.FUSE_TYPE, MS_NOSUID | MS_NODEV, options.encode())
    if libc.mount(*arguments[:3], ctypes.c_ulong(arguments[3]), arguments[4]) == 0:
        return fd
    number = ctypes.get_errno()
    os.close(fd)
    if number == errno.EPERM and shutil.which("fusermount3"):  # root in a container without CAP_SYS_ADMIN
        return _mount_as_user(point, allow_other)
    hint = {
        errno.EPERM: "this root may not mount (a container without CAP_SYS_ADMIN?); use --mode scan",
        errno.ENODEV: "the kernel has no FUSE; use --mode scan",
        errno.ENOTDIR: "the mount point must be a directory",
    }.get(number, "")
    raise MountError(f"cannot mount at {os.fsdecode(point)}: {os.strerror(number)}", hint, number)


def _mount_as_user(point: bytes, allow_other: bool) -> int:
    """Ask fusermount3, which sends the descriptor over the socket that _FUSE_COMMFD names."""
    program = shutil.which("fusermount3")
    if program is None:
        raise MountError(
            "fusermount3 is not installed, and only root can mount without it",
            "install the fuse3 package, or use --mode scan",
        )
    options = f"fsname={SOURCE},subtype=plyfs,default_permissions"
    if allow_other:
        options += ",allow_other"
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        ours.settimeout(FUSERMOUNT_SECONDS)
        process = subprocess.Popen(
            [program, "-o", options, "--", point],
            env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        theirs.close()
        try:
            _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        except TimeoutError:
            process.kill()
            fds = []
        said = process.communicate()[1].decode(errors="replace").strip()
    if fds:
        os.set_inheritable(fds[0], False)
        return fds[0]
    raise MountError(f"fusermount3 could not mount at {os.fsdecode(point)}: {said or 'no answer'}", _hint(said))


def _device_error(error: OSError) -> MountError:
    hint = f"in a container, start it with --device {DEVICE}; or use --mode scan"
    return MountError(f"cannot open {DEVICE}: {error.strerror}", hint, error.errno or 0)


def _hint(said: str) -> str:
    """What to do about what fusermount3 said."""
    if DEVICE in said and "ermission denied" in said:  # fusermount3 opens it with the user's rights, setuid or not
        return f"users may not open {DEVICE}; root can let them: chmod 0666 {DEVICE}; or use --mode scan"
    if "Operation not permitted" in said:
        return "mounting is not permitted here (fusermount3 not setuid, or a container without CAP_SYS_ADMIN)"
    if "user_allow_other" in said:
        return "put user_allow_other into /etc/fuse.conf, or mount without allow_other"
    if "too many FUSE filesystems" in said:
        return "raise mount_max in /etc/fuse.conf, or unmount what is not needed"
    return "use --mode scan if FUSE cannot be had here"


BUSY_SECONDS, BUSY_PAUSE_SECONDS = 1.0, 0.02
"""How long, and how often, unmounting is tried again while somebody looks at something in the mount."""


def unmount(point: bytes, *, lazy: bool = False) -> None:
    """Take the mount at ``point`` away. ``lazy`` detaches it at once, also if it is in use or its server is dead.

    Raises BusyError if it is in use, for more than the moment that a walk through it (by du, an indexer) takes, and
    MountError if there is none or what is on top there is not ours.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            _unmount(point, lazy)
            return
        except BusyError:
            if lazy or time.monotonic() > deadline:
                raise
            time.sleep(BUSY_PAUSE_SECONDS)


def _unmount(point: bytes, lazy: bool) -> None:
    top = mountinfo.mount_at(point)
    if top is not None and not top.is_ours:
        kind = os.fsdecode(top.type)
        raise MountError(f"another file system ({kind}) is mounted at {os.fsdecode(point)}", "unmount that first")
    if os.geteuid() == 0:
        flags = UMOUNT_NOFOLLOW | (MNT_DETACH if lazy else 0)
        if libc.umount2(point, flags) == 0:
            return
        number = ctypes.get_errno()
        said = os.strerror(number)
    else:
        program = shutil.which("fusermount3")
        if program is None:
            raise MountError("fusermount3 is not installed, and only root can unmount without it", "install fuse3")
        command: list[str | bytes] = [program, "-u", *(["-z"] if lazy else []), "--", point]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        if done.returncode == 0:
            return
        said = done.stderr.decode(errors="replace").strip()
        mounted = mountinfo.mount_at(point) is not None
        busy = "busy" in said or (not said and mounted)
        number = errno.EBUSY if busy else (0 if mounted else errno.EINVAL)
    where = os.fsdecode(point)
    if number == errno.EBUSY:
        raise BusyError(f"{where} is in use", "close what is open there, or unmount with --lazy")
    if number == errno.EINVAL:
        raise MountError(f"{where} is not mounted", errno=number)
    raise MountError(f"cannot unmount {where}: {said}", errno=number)


def state(point: bytes, seconds: float = 2.0) -> State:
    """What is at ``point``: no mount of ours, or one whose server answers, is gone (ENOTCONN), or says nothing for
    ``seconds``. A thread that waits for a silent server is left behind until that server speaks or dies.
    """
    mount = mountinfo.mount_at(point)
    if mount is None or not mount.is_ours:
        return "absent"
    result: list[State] = []

    def ask() -> None:
        try:
            os.statvfs(point)
        except OSError as error:
            result.append("dead" if error.errno in (errno.ENOTCONN, errno.ECONNABORTED) else "alive")
        else:
            result.append("alive")

    thread = threading.Thread(target=ask, name="plyfs-mount-state", daemon=True)
    thread.start()
    thread.join(seconds)
    return result[0] if result else "unresponsive"


def mend(point: bytes) -> bool:
    """Detach a mount of ours at ``point`` whose server is dead; True if there was one. Never touches a live one."""
    mended = False
    while state(point) == "dead":  # several may lie on top of each other
        unmount(point, lazy=True)
        mended = True
    return mended


def abort(point: bytes) -> None:
    """Break the connection of an unresponsive mount at ``point``: whoever waits for its server gets ECONNABORTED.

    Needs root or the mounting user, and fusectl; raises MountError otherwise.
    """
    mount = mountinfo.mount_at(point)
    if mount is None or not mount.is_ours:
        raise MountError(f"{os.fsdecode(point)} is not mounted", errno=errno.EINVAL)
    major, minor = mount.device
    number = (major << 20) | minor  # the kernel's dev_t names the directory
    try:
        with open(f"/sys/fs/fuse/connections/{number}/abort", "wb") as control:
            control.write(b"1")
    except OSError as error:
        raise MountError(f"cannot abort {os.fsdecode(point)}: {error.strerror}", errno=error.errno or 0) from error
