"""An index of the whole base: what was there, to tell at the next mount what somebody changed meanwhile.

Owns the index file and the walk that compares it with the base and writes it anew, in one pass that needs no more
memory than one directory, whatever the size of the base. It only serves to tell people; nothing relies on it
(``outside`` keeps older checkpoints what they were).

Concurrency: for a thread of its own, which may be asked to stop; the base must not change meanwhile, as it does not
while it is mounted.
"""

from __future__ import annotations

import json
import os
import stat
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from blake3 import blake3

from store.disk import Disk
from store.entries import below
from store.format import Origin
from vfs.apply.record import Explained
from vfs.errors import FsError
from vfs.trees.host import Host
from vfs.trees.view import join

MAGIC = b"plyfs survey 1\n"

SIGNATURE = struct.Struct("<QqqQI")

Rows: TypeAlias = dict[bytes, tuple[int, bytes]]
"""Name to (type as S_IFMT's bits shifted right by 12, digest of the signature; empty for directories)."""

What: TypeAlias = Literal["created", "deleted", "changed"]


Before: TypeAlias = Literal["indexed", "absent", "unknown"]

NOTHING = Explained()


class Surveyed(NamedTuple):
    """A path that is not as it was. A directory that came or went stands for all in it."""

    path: bytes
    what: What


