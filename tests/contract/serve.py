"""A process that serves a file system at a directory for the contract tests, and does what they tell it.

The server must not live in the tests' process: a page fault on a mapping of the mount holds the GIL that the server
would need to answer it. Commands are Python source, evaluated with ``fs`` and ``channel`` in sight: this is test code
talking to itself over a pipe.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

from tests.fakes.memory_fs import MemoryFs
from vfs.channel import Channel


def channel_for(name: str, fs: Any, point: bytes, **options: Any) -> Channel:
    """The channel called ``name``."""
    if name == "pyfuse3":
        from vfs.pyfuse3_channel import Pyfuse3Channel

        return Pyfuse3Channel(fs, point, **options)
    from vfs.direct import DirectChannel

    return DirectChannel(fs, point, **options)


def main(fd: int, name: str, point: str, user: int, options: dict[str, Any]) -> None:
    """Serve until told to stop or until the pipe closes."""
    logging.basicConfig(level=logging.INFO)
    pipe = Connection(fd)
    fs = MemoryFs(user or None, user or None)
    channel = channel_for(name, fs, os.fsencode(point), **options)
    if user:  # now that everything is imported: Python's own files may be for root alone
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    scope: dict[str, Any] = {"fs": fs, "channel": channel}
    try:
        channel.start()
        pipe.send((True, None))
    except BaseException as error:
        pipe.send((False, f"{error} {getattr(error, 'hint', '')}"))
        return
    try:
        while True:
            source = pipe.recv()
            try:
                try:
                    result = eval(source, scope)
                except SyntaxError:
                    result = exec(source, scope)
                pipe.send((True, result))
            except Exception:
                pipe.send((False, traceback.format_exc()))
    except EOFError:
        channel.stop(lazy=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), eval(sys.argv[5]))
