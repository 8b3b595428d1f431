"""The epochs of the working layer: a journal and working files for each stretch between checkpoints or restores.

Owns what makes an answer safe: each record is in the journal before its operation is answered, ``barrier`` puts all of
it on the disk, and what an epoch wrote goes away only when the checkpoint that ended it is sealed. Does not own what
records mean (``recovery``).

Concurrency: ``record`` and ``rotate`` run under the tree's lock; ``barrier`` and ``drop`` take it for a moment and wait
for the disk without it.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Protocol

from store.disk import Disk
from store.errors import NoSpaceError
from store.journal import JournalContents, JournalWriter, journal_header
from vfs.errors import FsError
from vfs.live.extents import Run
from vfs.live.reclaim import Reclaim
from vfs.live.records import Op, Start, encode_record, encode_start
from vfs.live.working import WorkingData, WorkingFile

RESERVED_BYTES = 256 * 1024
"""How much space of the journal is set aside at a time."""

LAST_BYTES = 64 * 1024
"""The part of it that only records may use which free space."""

FRAME_BYTES = 8


class Guard(Protocol):
    """A lock, as ``with`` uses it."""

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> object: ...


class Epoch:
    """One epoch: its journal (None once it is closed for good), how many records that holds, how many of them are
    durable, and the working files that it wrote, but for those still open for writing.
    """

    def __init__(self, start: Start, journal: JournalWriter | None, records: int, files: list[WorkingFile]) -> None:
        self.start = start
        self.journal = journal
        self.records = records
        self.durable = -1  # not even its beginning
        self.files = files
        self.anchored = False
        """True once its journal, and the head that names it, would be found again after a power loss."""


class Epochs:
    """The present epoch, and those before it whose checkpoints are not sealed yet."""

    def __init__(self, directory: bytes, disk: Disk, working: WorkingData) -> None:
        self.directory = directory
        self.disk = disk
        self._working = working
        self._current: Epoch | None = None
        self._closed: list[Epoch] = []
        self._sync_lock = threading.Lock()
        self._room = 0
        self.reclaim = Reclaim()
        self.muted = False
        self.anchor: Callable[[], None] = lambda: None
        """Puts the head, and all that it names, on the disk. Takes no lock that is held while records are written."""

    @property
    def current(self) -> Epoch:
        """The epoch that records go to."""
        assert self._current is not None, "an epoch has begun"
        return self._current

    def path(self, number: int) -> bytes:
        """Where the journal of epoch ``number`` lies."""
        return os.path.join(self.directory, b"%d" % number)

    def oldest(self) -> int:
        """The number of the oldest epoch whose journal is still needed."""
        return min(epoch.start.epoch for epoch in (*self._closed, self.current))

    def on_disk(self) -> list[int]:
        """The numbers of the journals that are there, in order."""
        return sorted(int(name) for name in os.listdir(self.directory) if name.isdigit())

    def prepare(self, start: Start) -> Epoch:
        """The next epoch, with its journal, not entered yet. Raises NoSpaceError."""
        header = journal_header(
            start.epoch,
            head=start.head,
            generation=start.generation,
            next_ino=start.next_ino,
            extra=encode_start(start),
        )
        return Epoch(start, JournalWriter(self.path(start.epoch), self.disk, header), 0, [])

    def abandon(self, epoch: Epoch) -> None:
        """The epoch is not to be entered after all."""
        if epoch.journal is not None:
            epoch.journal.close()
        self.disk.unlink(self.path(epoch.start.epoch))

    def enter(self, epoch: Epoch) -> None:
        """From now on records go to ``epoch``; the one before is closed, and what it wrote is frozen."""
        self._room = 0
        self._close_current()
        self._current = epoch

    def begin(self, start: Start) -> None:
        """Prepare and enter an epoch. Raises NoSpaceError, and then nothing has happened."""
        self.enter(self.prepare(start))

    def resume(self, start: Start, contents: JournalContents) -> None:
        """Go on with an epoch that was just replayed; the working files that it cites are not written to again."""
        journal = JournalWriter.resume(self.path(start.epoch), self.disk, contents)
        self._current = Epoch(start, journal, len(contents.records), self._working.unfrozen())
        self._working.freeze()

    def replayed(self, start: Start, contents: JournalContents) -> None:
        """An epoch that was just replayed and ended in a checkpoint that is still to be sealed."""
        journal = JournalWriter.resume(self.path(start.epoch), self.disk, contents)
        self._closed.append(Epoch(start, journal, len(contents.records), self._working.unfrozen()))
        self._working.freeze()

    def _close_current(self) -> None:
        if self._current is not None:
            self._current.files += self._working.unfrozen()
            self._closed.append(self._current)
        self._working.freeze()

    def record(self, record: tuple[Any, ...], frees: bool = False) -> None:
        """Append ``record`` to the journal. Raises FsError(ENOSPC), and then it is not there.

        A record that ``frees`` space may use the last of what is set aside, so that a full disk can be cleared.
        """
        if self.muted:
            return
        epoch = self._current
        assert epoch is not None and epoch.journal is not None
        payload = encode_record(record)
        room = self._room - len(payload) - FRAME_BYTES
        if room < LAST_BYTES:
            if epoch.journal.reserve(RESERVED_BYTES):
                room = RESERVED_BYTES - len(payload) - FRAME_BYTES
            elif not frees:
                raise FsError(errno.ENOSPC)
        try:
            epoch.journal.append(payload)
        except NoSpaceError as error:
            raise FsError(errno.ENOSPC) from error
        except OSError as error:
            raise FsError(error.errno or errno.EIO) from error
        self._room = room
        epoch.records += 1

    def give_up(self, runs: Iterable[Run]) -> None:
        """The working data of ``runs`` is not needed any more, once what was recorded so far is durable."""
        if not self.muted and self._current is not None:
            self.reclaim.give_up(runs, self._current.records)

    def barrier(self, lock: Guard) -> None:
        """Return when every record so far, and the data that it cites, is on the disk. ``lock`` is the tree's.

        Raises FsError(EIO, ENOSPC); then nothing more is durable than was before.
        """
        with self._sync_lock:
            with lock:
                waiting = [epoch for epoch in (*self._closed, self.current) if epoch.durable < epoch.records]
                counts = [epoch.records for epoch in waiting]
                files = [file for epoch in waiting for file in epoch.files] + self._working.unfrozen()
                names, self._working.unnamed = self._working.unnamed, False
            for file in files:
                file.sync()
            try:
                self._find_again(waiting, names)
            except (OSError, NoSpaceError) as error:
                self._working.unnamed = True
                raise FsError(errno.ENOSPC if isinstance(error, NoSpaceError) else error.errno or errno.EIO) from error
            for epoch, count in zip(waiting, counts, strict=True):
                with lock:
                    if epoch.journal is None:
                        continue
                    try:
                        epoch.journal.append(encode_record((Op.BARRIER, count)))
                    except NoSpaceError as error:
                        raise FsError(errno.ENOSPC) from error
                    epoch.records += 1
                    durable = epoch.records if epoch.records == count + 1 else count
                try:
                    epoch.journal.sync()
                except OSError as error:
                    raise FsError(error.errno or errno.EIO) from error
                epoch.durable = durable
            with lock:
                self.reclaim.collect(self.current.durable)

    def _find_again(self, waiting: list[Epoch], names: bool) -> None:
        """Make sure that what is about to be promised is found: the files' names, and the head that leads to them."""
        if names:
            self.disk.sync_dir(self._working.directory)
        loose = [epoch for epoch in waiting if not epoch.anchored]
        if loose:
            self.disk.sync_dir(self.directory)
            self.anchor()
        for epoch in loose:
            epoch.anchored = True

    def drop(self, number: int, lock: Guard) -> None:
        """The checkpoint that ended epoch ``number`` is sealed and durable: its journal and working files go."""
        # A head that names one of these epochs must not come back: it would find neither journal nor what that held.
        with self._sync_lock:  # a barrier under way still uses the journals
            current = self._current
            if current is not None and not current.anchored:
                self._find_again([current], False)
            with lock:
                gone = [epoch for epoch in self._closed if epoch.start.epoch <= number]
                self._closed = [epoch for epoch in self._closed if epoch.start.epoch > number]
            for epoch in gone:
                if epoch.journal is not None:
                    epoch.journal.close()
                    epoch.journal = None
                self.disk.unlink(self.path(epoch.start.epoch))
                for file in epoch.files:
                    file.temporary = True
                epoch.files = []

    def working_numbers(self) -> set[int]:
        """The numbers of the working files that epochs still cite."""
        epochs = [*self._closed, *([self._current] if self._current is not None else [])]
        return {file.number for epoch in epochs for file in epoch.files}

    def close(self) -> None:
        """Close the journals; they stay on disk."""
        for epoch in [*self._closed, *([self._current] if self._current is not None else [])]:
            if epoch.journal is not None:
                epoch.journal.close()
                epoch.journal = None
        self._closed = []
        self._current = None
