"""Python as it is on Windows, as far as Linux can show it: what is missing there is missing, what fails there fails.

``pretend`` takes away modules, functions, flags and descriptors of directories, and lets nobody remove or replace a
file that this process holds open. Paths, names, links and times stay those of Linux. Only for a process of its own.
"""

from __future__ import annotations

import builtins
import ctypes
import fcntl
import os
import stat
import sys
import types
from collections.abc import Callable
from typing import Any

MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "posix"}
FUNCTIONS = (
    "O_ACCMODE", "O_ASYNC", "O_CLOEXEC", "O_DIRECT", "O_DIRECTORY", "O_DSYNC", "O_FSYNC", "O_LARGEFILE", "O_NDELAY",
    "O_NOATIME", "O_NOCTTY", "O_NOFOLLOW", "O_NONBLOCK", "O_PATH", "O_RSYNC", "O_SYNC", "O_TMPFILE", "SEEK_DATA",
    "SEEK_HOLE", "chown", "chroot", "confstr", "copy_file_range", "ctermid", "eventfd", "eventfd_read", "eventfd_write",
    "fchdir", "fchmod", "fchown", "fdatasync", "fork", "forkpty", "fpathconf", "fstatvfs", "get_blocking", "getegid",
    "geteuid", "getgid", "getgrouplist", "getgroups", "getloadavg", "getpgid", "getpgrp", "getpriority", "getrandom",
    "getresgid", "getresuid", "getsid", "getuid", "getxattr", "initgroups", "killpg", "lchown", "listxattr", "lockf",
    "login_tty", "memfd_create", "mkfifo", "mknod", "nice", "openpty", "pathconf", "pidfd_open", "pipe2",
    "posix_fadvise", "posix_fallocate", "posix_spawn", "posix_spawnp", "pread", "preadv", "pwrite", "pwritev", "readv",
    "removexattr", "sched_get_priority_max", "sched_get_priority_min", "sched_getaffinity", "sched_getparam",
    "sched_getscheduler", "sched_rr_get_interval", "sched_setaffinity", "sched_setparam", "sched_setscheduler",
    "sched_yield", "sendfile", "set_blocking", "setegid", "seteuid", "setgid", "setgroups", "setpgid", "setpgrp",
    "setpriority", "setregid", "setresgid", "setresuid", "setreuid", "setsid", "setuid", "setxattr", "spawnlp",
    "spawnlpe", "spawnvp", "spawnvpe", "splice", "statvfs", "sync", "sysconf", "tcgetpgrp", "tcsetpgrp", "ttyname",
    "uname", "wait", "wait3", "wait4", "waitid", "writev",
)  # fmt: skip
"""What Python 3.11 for Windows has not in ``os``, read off it."""
BY_DIRECTORY = (
    "open", "stat", "rename", "replace", "unlink", "remove", "mkdir", "rmdir", "link", "symlink", "readlink", "utime",
    "chmod",
)  # fmt: skip


def pretend() -> None:
    """From now on this process is on Windows. What the standard library needs of Linux must be imported before."""
    real = {name: getattr(os, name) for name in (*BY_DIRECTORY, "scandir", "listdir")}
    readlink, listdir, lstat, flock = real["readlink"], real["listdir"], os.lstat, fcntl.flock

    def held(path: Any) -> bool:
        where = os.path.realpath(os.fsdecode(path))
        for number in listdir("/proc/self/fd"):
            try:
                if readlink(f"/proc/self/fd/{number}") == where:
                    return True
            except OSError:
                continue
        return False

    def guarded(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if any(named.pop(key, None) is not None for key in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
                raise NotImplementedError(f"{name}: dir_fd unavailable on this platform")
            if named.get("follow_symlinks") is False and name in ("chmod", "utime"):
                raise NotImplementedError(f"{name}: follow_symlinks unavailable on this platform")
            if name in ("unlink", "remove", "rename", "replace"):
                for path in arguments[:2]:
                    if os.path.isfile(path) and held(path):
                        raise _sharing_violation(path)
            if name == "open" and os.path.isdir(arguments[0]):
                raise PermissionError(13, "Permission denied", arguments[0])
            return real[name](*arguments, **named)

        return call

    for name in BY_DIRECTORY:
        setattr(os, name, guarded(name))
    for name in ("scandir", "listdir"):

        def by_path(path: Any = ".", _name: str = name) -> Any:
            if isinstance(path, int):
                raise TypeError(f"{_name}: path should be string, bytes, os.PathLike or None, not int")
            return real[_name](path)

        setattr(os, name, by_path)
    for name in FUNCTIONS:
        if hasattr(os, name):
            delattr(os, name)
    os.O_BINARY = 0  # type: ignore[attr-defined]
    sys.platform = "win32"
    for name in MODULES:
        sys.modules.pop(name, None)
    importing = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return importing(name, *arguments, **named)

    builtins.__import__ = without
    msvcrt = types.ModuleType("msvcrt")
    msvcrt.get_osfhandle = lambda fd: fd  # type: ignore[attr-defined]
    sys.modules["msvcrt"] = msvcrt

    def lock_file_ex(handle: ctypes.c_void_p, flags: int, *rest: object) -> int:
        try:
            flock(handle.value or 0, (2 if flags & 2 else 1) | (4 if flags & 1 else 0))
        except OSError:
            return 0
        return 1

    changetime = types.ModuleType("vfs.scan.changetime")
    changetime.lstat, changetime.fstat = lstat, os.fstat  # type: ignore[attr-defined]  # here both tell it
    sys.modules["vfs.scan.changetime"] = changetime
    kernel32 = types.SimpleNamespace(LockFileEx=lock_file_ex)
    ctypes.windll = types.SimpleNamespace(kernel32=kernel32)  # type: ignore[attr-defined]
    assert stat.S_ISDIR(lstat("/").st_mode)


def _sharing_violation(path: Any) -> PermissionError:
    error = PermissionError(13, "The process cannot access the file because it is being used by another process", path)
    error.winerror = 32  # type: ignore[attr-defined]
    return error
