"""POSIX access control lists in the form that the kernel keeps them in extended attributes.

Pure functions over bytes; source: linux/posix_acl_xattr.h and acl(5).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

ACCESS = b"system.posix_acl_access"
DEFAULT = b"system.posix_acl_default"

_VERSION = 2
_HEADER = struct.Struct("<I")
_ENTRY = struct.Struct("<HHI")

_USER_OBJ, _USER, _GROUP_OBJ, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20


def entries(acl: bytes) -> list[tuple[int, int, int]]:
    """(tag, permissions, id) of each entry. Raises ValueError if ``acl`` is not a list of version 2."""
    if len(acl) < _HEADER.size or (len(acl) - _HEADER.size) % _ENTRY.size or _HEADER.unpack_from(acl)[0] != _VERSION:
        raise ValueError("not a POSIX ACL of version 2")
    return list(_ENTRY.iter_unpack(acl[_HEADER.size :]))


def _pack(rows: Iterator[tuple[int, int, int]] | list[tuple[int, int, int]]) -> bytes:
    return _HEADER.pack(_VERSION) + b"".join(_ENTRY.pack(*row) for row in rows)


def mode_of(acl: bytes, mode: int) -> int:
    """``mode`` with the permission bits that ``acl`` implies: the mask, where there is one, is the group's."""
    user = group = other = mask = None
    for tag, permissions, _ in entries(acl):
        if tag == _USER_OBJ:
            user = permissions
        elif tag == _GROUP_OBJ:
            group = permissions
        elif tag == _MASK:
            mask = permissions
        elif tag == _OTHER:
            other = permissions
    shown = mask if mask is not None else group
    return (mode & ~0o777) | ((user or 0) << 6) | ((shown or 0) << 3) | (other or 0)


def is_minimal(acl: bytes) -> bool:
    """True if ``acl`` says no more than permission bits can."""
    return all(tag in (_USER_OBJ, _GROUP_OBJ, _OTHER) for tag, _, _ in entries(acl))


def with_mode(acl: bytes, mode: int) -> bytes:
    """``acl`` after chmod(2) to ``mode``."""
    rows = entries(acl)
    masked = any(tag == _MASK for tag, _, _ in rows)
    changed = []
    for tag, permissions, who in rows:
        if tag == _USER_OBJ:
            permissions = mode >> 6 & 7
        elif tag == _OTHER:
            permissions = mode & 7
        elif tag == _MASK or (tag == _GROUP_OBJ and not masked):
            permissions = mode >> 3 & 7
        changed.append((tag, permissions, who))
    return _pack(changed)


def inherited(default: bytes, mode: int) -> tuple[bytes | None, int]:
    """The access list (None if the mode says it all) and mode of what is created with ``mode`` in a directory whose
    default list is ``default``; the umask does not apply then (acl(5), "object creation and default ACLs").
    """
    rows = entries(default)
    masked = any(tag == _MASK for tag, _, _ in rows)
    changed = []
    for tag, permissions, who in rows:
        if tag == _USER_OBJ:
            permissions &= mode >> 6 & 7
        elif tag == _OTHER:
            permissions &= mode & 7
        elif tag == _MASK or (tag == _GROUP_OBJ and not masked):
            permissions &= mode >> 3 & 7
        changed.append((tag, permissions, who))
    acl = _pack(changed)
    return (None if is_minimal(acl) else acl), mode_of(acl, mode)
