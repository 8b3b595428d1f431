"""Reading the extended attributes of real files, for mounted and for scanned workspaces.

Names are bytes. Only systems whose Python has ``os.listxattr`` (Linux) may call ``read``.
"""

from __future__ import annotations

import errno
import os

LABELS = (b"security.selinux", b"security.ima", b"security.evm", b"security.SMACK64")
"""What the machine's policy gives to a file; it is not part of what a user wrote."""

UNREADABLE = (errno.ENODATA, errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS)
"""How one attribute that is listed is refused: it has gone, or it is not for us."""


def read(where: bytes | int) -> tuple[tuple[bytes, bytes], ...]:
    """Name and value of each that can be read, sorted, of a path (symlinks are not followed) or of an open file.

    Raises OSError.
    """
    follow = isinstance(where, int)
    try:
        names = os.listxattr(where, follow_symlinks=follow)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENOSYS):
            return ()
        raise
    found = []
    for name in sorted(map(os.fsencode, names)):
        if name in LABELS:
            continue
        try:
            found.append((name, os.getxattr(where, name, follow_symlinks=follow)))
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
    return tuple(found)
