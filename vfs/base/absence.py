"""What happened to the base while it was not mounted: found when it is mounted again, and told.

Owns the order and the files: ``known``, what applies wrote (``outside``), compared before anything is served; and
``survey``, an index of the whole base, compared by a process in the background once it is, since that takes as long as
the base is large. Does not own how either is compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from store.errors import DamagedError
from store.generations import Generation
from store.head import Head
from store.home import Home, WorkspaceStore
from store.whole import read_whole, write_whole
from vfs.apply.record import Explained
from vfs.apply.whole import Applied
from vfs.base import known, outside
from vfs.opening import base_root, store_layer
from vfs.trees.contents import Contents
from vfs.trees.host import Host
from vfs.trees.view import View

SURVEY_DELAY_SECONDS = 3.0
"""How long after the start the survey begins: what starts with a mount has the disk first."""


class Outside(NamedTuple):
    """The head after changes outside were recorded, and what to tell of them."""

    head: Head
    note: str


def _file(store: WorkspaceStore, name: bytes) -> bytes:
    return os.path.join(store.path, name)


def applied(home: Home, store: WorkspaceStore, host: Host, done: Applied) -> None:
    """Remember what an apply wrote, when nothing of its own is left in the base and before its plan is forgotten: a
    crash in between would else leave what an earlier one wrote. Can be done twice. Raises NoSpaceError.
    """
    path = _file(store, b"known")
    before = known.load(path)
    if before.generation <= done.generation:
        inverse = View.load(home.pages, host, home.objects, done.inverse)
        carried = before.known if before.generation == done.generation else ()
        contents = Contents(home.objects, host)
        found = known.remember(host, contents, carried, inverse, done.written, done.stamps)
        known.save(path, done.generation + 1, found, store.disk)
    explained = _explained(store) | done.explained
    write_whole(store.disk, _file(store, b"explained"), msgspec.msgpack.encode(explained), sync=False)


def _explained(store: WorkspaceStore) -> Explained:
    """What plyfs did since the index was written. If that is not known, nothing can be told by the index."""
    try:
        return msgspec.msgpack.decode(read_whole(_file(store, b"explained")), type=Explained)
    except FileNotFoundError:
        return Explained()
    except (DamagedError, msgspec.DecodeError):
        for name in (b"survey", b"explained"):
            try:
                store.disk.unlink(_file(store, name))
            except FileNotFoundError:
                continue
        return Explained()


def look(home: Home, store: WorkspaceStore, host: Host, head: Head, now_ns: int) -> Outside | None:
    """Find what somebody changed of what plyfs wrote; None for nothing. The base becomes a generation of its own, and
    a checkpoint of kind ``outside`` the head. Only for a workspace without kept changes. Raises DamagedError.
    """
    path = _file(store, b"known")
    contents = Contents(home.objects, host)
    saved = known.load(path)
    generation = store.generations.current
    since = store.generations.since(saved.generation)
    if [end.cause for end in since] not in ([], ["outside"]):
        return None  # what was written since was never remembered: there was no space for it
    found = outside.look(host, contents, saved.known)
    if not found.changes:
        if not since and tuple(found.known) != saved.known:  # what was compared by its bytes need not be again
            known.save(path, generation, found.known, store.disk, sync=False)
        return None
    if since:  # a look that found this was killed before it came to the end
        return _told(home, store, host, head, sorted(change.known.path for change in found.changes), found)
    with home.objects.sealing():
        ended = outside.end_generation(found.changes, generation, host, home.pages, contents, home.objects)
        if ended is None:
            known.save(path, generation, found.known, store.disk)
            return None
        store.generations.append(Generation(generation, ended.applied, ended.inverse, now_ns, "outside"))
        return _told(home, store, host, head, ended.paths, found)


def _told(
    home: Home, store: WorkspaceStore, host: Host, head: Head, paths: list[bytes], found: outside.Found
) -> Outside:
    """The checkpoint of what was found, as the head, after the generation has ended."""
    generation = store.generations.current
    made = store.history.newest()
    if made is None or made.kind != "outside" or (made.generation, made.parent) != (generation, head.head):
        made = store.history.begin(
            head.head,
            kind="outside",
            label="changed outside plyfs",
            changed=len(paths),
            generation=generation,
            epoch=head.epoch,
            next_ino=head.next_ino,
            outside=tuple(paths),
            layer=store_layer(home, base_root(host, generation)),
        )
    head = msgspec.structs.replace(head, head=made.id, base=made.id, generation=generation, redo=())
    store.history.write_head(head, sync=True)
    known.save(_file(store, b"known"), generation, found.known, store.disk)
    some = ", ".join(os.fsdecode(path) for path in paths[:3])
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return Outside(head, f"changed while it was not mounted: {some}{more} (checkpoint {made.id})")


class Survey:
    """The comparison of the whole base in a process of its own. ``on_found`` hears, in a thread, what was changed."""

    def __init__(self, store: WorkspaceStore, base_fd: int, on_found: Callable[[list[bytes]], None]) -> None:
        self._store = store
        self._base_fd = base_fd
        self._on_found = on_found
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="plyfs-survey", daemon=True)

    def start(self) -> None:
        """Begin, after a while."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; what was not finished begins anew at the next mount."""
        self._stopping.set()
        if self._process is not None:
            self._process.terminate()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        if self._stopping.wait(SURVEY_DELAY_SECONDS):
            return
        explained = _file(self._store, b"explained")
        index = _file(self._store, b"survey")
        command = [sys.executable, "-P", "-m", "vfs.base.survey", str(self._base_fd), os.fsdecode(index)]
        source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        told = msgspec.msgpack.encode(_explained(self._store))
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[self._base_fd],
            cwd="/",
            env={**os.environ, "PYTHONPATH": source},
        )
        out, _ = self._process.communicate(told)
        if self._process.returncode or self._stopping.is_set():
            return
        try:
            os.unlink(explained)
        except FileNotFoundError:
            pass
        found = [bytes.fromhex(path) for path in json.loads(out)]
        if found:
            self._on_found(found)
