"""What differs between systems for commands and daemons, in one place, chosen once: processes, locks, users, signals.

``system`` is ``posix`` or ``windows``, which have the same functions. What differs in reading and changing a workspace
is ``vfs.scan.platform``. Knows only the standard library, because every command starts here.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from harness.systems import windows as system
else:
    from harness.systems import posix as system

__all__ = ["system"]
