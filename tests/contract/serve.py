"""A process that serves a file system at a directory for the contract tests, and does what they tell it.

The server must not live in the tests' process: a page fault on a mapping of the mount holds the GIL that the server
would need to answer it. Commands are Python source, evaluated with ``fs`` and ``channel`` in sight: this is test code
talking to itself over a pipe. A workspace is in sight as ``workspace``.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import traceback
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple

from tests.fakes.memory_fs import MemoryFs
from vfs.channel import Channel


def channel_for(name: str, fs: Any, point: bytes, **options: Any) -> Channel:
    """The channel called ``name``."""
    if name == "pyfuse3":
        from vfs.channels.pyfuse3 import Pyfuse3Channel

        return Pyfuse3Channel(fs, point, **options)
    from vfs.channels.direct import DirectChannel

    return DirectChannel(fs, point, **options)


def memory(name: str, point: bytes, user: int, options: dict[str, Any]) -> dict[str, Any]:
    """The in-memory file system, served."""
    fs = MemoryFs(user or None, user or None)
    channel = channel_for(name, fs, point, **options)
    if user:  # now that everything is imported: Python's own files may be for root alone
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    channel.start()
    return {"fs": fs, "channel": channel, "stop": lambda: channel.stop(lazy=True)}


class Options(NamedTuple):
    """What ``open_workspace`` takes."""

    workspace: str
    mountpoint: str | None
    channel: Literal["auto", "direct", "pyfuse3"]
    home: str


def workspace(name: Literal["direct", "pyfuse3"], point: bytes) -> dict[str, Any]:
    """A real workspace over the directory itself, with a store of its own."""
    from vfs.mounted import open_workspace

    home = tempfile.mkdtemp(prefix="plyfs-contract-home-")
    served = open_workspace(Options(os.fsdecode(point), None, name, home), lambda *event: None)
    served.start()

    def stop() -> None:
        served.close()
        shutil.rmtree(home, ignore_errors=True)

    return {"fs": served.opened.core, "channel": served._channel, "workspace": served, "stop": stop}


def main(fd: int, kind: str, name: Any, point: str, user: int, options: dict[str, Any]) -> None:
    """Serve until told to stop or until the pipe closes."""
    logging.basicConfig(level=logging.INFO)
    pipe = Connection(fd)
    try:
        if kind == "memory":
            scope = memory(name, os.fsencode(point), user, options)
        else:
            scope = workspace(name, os.fsencode(point))
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
        scope["stop"]()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]), eval(sys.argv[6]))
