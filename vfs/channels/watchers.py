"""Waking inotify watchers after a restore, by playing its changes through the mount.

Owns the list of what is watched and the system calls that make the kernel raise events; ``disguise`` sees to it that
they change nothing. Watchers get what a checkout would have given them: DELETE for what is gone, CREATE for what is
new, both for what was replaced, MODIFY and CLOSE_WRITE for new content, ATTRIB for attributes.

Only directories and files that somebody watches are touched: which they are, every process's fdinfo tells (inotify is
not recursive, so a change in an unwatched directory interests nobody). Processes that we may not look into cannot
look into our mount either, unless it is shared with others by a mount of root's, who may look into all.

Concurrency: one ``wake`` at a time, in the caller's thread, which must answer no requests and hold no lock.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Callable, Iterable

from store.refs import Ino
from vfs.channel import Invalidations, Touched
from vfs.channels.disguise import Appear, Disguise, Knock, Part, Touch, Vanish

_MARK = re.compile(rb"^(?:inotify wd:\S+|fanotify)(?: ino:(\w+))? sdev:(\w+)", re.MULTILINE)


class Watched:
    """Inode numbers with a watch on them; ``everything`` if a whole file system is watched."""

    def __init__(self, inodes: frozenset[int] = frozenset(), everything: bool = False) -> None:
        self.inodes = inodes
        self.everything = everything

    def __contains__(self, ino: int) -> bool:
        return self.everything or ino in self.inodes

    def __bool__(self) -> bool:
        return self.everything or bool(self.inodes)


def parse_marks(text: bytes, device: int) -> Watched:
    """The watches on file system ``device`` (st_dev) in a fdinfo file."""
    kernel_device = (os.major(device) << 20) | os.minor(device)
    inodes = set()
    for ino, sdev in _MARK.findall(text):
        if int(sdev, 16) == kernel_device:
            if not ino:
                return Watched(everything=True)
            inodes.add(int(ino, 16))
    return Watched(frozenset(inodes))


def watched(device: int) -> Watched:
    """Everything on file system ``device`` that some process watches, as far as we may look."""
    inodes: set[int] = set()
    for pid in os.listdir("/proc"):
        if not pid.isdigit():
            continue
        folder = f"/proc/{pid}/fd"
        try:
            descriptors = os.listdir(folder)
        except OSError:  # ended, or not ours to see
            continue
        for descriptor in descriptors:
            try:
                target = os.readlink(f"{folder}/{descriptor}")
                if target not in ("anon_inode:inotify", "anon_inode:[fanotify]"):
                    continue
                with open(f"/proc/{pid}/fdinfo/{descriptor}", "rb") as file:
                    marks = parse_marks(file.read(), device)
            except OSError:
                continue
            if marks.everything:
                return marks
            inodes |= marks.inodes
    return Watched(frozenset(inodes))


class Watchers:
    """Those who watch the mount at ``point``. ``drop`` makes the kernel forget (the channel's ``invalidate``)."""

    def __init__(self, point: bytes, disguise: Disguise, drop: Callable[[Invalidations], None]) -> None:
        self._point = point
        self._disguise = disguise
        self._drop = drop
        self._lock = threading.Lock()

    def wake(self, touched: Iterable[Touched]) -> None:
        """Raise the events of ``touched``. What cannot be raised (no right to, gone again meanwhile) is left out."""
        with self._lock:
            root = os.open(self._point, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                device = os.fstat(root).st_dev
                marks = watched(device)
                if marks:
                    self._disguise.thread = threading.get_native_id()
                    if self._is_ours(root):
                        self._play(_Steps(root, device), marks, list(touched))
            finally:
                self._disguise.thread = -1
                os.close(root)

    def _is_ours(self, root: int) -> bool:
        """True if requests at ``root`` reach our server and it knows this thread. Otherwise (another mount lies on
        top, thread ids differ between namespaces) what we play would be real, on somebody's files.
        """
        name = b".plyfs-knock-" + os.urandom(8).hex().encode()
        self._disguise.part = Knock(name)
        try:
            os.stat(name, dir_fd=root)
        except OSError:
            return self._disguise.heard == name
        finally:
            self._disguise.part = None
        return False

    def _play(self, steps: _Steps, marks: Watched, touched: list[Touched]) -> None:
        try:
            for item in sorted(touched, key=lambda t: t.path, reverse=True):  # what is below goes first
                if item.before is not None and (item.after is None or item.before[0] != item.after[0]):
                    self._each(steps, marks, item, self._vanish)
            for item in sorted(touched, key=lambda t: t.path):
                if item.after is not None:
                    self._each(steps, marks, item, self._arrive)
        finally:
            steps.close()

    def _each(
        self, steps: _Steps, marks: Watched, item: Touched, play: Callable[[int, Ino, bytes, Touched], None]
    ) -> None:
        try:
            found = steps.parent(item.path)
            if found is None:
                return
            fd, parent, name = found
            inos = [inode[0] for inode in (item.before, item.after) if inode is not None]
            if parent in marks or any(ino in marks for ino in inos):
                play(fd, parent, name, item)
        except OSError:  # told as much as can be told; the next one may fare better
            return

    def _vanish(self, fd: int, parent: Ino, name: bytes, item: Touched) -> None:
        assert item.before is not None
        ino, mode = item.before
        self._drop(Invalidations(entries=((parent, name),)))  # so that the name is looked up, by us
        try:
            if stat.S_ISDIR(mode):
                self._as(Vanish(parent, name, ino, mode), lambda: os.rmdir(name, dir_fd=fd))
            else:
                self._as(Vanish(parent, name, ino, mode), lambda: os.unlink(name, dir_fd=fd))
        finally:
            # if somebody looked the new inode up just then, the kernel has taken a link from it
            self._drop(
                Invalidations(
                    entries=((parent, name),), attributes=(ino, item.after[0]) if item.after is not None else (ino,)
                )
            )

    def _arrive(self, fd: int, parent: Ino, name: bytes, item: Touched) -> None:
        assert item.after is not None
        ino, mode = item.after
        if item.before is None or item.before[0] != ino:
            part = Appear(parent, name)
            if stat.S_ISDIR(mode):
                self._as(part, lambda: os.mkdir(name, dir_fd=fd))
            elif stat.S_ISLNK(mode):
                self._as(part, lambda: os.symlink(b"-", name, dir_fd=fd))
            else:
                self._as(part, lambda: os.mknod(name, stat.S_IFMT(mode) | 0o600, 0, dir_fd=fd))
            if stat.S_ISREG(mode):
                self._rewrite(fd, name, ino)
        elif not stat.S_ISLNK(mode):
            self._touch(fd, name, ino)

    def _touch(self, fd: int, name: bytes, ino: Ino) -> None:
        """ATTRIB, if ``name`` still is ``ino`` and nothing is mounted there."""
        file = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        try:
            if _is_inode(file, fd, ino):
                self._as(Touch(ino), lambda: os.utime(f"/proc/self/fd/{file}"))
        finally:
            os.close(file)

    def _rewrite(self, fd: int, name: bytes, ino: Ino) -> None:
        """MODIFY, ATTRIB and CLOSE_WRITE without writing: cut the file to the size that it has."""
        file = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
        try:
            if _is_inode(file, fd, ino):
                size = os.fstat(file).st_size
                self._as(Touch(ino), lambda: os.ftruncate(file, size))
                self._as(Touch(ino), lambda: os.utime(file))
        finally:
            os.close(file)

    def _as(self, part: Part, act: Callable[[], None]) -> None:
        self._disguise.part = part
        try:
            act()
        finally:
            self._disguise.part = None


def _is_inode(file: int, parent: int, ino: Ino) -> bool:
    """True if ``file`` is inode ``ino`` on the file system of ``parent``."""
    status = os.fstat(file)
    return status.st_ino == ino and status.st_dev == os.fstat(parent).st_dev


class _Steps:
    """Directories of the mount, reached component by component, never through a symlink or into another mount."""

    def __init__(self, root: int, device: int) -> None:
        self._root = root
        self._device = device
        self._path: list[bytes] = []
        self._fds: list[int] = []
        self._ino = Ino(os.fstat(root).st_ino)

    def parent(self, path: bytes) -> tuple[int, Ino, bytes] | None:
        """(descriptor, inode, last name) of the directory that ``path`` lies in; None if there is none any more."""
        *names, last = path.split(b"/")
        keep = 0
        while keep < min(len(names), len(self._path)) and names[keep] == self._path[keep]:
            keep += 1
        self._cut(keep)
        for name in names[keep:]:
            above = self._fds[-1] if self._fds else self._root
            try:
                fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            except OSError:
                return None
            self._fds.append(fd)
            self._path.append(name)
        fd = self._fds[-1] if self._fds else self._root
        status = os.fstat(fd)
        return None if status.st_dev != self._device else (fd, Ino(status.st_ino), last)

    def _cut(self, keep: int) -> None:
        for fd in self._fds[keep:]:
            os.close(fd)
        del self._fds[keep:], self._path[keep:]

    def close(self) -> None:
        self._cut(0)
