"""Why a directory cannot be served, told before anything is touched.

Owns the rules and their wording: each says what is wrong, with what, and what to do. Only looks, never changes.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
import tempfile

from harness.failure import PlyfsError
from harness.registry import Registry, is_below
from harness.systems import system
from vfs.channels.mountinfo import Mount, mounts

PSEUDO_TYPES = frozenset(
    {
        *(b"proc", b"sysfs", b"devtmpfs", b"devpts", b"cgroup", b"cgroup2", b"securityfs", b"debugfs", b"tracefs"),
        *(b"configfs", b"bpf", b"pstore", b"mqueue", b"hugetlbfs", b"efivarfs", b"fusectl", b"binfmt_misc", b"nsfs"),
    }
)


def not_a_workspace(message: str, hint: str) -> PlyfsError:
    """The path can never be a workspace as it is."""
    return PlyfsError("not_a_workspace", message, hint)


def resolve(path: str) -> str:
    """The real path of a directory that is to be served. Raises PlyfsError unless it is one."""
    try:
        real = os.path.realpath(path, strict=True)
        status = os.stat(real)
    except OSError as error:
        hint = "give the path of an existing directory"
        if error.errno == errno.ENOTCONN:  # somebody else's dead mount, or ours without an entry
            hint = "a mount there is dead: run `plyfs doctor`"
        raise not_a_workspace(f"{path}: {error.strerror}", hint) from None
    if not stat.S_ISDIR(status.st_mode):
        raise not_a_workspace(f"{real} is not a directory", "give the path of a directory")
    return real


def check(workspace: str, mountpoint: str | None, home: str, registry: Registry) -> None:
    """Raise PlyfsError if ``workspace``, a real path, must not be served at ``mountpoint`` (None: in place)."""
    check_place(workspace, home)
    point = mountpoint or workspace
    mounted = mounts()
    check_nesting(workspace, point, registry, mounted)
    for path in {workspace, point}:
        check_kind(path, mounted)
    check_access(point)
    if mountpoint is not None:
        check_elsewhere(workspace, mountpoint)


def check_place(workspace: str, home: str) -> None:
    """The root, the home directory, whatever holds it, and the store are no workspaces."""
    if os.path.dirname(workspace) == workspace:
        raise not_a_workspace(f"{workspace} cannot be a workspace", "choose the directory of one project")
    user_home = os.path.realpath(os.path.expanduser("~"))
    if os.path.dirname(user_home) != user_home and is_below(user_home, workspace):
        raise not_a_workspace(
            f"{workspace} cannot be a workspace: it is, or holds, your home directory {user_home}",
            "choose the directory of one project below it",
        )
    store = os.path.realpath(home)
    if is_below(store, workspace):
        raise not_a_workspace(
            f"{workspace} cannot be a workspace: the store {store} lies in it",
            "set PLYFS_HOME to a directory outside of the workspace",
        )
    if is_below(workspace, store):
        raise not_a_workspace(f"{workspace} is part of the store {store}", "choose a directory outside of the store")


def check_nesting(workspace: str, point: str, registry: Registry, mounted: list[Mount]) -> None:
    """No workspace in a served one, nor around one, and no mount point twice."""
    for entry in registry.all():
        if not entry.is_alive():
            continue  # its mount, if it is still there, is met below
        served = entry.mountpoint or entry.workspace
        if workspace in (entry.workspace, served) or point in (entry.workspace, served):
            raise PlyfsError(
                "locked",
                f"{workspace} is served already, by process {entry.pid} at {served}",
                "use it as it is, or `plyfs unmount` it first",
            )
        for one in {entry.workspace, served}:
            if is_below(workspace, one) or is_below(point, one):
                raise not_a_workspace(
                    f"{workspace} lies in the served workspace {one}",
                    f"use that, or `plyfs unmount -C {one}` first",
                )
            if is_below(one, workspace) or is_below(one, point):
                raise not_a_workspace(
                    f"the served workspace {one} lies in {workspace}", f"`plyfs unmount -C {one}` first"
                )
    for path in {workspace, point}:
        over = mount_over(path, mounted)
        if over is not None and over.is_ours:
            raise not_a_workspace(
                f"{path} lies in a plyfs mount at {os.fsdecode(over.point)} that this store does not know",
                "unmount that first; if it is dead, `plyfs doctor` takes it away",
            )


def check_kind(path: str, mounted: list[Mount]) -> None:
    """Directories that the kernel makes up are not copied on write."""
    over = mount_over(path, mounted)
    if over is not None and over.type in PSEUDO_TYPES:
        kind = os.fsdecode(over.type)
        raise not_a_workspace(f"{path} is on a {kind} file system", "choose the directory of a project")


def check_access(point: str) -> None:
    """What fusermount3 would refuse, and what writing the tree back would meet at the end."""
    if system.user_id() == 0:
        return
    status = os.stat(point)
    if not os.access(point, os.R_OK | os.W_OK | os.X_OK):
        raise not_a_workspace(
            f"{point} is not yours to write (owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o})",
            "choose a directory that you may write, or change its owner",
        )
    if status.st_mode & stat.S_ISVTX and status.st_uid != system.user_id():
        raise not_a_workspace(f"{point} is sticky and user {status.st_uid}'s", "choose a directory of your own")


def check_elsewhere(workspace: str, mountpoint: str) -> None:
    """A mount point beside the workspace must be empty, and neither may hold the other."""
    if is_below(mountpoint, workspace) or is_below(workspace, mountpoint):
        raise PlyfsError(
            "usage", f"{mountpoint} and {workspace} lie in each other", "choose a mount point outside of the workspace"
        )
    with os.scandir(mountpoint) as entries:
        if next(entries, None) is not None:
            raise PlyfsError("usage", f"the mount point {mountpoint} is not empty", "choose an empty directory")


def mount_over(path: str, among: list[Mount]) -> Mount | None:
    """The mount that ``path`` lies on: of those with the longest mount point above it, the last made."""
    best: Mount | None = None
    for mount in among:
        if is_below(path, os.fsdecode(mount.point)) and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def check_fuse(really: bool = False) -> None:
    """Raise PlyfsError unless this machine lets this user mount; ``really`` tries it, on a directory made for that."""
    if sys.platform != "linux":
        raise PlyfsError("no_fuse", "plyfs speaks to no FUSE but that of Linux", "use --mode scan")
    if not os.path.exists("/dev/fuse"):
        raise PlyfsError(
            "no_fuse",
            "this machine has no /dev/fuse",
            "load the fuse module (`modprobe fuse`); in a container, pass --device /dev/fuse",
        )
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        raise PlyfsError(
            "no_fuse",
            f"/dev/fuse cannot be opened: {error.strerror}",
            "`chmod 666 /dev/fuse` as root; in a container, pass --device /dev/fuse and --cap-add SYS_ADMIN",
        ) from None
    if system.user_id() != 0 and shutil.which("fusermount3") is None:
        raise PlyfsError(
            "no_fuse",
            "there is no fusermount3 to mount with as an ordinary user",
            "install the package fuse3, or run as root",
        )
    if really:
        _try_mounting()


def _try_mounting() -> None:
    """A container may have the device and forbid mounting all the same: only trying tells."""
    from vfs.channels import mountpoint

    point = tempfile.mkdtemp(prefix="plyfs-")
    try:
        os.close(mountpoint.mount(os.fsencode(point)))
        mountpoint.unmount(os.fsencode(point), lazy=True)
    except mountpoint.MountError as error:
        raise PlyfsError("no_fuse", error.message, error.hint) from None
    finally:
        os.rmdir(point)
