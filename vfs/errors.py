"""The one error of the file system core: an errno. Only a channel turns it into a reply."""

from __future__ import annotations

import os


class FsError(Exception):
    """A file system operation failed with ``errno``."""

    def __init__(self, errno: int, message: str = "") -> None:
        super().__init__(message or os.strerror(errno))
        self.errno = errno
