"""Choosing and starting the channel that serves a core.

``auto`` is the direct channel on Linux and pyfuse3 elsewhere.
"""

from __future__ import annotations

import sys
from typing import Literal

from vfs.channel import Channel
from vfs.live.core import Core
from vfs.workspace import RefusedError


def start_channel(wanted: Literal["auto", "direct", "pyfuse3"], core: Core, point: bytes, notes: list[str]) -> Channel:
    """A channel that serves ``core`` at ``point``. Raises MountError, or RefusedError if it cannot be had here."""
    name = wanted
    if name == "auto":
        name = "direct" if sys.platform == "linux" else "pyfuse3"
    channel: Channel
    if name == "direct":
        from vfs.channels.direct import DirectChannel

        direct = DirectChannel(core, point)
        channel = direct
    else:
        try:
            from vfs.channels.pyfuse3 import Pyfuse3Channel
        except ImportError as error:
            raise RefusedError(
                "pyfuse3 is not installed", hint="pip install 'plyfs[pyfuse3]', or use --channel direct on Linux"
            ) from error
        channel = Pyfuse3Channel(core, point)
    channel.start()
    return channel
