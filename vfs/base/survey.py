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
from collections.abc import Callable, Collection, Iterator
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from blake3 import blake3

from store.disk import Disk
from store.format import Origin
from vfs.errors import FsError
from vfs.trees.host import Host, below
from vfs.trees.view import join

MAGIC = b"plyfs survey 1\n"

SIGNATURE = struct.Struct("<QqqQI")

Rows: TypeAlias = dict[bytes, tuple[int, bytes]]
"""Name to (type as S_IFMT's bits shifted right by 12, digest of the signature; empty for directories)."""

What: TypeAlias = Literal["created", "deleted", "changed"]


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
    explained: Collection[bytes] = (),
) -> list[Surveyed] | None:
    """Compare the base with the index at ``path`` and write the index anew; None if it was told to stop.

    Without an index, or with one that cannot be read, nothing has changed. ``explained`` are paths that plyfs itself
    changed since the index was written: at and below them nothing counts.
    """
    prepared = path + b".new"
    try:
        disk.unlink(prepared)
    except FileNotFoundError:
        pass
    fd = disk.create(prepared)
    try:
        with os.fdopen(os.dup(fd), "wb", buffering=1 << 18) as out:
            found = _Renewal(host, _read(path), out.write, should_stop, frozenset(explained)).run()
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
        explained: frozenset[bytes],
    ) -> None:
        self._host = host
        self._old = old
        self._write = write
        self._should_stop = should_stop
        self._explained = explained
        self._next = next(old, None)
        self._compares = self._next is not None
        self._found: list[Surveyed] = []

    def run(self) -> list[Surveyed] | None:
        self._write(MAGIC)
        waiting = [(b"", self._compares)]
        while waiting:
            if self._should_stop():
                return None
            path, compares = waiting.pop()
            rows = self._rows(path)
            self._frame(_encode(_Directory(path, [(name, *row) for name, row in sorted(rows.items())])))
            old = self._old_rows(path) if compares else None
            inner = sorted((name for name, row in rows.items() if row[0] == stat.S_IFDIR >> 12), reverse=True)
            if old is not None:
                self._compare(path, old, rows)
            for name in inner:
                was_there = old is not None and old.get(name, (0, b""))[0] == stat.S_IFDIR >> 12
                waiting.append((join(path, name), was_there))
        self._frame(END)
        return self._found

    def _frame(self, data: bytes) -> None:
        self._write(len(data).to_bytes(4, "little") + data)

    def _rows(self, path: bytes) -> Rows:
        rows: Rows = {}
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
            if was == now or self._is_explained(join(path, name)):
                continue
            what: What = "created" if was is None else "deleted" if now is None else "changed"
            self._found.append(Surveyed(join(path, name), what))

    def _is_explained(self, path: bytes) -> bool:
        if not self._explained:
            return False
        while path:
            if path in self._explained:
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
    """``python -m vfs.base.survey BASE_FD INDEX``: explained paths on stdin, found ones as JSON on stdout, in hex."""
    take_back_seat()
    fd, index = int(sys.argv[1]), os.fsencode(sys.argv[2])
    explained = [bytes.fromhex(line) for line in sys.stdin.read().split()]
    found = renew(Host({0: fd}), index, Disk(), explained=explained)
    json.dump([one.path.hex() for one in found or ()], sys.stdout)


if __name__ == "__main__":
    main()
