"""The records of ``statindex`` brought along with the effects of a restore, so that no scan has to find them out.

Does not own the effects (``execute``). Concurrency: one thread, that of the restore.
"""

from __future__ import annotations

import os

from store.format import Directory, Regular, Special, Symlink
from vfs.scan.statindex import DirectoryRecord, FileRecord, StatIndex, now_ns, record_of
from vfs.trees.view import Present, join


class Following:
    """The records during one restore. Of what is not known to them, nothing is recorded."""

    def __init__(self, index: StatIndex) -> None:
        self._index = index
        self._moved: dict[bytes, FileRecord | DirectoryRecord | None] = {}

    def put(self, path: bytes, entry: Present, status: os.stat_result) -> bool:
        """``path`` is ``entry``, which shows as ``status``. False if its directory is not known."""
        found = self._index.find(path)
        if found is None:
            return False
        assert isinstance(entry, Regular | Symlink | Special)
        directory, name = found
        directory.files[name] = record_of(status, entry, now_ns())
        directory.left.pop(name, None)
        directory.touch(name)
        return True

    def made(self, path: bytes, entry: Directory) -> None:
        """A directory was made at ``path``."""
        found = self._index.find(path)
        if found is None or found[1] in found[0].directories:
            return
        parent, name = found
        record = parent.child(name)
        record.attributes = entry.attributes
        record.repo, record.above, record.rules = parent.repo, parent.rules, parent.rules
        parent.left.pop(name, None)
        parent.touch(name)

    def forget(self, path: bytes) -> None:
        """Nothing is at ``path`` any more."""
        found = self._index.find(path)
        if found is not None:
            directory, name = found
            directory.files.take(name)
            directory.directories.pop(name, None)
            directory.touch(name)

    def leave(self, source: bytes, slot: bytes) -> None:
        """What was at ``source`` waits at ``slot``."""
        found = self._index.find(source)
        assert found is not None
        directory, name = found
        self._moved[slot] = directory.files.take(name) or directory.directories.pop(name, None)
        directory.touch(name)

    def arrive(self, slot: bytes, path: bytes, status: os.stat_result | None) -> None:
        """What waited at ``slot`` is at ``path``, and shows there as ``status``."""
        what = self._moved.pop(slot, None)
        found = self._index.find(path)
        if found is None or what is None:
            return
        directory, name = found
        if isinstance(what, DirectoryRecord):
            what.parent, what.name = directory, name
            directory.directories[name] = what
            for record in what.all():
                if record.parent is not None:
                    record.path = join(record.parent.path, os.fsencode(record.name))
                record.unsaved = True
        elif status is not None:
            # Renaming changes nothing but the change time.
            directory.files[name] = record_of(status, what.entry, now_ns())
        directory.touch(name)
