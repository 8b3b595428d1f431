"""What the direct channel and the running kernel agree upon: the answer to INIT.

Owns the choice of each protocol flag, with its reason. A function of the kernel's offer and our options; no state.
"""

from __future__ import annotations

import msgspec

from vfs.channel import Negotiated
from vfs.channels import wire

MAX_WRITE = 1 << 20
"""Bytes in one READ or WRITE: 256 pages, the most an unprivileged mount gets (fs.fuse.max_pages_limit)."""

PAGE = 4096
MAX_BACKGROUND = 64
"""Readahead and asynchronous requests in flight; the default of 12 starves parallel cold reads."""

WANTED = {
    "ASYNC_READ": "readahead of one file may have several requests in flight",
    "BIG_WRITES": "a write of up to max_write bytes is one request, not one a page",
    "MAX_PAGES": "raises requests from 32 pages to 256",
    "DONT_MASK": "the core applies the umask, or the parent's default ACL in its place",
    "DO_READDIRPLUS": "a listing brings the attributes along: one request where a lookup each would follow",
    "READDIRPLUS_AUTO": "but only at the start of a directory and while somebody does look at its entries",
    "ASYNC_DIO": "O_DIRECT requests of one call run in parallel",
    "PARALLEL_DIROPS": "lookups and listings in one directory do not wait for each other",
    "HANDLE_KILLPRIV_V2": "we drop setuid, setgid and capabilities; the kernel stops asking for them at every write",
    "POSIX_ACL": "the kernel checks access by ACLs and keeps them cached",
    "ABORT_ERROR": "an aborted connection can be told from an unmounted one",
    "CACHE_SYMLINKS": "readlink of a known symlink does not reach us",
    "EXPLICIT_INVAL_DATA": "pages stay cached until we say so, whatever attributes come back",
    "NO_OPEN_SUPPORT": "open, answered ENOSYS once, is never asked again",
    "NO_OPENDIR_SUPPORT": "the same for opendir, and listings stay cached",
    "SETXATTR_EXT": "setting an ACL tells whether setgid must go",
    "INIT_EXT": "flags beyond 32 bits",
    "HAS_EXPIRE_ONLY": "an entry can be made to be looked up again without losing what is mounted or stands below it",
}

REFUSED = {
    "POSIX_LOCKS": "locks are kept by the kernel, which sees every process of this mount",
    "FLOCK_LOCKS": "likewise",
    "ATOMIC_O_TRUNC": "O_TRUNC would come with OPEN, which zero-message open removes; the kernel sends SETATTR instead",
    "HANDLE_KILLPRIV": "its first version does not say whether the writer is privileged; there the kernel does it",
    "AUTO_INVAL_DATA": "nobody else writes; a changed mtime must not throw cached pages away",
    "HAS_IOCTL_DIR": "without it the kernel answers ENOTTY for directories by itself",
    "EXPORT_SUPPORT": "would need lookups of . and ..",
    "SPLICE_READ": "a pipe between costs Python two calls more than it saves",
    "OVER_IO_URING": "needs a module switch that users rarely have",
    "PASSTHROUGH": "needs CAP_SYS_ADMIN",
}


class Options(msgspec.Struct, frozen=True):
    """What may be chosen. ``writeback`` turns the kernel's writeback cache on (for measuring: it loses the promise
    that a checkpoint holds every byte whose write(2) returned).
    """

    writeback: bool = False
    readdirplus: bool = True


class Agreement(msgspec.Struct, frozen=True):
    """The reply to send, header included, and what it means. ``negotiated`` is None if the kernel must ask again."""

    reply: bytes
    negotiated: Negotiated | None


class TooOldError(Exception):
    """The kernel speaks a protocol that this channel does not."""


def answer(unique: int, body: bytes | memoryview, options: Options) -> Agreement:
    """Answer an INIT request whose body (after the header) is ``body``. Raises TooOldError."""
    if len(body) >= wire.INIT_IN.size:
        major, minor, readahead, low, high = wire.INIT_IN.unpack_from(body)
    elif len(body) >= wire.INIT_IN_SHORT.size:
        major, minor, readahead, low = wire.INIT_IN_SHORT.unpack_from(body)
        high = 0
    else:
        raise TooOldError(f"INIT of {len(body)} bytes")
    if major > wire.MAJOR:
        return Agreement(_reply(unique, 0, 0, 0), None)
    if major < wire.MAJOR or minor < wire.OLDEST_MINOR:
        raise TooOldError(f"the kernel speaks FUSE {major}.{minor}; 7.{wire.OLDEST_MINOR} (Linux 5.4) is needed")
    offered = low | (high << 32 if low & wire.INIT_FLAGS["INIT_EXT"] else 0)
    wanted = [name for name in WANTED if offered & wire.INIT_FLAGS[name]]
    if options.writeback and offered & wire.INIT_FLAGS["WRITEBACK_CACHE"]:
        wanted.append("WRITEBACK_CACHE")
    if not options.readdirplus:
        wanted = [name for name in wanted if "READDIRPLUS" not in name]
    flags = sum(wire.INIT_FLAGS[name] for name in wanted)
    negotiated = Negotiated(
        protocol=(wire.MAJOR, min(minor, wire.MINOR)),
        flags=tuple(wanted),
        max_write=MAX_WRITE if "MAX_PAGES" in wanted else 32 * PAGE,
        zero_message_open="NO_OPEN_SUPPORT" in wanted and "NO_OPENDIR_SUPPORT" in wanted,
        epoch=minor >= wire.EPOCH_MINOR,
        expire_only="HAS_EXPIRE_ONLY" in wanted,
        writeback="WRITEBACK_CACHE" in wanted,
    )
    return Agreement(_reply(unique, readahead, flags, negotiated.max_write), negotiated)


def _reply(unique: int, readahead: int, flags: int, max_write: int) -> bytes:
    return wire.INIT_REPLY.pack(
        wire.INIT_REPLY.size,
        0,
        unique,
        wire.MAJOR,
        wire.MINOR,
        max(readahead, MAX_WRITE),
        flags & 0xFFFFFFFF,
        MAX_BACKGROUND,
        MAX_BACKGROUND * 3 // 4,
        max_write,
        1,  # time_gran: nanoseconds
        max_write // PAGE,
        0,
        flags >> 32,
    )
