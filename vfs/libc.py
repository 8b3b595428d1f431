"""The C library, for system calls that Python has no function for; with ``ctypes.get_errno``.

Owns only that it is loaded once, and that modules which need it can be imported where there is none (Windows): then it
has no functions at all.
"""

from __future__ import annotations

import ctypes
import os
import types

libc = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else types.SimpleNamespace()
