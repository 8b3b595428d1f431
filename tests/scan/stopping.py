"""A process that dies after any of its effects, on the store or on the workspace: one sequence of both.

The fault model is that of ``tests.store.faulty_disk``; the scanner's own system calls count as effects of that disk.
What makes checkpoints durable behind the callers' backs is left to the next start, as if it had not come to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from tests.store.faulty_disk import FaultyDisk
from vfs.scan.platform import Posix
from vfs.scan.sealing import ScanSealing

EFFECTS = (
    "mkdir", "symlink", "mknod", "link", "rename", "unlink", "rmdir", "set_attributes", "open_up", "close_again",
    "_chown", "_chmod",
)  # fmt: skip


class FaultyPlatform(Posix):
    """The scanner's system calls, as effects of ``disk``."""

    def __init__(self, disk: FaultyDisk) -> None:
        self.disk = disk

    def create(self, at: Any, name: str) -> int:
        self.disk._before("create here")
        fd = super().create(at, name)
        try:
            self.disk._after("create here")
        except BaseException:
            os.close(fd)
            raise
        return fd


def _effect(name: str) -> Callable[..., Any]:
    def effect(self: FaultyPlatform, *arguments: Any) -> Any:
        self.disk._before(name)
        result = getattr(Posix, name)(self, *arguments)
        self.disk._after(f"{name} here")
        return result

    return effect


for _name in EFFECTS:
    setattr(FaultyPlatform, _name, _effect(_name))


@contextmanager
def nothing_sealed() -> Iterator[None]:
    """No thread works beside the caller's."""
    with mock.patch.object(ScanSealing, "submit", lambda self, id, layer: None):
        yield
