"""A disk that stops: what the store meant to do next never happens, as if the process had been killed.

The fault model:
- after effect number ``stop_after`` the process is dead: that effect happened, no later one does (``Crash``);
- with ``torn``, if that effect is an append, only half of its bytes arrive;
- ``power_loss`` then takes away what no sync had made durable: the bytes of files, not their names, which is the worst
  that a file system does to data that was renamed into place without being synced;
- with ``fail_syncs`` so many syncs fail with EIO, and the process goes on; what they were for is not durable, and a
  later sync does not make it so, because the kernel has forgotten it;
- with ``full_at`` an effect fails with ENOSPC instead, half done if it is an append, and the process goes on.
"""

from __future__ import annotations

import errno
import os

from store.disk import Disk, no_space


class Crash(BaseException):
    """The process was killed here."""


class FaultyDisk(Disk):
    def __init__(self, stop_after: int | None = None, torn: bool = False, full_at: int | None = None) -> None:
        self.effects: list[str] = []
        self._stop_after = stop_after
        self._torn = torn
        self._full_at = full_at
        self._half_done = False
        self._dead = False
        self.fail_syncs = 0
        self._forgotten: set[int] = set()
        self._written: dict[int, int] = {}
        """Inode to the length that is durable."""

    def _before(self, name: str) -> None:
        if self._dead:
            raise Crash
        if self._full_at == len(self.effects):
            self._full_at = None
            self.effects.append(f"full {name}")
            raise no_space(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), name)

    def _after(self, name: str) -> None:
        self.effects.append(name)
        if self._stop_after == len(self.effects):
            self._dead = True
            raise Crash

    def append(self, fd, data):
        if self._dead:
            raise Crash
        self._written.setdefault(os.fstat(fd).st_ino, 0)
        if self._full_at == len(self.effects):
            self.effects.append("full append")
            half = len(data) // 2
            if self._half_done or not half:
                self._full_at = None
                self._half_done = False
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._half_done = True
            self._full_at = len(self.effects)  # the rest will not fit either
            return os.write(fd, memoryview(data)[:half])
        dies = self._torn and self._stop_after == len(self.effects) + 1
        taken = os.write(fd, memoryview(data)[: len(data) // 2] if dies else data)
        self._after("append")
        return taken

    def create(self, path, mode=0o600):
        self._before("create")
        fd = super().create(path, mode)
        self._written[os.fstat(fd).st_ino] = 0
        self._forgotten.discard(os.fstat(fd).st_ino)
        try:
            self._after("create")
        except Crash:
            os.close(fd)
            raise
        return fd

    def sync_file(self, fd):
        self._before("sync_file")
        ino = os.fstat(fd).st_ino
        self._fail_sync({ino})
        if ino not in self._forgotten:
            self._written[ino] = os.fstat(fd).st_size
        self._after("sync_file")

    def sync_dir(self, path):
        self._before("sync_dir")
        self._after("sync_dir")

    def syncfs(self, fd):
        self._before("syncfs")
        self._fail_sync(set(self._written))
        self._written = {ino: size for ino, size in self._written.items() if ino in self._forgotten}
        self._after("syncfs")

    def _fail_sync(self, inos):
        if self.fail_syncs:
            self.fail_syncs -= 1
            self._forgotten |= inos
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def truncate(self, fd, length):
        self._before("truncate")
        super().truncate(fd, length)
        ino = os.fstat(fd).st_ino
        self._written[ino] = min(self._written.get(ino, length), length)
        self._after("truncate")

    def power_loss(self, root: bytes, leaving: bytes = b"") -> None:
        """Cut every file below ``root`` to what was durable of it, but for those in the directory ``leaving``."""
        for directory, _, names in os.walk(root):
            if directory == leaving:
                continue
            for name in names:
                path = os.path.join(directory, name)
                durable = self._written.get(os.stat(path).st_ino)
                if durable is not None:
                    os.truncate(path, durable)


def _plain(name):
    def effect(self, *args, **kwargs):
        self._before(name)
        result = getattr(Disk, name)(self, *args, **kwargs)
        self._after(name)
        return result

    return effect


for _name in ("rename", "link", "unlink", "mkdir", "rmdir", "chmod", "touch"):
    setattr(FaultyDisk, _name, _plain(_name))
