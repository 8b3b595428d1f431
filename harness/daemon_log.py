"""Where a daemon's words go: its log file, which rotates, or the terminal in the foreground.

Owns the handlers of the ``plyfs`` logger and the daemon's stderr, so that a traceback of a thread or a crash of the
interpreter lands in the log too.
"""

from __future__ import annotations

import faulthandler
import logging
import logging.handlers
import os
import sys
from typing import TYPE_CHECKING

from harness.registry import create_private
from harness.systems import system

if TYPE_CHECKING:
    from io import TextIOWrapper

    from harness.config import LogConfig

FORMAT = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"


class LogFile(logging.handlers.RotatingFileHandler):
    """A rotating log that takes descriptors 1 and 2 along when it rotates."""

    def _open(self) -> TextIOWrapper:
        stream = super()._open()
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
        return stream

    def rotate(self, source: str, dest: str) -> None:
        """Windows renames no file that is open: let go of it first."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os.close(nowhere)
        super().rotate(source, dest)


def log_to_file(path: str, config: LogConfig) -> None:
    """Everything to ``path``, in a private directory, from now on."""
    create_private(os.path.dirname(path))
    handler = LogFile(
        path, maxBytes=config.max_bytes, backupCount=config.files, encoding="utf-8", errors="backslashreplace"
    )
    _install(handler, config)


def log_to_terminal(config: LogConfig) -> None:
    """Everything to stderr."""
    _install(logging.StreamHandler(sys.stderr), config)


def _install(handler: logging.Handler, config: LogConfig) -> None:
    handler.setFormatter(logging.Formatter(FORMAT))
    logger = logging.getLogger("plyfs")
    logger.handlers[:] = [handler]
    logger.setLevel(config.level.upper())
    logger.propagate = False
    logging.raiseExceptions = False
    faulthandler.enable(file=2)
    system.show_stacks_on_signal()
