"""How this process' Python is set up for serving a workspace."""

from __future__ import annotations

import gc
import sys
import threading

GC_THRESHOLD = (50_000, 20, 100)
"""Live inodes are many, live long and are let go by hand: collecting cycles as often as Python does costs a fifth."""

RECURSION_LIMIT, STACK_BYTES = 20_000, 64 << 20
"""Trees are walked by recursion, so this bounds how deep directories may lie in each other (about 5,000)."""

SWITCH_SECONDS = 0.0005
"""How long the sealer may keep the interpreter while a request waits (Python's default is 5 ms)."""


def prepare() -> None:
    """Set it up; threads that are started after this have the larger stacks."""
    gc.set_threshold(*GC_THRESHOLD)
    sys.setswitchinterval(SWITCH_SECONDS)
    sys.setrecursionlimit(RECURSION_LIMIT)
    threading.stack_size(STACK_BYTES)