class _Directory(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """One directory of the index, and its entries sorted by name."""

    path: bytes
    rows: list[tuple[bytes, int, bytes]]


_decoder = msgspec.msgpack.Decoder(_Directory)
_encode = msgspec.msgpack.Encoder().encode
END = b"end"


def take_back_seat() -> None:
    """Let everything else on the machine go before the calling thread."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
    except (OSError, AttributeError):
        pass


def renew(
    host: Host,
    path: bytes,
    disk: Disk,
    should_stop: Callable[[], bool] = lambda: False,
    explained: Explained = NOTHING,
) -> list[Surveyed] | None:
    """Compare the base with the index at ``path`` and write the index anew; None if it was told to stop.

    Without an index, or with one that cannot be read, nothing has changed. What is ``explained`` plyfs itself did since
    the index was written.
    """
    prepared = path + b".new"
    try:
        disk.unlink(prepared)
    except FileNotFoundError:
        pass
    fd = disk.create(prepared)
    try:
        with os.fdopen(os.dup(fd), "wb", buffering=1 << 18) as out:
            found = _Renewal(host, _read(path), out.write, should_stop, explained).run()
    finally:
        os.close(fd)
    if found is None:
        disk.unlink(prepared)
        return None
    disk.rename(prepared, path)
    return found


class _Renewal:
    """One pass over the base, beside the old index, which lists directories in the very order of the walk."""

    def __init__(
        self,
        host: Host,
        old: Iterator[_Directory],
        write: Callable[[bytes], object],
        should_stop: Callable[[], bool],
        explained: Explained,
    ) -> None:
        self._host = host
        self._old = old
        self._write = write
        self._should_stop = should_stop
        self._ours = frozenset(explained.paths)
        self._moved = frozenset(explained.moved)
        self._gone = frozenset(explained.gone)
        self._inodes = frozenset(explained.inodes)
        self._shared: set[bytes] = set()
        """Names in the directory that was listed last of inodes that plyfs changed."""
        self._next = next(old, None)
        self._compares = self._next is not None
        self._found: list[Surveyed] = []

    def run(self) -> list[Surveyed] | None:
        self._write(MAGIC)
        waiting: list[tuple[bytes, Before]] = [(b"", "indexed" if self._compares else "unknown")]
        while waiting:
            if self._should_stop():
                return None
            path, before = waiting.pop()
            rows = self._rows(path)
            self._frame(_encode(_Directory(path, [(name, *row) for name, row in sorted(rows.items())])))
            old = self._old_rows(path) if before == "indexed" else {} if before == "absent" else None
            inner = sorted((name for name, row in rows.items() if row[0] == stat.S_IFDIR >> 12), reverse=True)
            if old is not None:
                self._compare(path, old, rows)
            waiting += [(join(path, name), self._before(join(path, name), name, old)) for name in inner]
        self._frame(END)
        return self._found

    def _before(self, path: bytes, name: bytes, old: Rows | None) -> Before:
        """What is known of the directory ``path`` from before. One that plyfs made is looked through for what it did
        not make; one that somebody else made stands for all in it, and so does one that was moved.
        """
        if old is None:
            return "unknown"
        if old.get(name, (0, b""))[0] == stat.S_IFDIR >> 12:
            return "indexed"
        return "absent" if path in self._ours and not _is_below(path, self._moved) else "unknown"

    def _frame(self, data: bytes) -> None:
        self._write(len(data).to_bytes(4, "little") + data)

    def _rows(self, path: bytes) -> Rows:
        rows: Rows = {}
        self._shared = set()
        origin = Origin(0, path)
        try:
            listed = self._host.list(origin)
        except FsError:
            return rows
        for row in listed:
            if row.type == stat.S_IFDIR >> 12:
                rows[row.name] = (row.type, b"")
                continue
            try:
                status = self._host.stat(below(origin, row.name))
            except FsError:
                continue
            if status.st_ino in self._inodes:
                self._shared.add(row.name)
            facts = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_mode)
            rows[row.name] = (row.type, blake3(SIGNATURE.pack(*facts)).digest(length=8))
        return rows

    def _old_rows(self, path: bytes) -> Rows | None:
        """What the index says of the directory ``path``; entries of directories that are gone are passed over."""
        place = path.split(b"/") if path else []
        while self._next is not None:
            there = self._next.path.split(b"/") if self._next.path else []
            if there > place:
                return None
            found, self._next = self._next, next(self._old, None)
            if there == place:
                return {name: (kind, digest) for name, kind, digest in found.rows}
        return None

    def _compare(self, path: bytes, old: Rows, new: Rows) -> None:
        for name in sorted(old.keys() | new.keys()):
            was, now = old.get(name), new.get(name)
            what: What = "created" if was is None else "deleted" if now is None else "changed"
            if was == now or self._is_explained(join(path, name), name, what):
                continue
            self._found.append(Surveyed(join(path, name), what))

    def _is_explained(self, path: bytes, name: bytes, what: What) -> bool:
        if path in self._ours or _is_below(path, self._moved):
            return True
        return _is_below(path, self._gone) if what == "deleted" else what == "changed" and name in self._shared


def _is_below(path: bytes, tops: frozenset[bytes]) -> bool:
    """True if ``path`` is one of ``tops``, or below one."""
    while tops and path:
        if path in tops:
            return True
        path = path.rpartition(b"/")[0]
    return False


def _read(path: bytes) -> Iterator[_Directory]:
    """The directories of an index; none at all if it is not there or not whole."""
    try:
        with open(path, "rb") as file:
            if not _is_whole(file.fileno()):
                return
            file.seek(len(MAGIC))
            while True:
                data = file.read(int.from_bytes(file.read(4), "little"))
                if data == END:
                    return
                yield _decoder.decode(data)
    except (FileNotFoundError, msgspec.DecodeError):
        return


def _is_whole(fd: int) -> bool:
    size = os.fstat(fd).st_size
    last = len(END).to_bytes(4, "little") + END
    return os.pread(fd, len(MAGIC), 0) == MAGIC and os.pread(fd, len(last), size - len(last)) == last


def main() -> None:
    """``python -m vfs.base.survey BASE_FD INDEX``: explanations on stdin, found paths as JSON on stdout, in hex."""
    take_back_seat()
    fd, index = int(sys.argv[1]), os.fsencode(sys.argv[2])
    explained = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Explained)
    found = renew(Host({0: fd}), index, Disk(), explained=explained)
    json.dump([one.path.hex() for one in found or ()], sys.stdout)


if __name__ == "__main__":
    main()
