"""The one error of the file system core: an errno. Only a channel turns it into a reply."""

from __future__ import annotations

import os


class FsError(Exception):
    """A file system operation failed with ``errno``. Made for every name that is looked up and not there, so cheap."""

    def __init__(self, errno: int, message: str = "") -> None:
        self.errno = errno
        self.message = message

    def __str__(self) -> str:
        return self.message or os.strerror(self.errno)
