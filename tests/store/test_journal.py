"""Journals: nothing that was appended is lost by a kill, and what a power failure takes is told."""

from __future__ import annotations

import os

import msgspec
import pytest

from store import journal
from store.disk import Disk
from store.errors import DamagedError, FormatError, NoSpaceError
from store.frames import frame
from store.journal import JournalHeader, JournalWriter, Resumed, Synced, journal_header, read_journal
from tests.store.faulty_disk import FaultyDisk


@pytest.fixture
def path(top):
    return top + b"/7"


def written(path, *records, sync_after=None):
    writer = JournalWriter(path, Disk(), journal_header(7, generation=2, next_ino=9, extra=b"x"))
    for number, record in enumerate(records):
        writer.append(record)
        if number == sync_after:
            writer.sync()
    writer.close()
    with open(path, "rb") as file:
        return file.read()


def overwrite(path, data):
    with open(path, "wb") as file:
        file.write(data)


def test_what_is_written_is_read(path):
    data = written(path, b"a", b"bc", b"def" * 1000, sync_after=1)
    contents = read_journal(path)
    assert contents.records == [b"a", b"bc", b"def" * 1000]
    assert contents.torn_at is None
    assert contents.size == len(data)
    header = contents.header
    assert (header.epoch, header.generation, header.next_ino, header.extra) == (7, 2, 9, b"x")


def test_an_epoch_has_one_journal(path):
    written(path)
    with pytest.raises(FileExistsError):
        JournalWriter(path, Disk(), journal_header(7))


def test_a_journal_cut_anywhere_gives_a_prefix_and_goes_on(path):
    records = [b"one", b"two", b"three"]
    data = written(path, *records)
    first = data.index(frame(b"one"))
    for cut in range(len(data)):
        overwrite(path, data[:cut])
        contents = read_journal(path)
        kept = contents.records
        assert kept == records[: len(kept)]
        assert (contents.torn_at is None) == (contents.size == cut > 0)
        assert contents.dropped == cut - contents.size
        if cut < first:
            assert contents.header.boot == ""
            assert contents.header.epoch == 7
        writer = JournalWriter.resume(path, Disk(), contents)
        writer.append(b"more")
        writer.close()
        again = read_journal(path)
        assert again.records == [*kept, b"more"]
        assert again.torn_at is None


def test_damage_in_the_middle_is_refused(path):
    data = written(path, b"one", b"two", b"three")
    at = data.index(b"two")
    overwrite(path, data[:at] + b"tWo" + data[at + 3 :])
    with pytest.raises(DamagedError) as caught:
        read_journal(path)
    assert os.fsdecode(path) in caught.value.message
    damaged_length = bytearray(data)
    damaged_length[at - 8] ^= 0x40
    overwrite(path, bytes(damaged_length))
    with pytest.raises(DamagedError):
        read_journal(path)


def test_after_a_power_failure_a_prefix_is_kept_but_nothing_that_was_synced_is_given_up(path, monkeypatch):
    records = [b"one", b"two", b"three", b"four"]
    data = written(path, *records, sync_after=1)
    monkeypatch.setattr(journal, "boot_id", lambda: "another run of the kernel")
    at = data.index(b"three")
    overwrite(path, data[:at] + bytes(5) + data[at + 5 :])
    contents = read_journal(path)
    assert contents.records == [b"one", b"two"]
    assert contents.torn_at is not None
    at = data.index(b"two")
    overwrite(path, data[:at] + bytes(3) + data[at + 3 :])
    with pytest.raises(DamagedError):
        read_journal(path)


def test_a_journal_taken_up_in_another_run_of_the_kernel_says_so(path, monkeypatch):
    written(path, b"one")
    monkeypatch.setattr(journal, "boot_id", lambda: "second")
    writer = JournalWriter.resume(path, Disk(), read_journal(path))
    for record in (b"two", b"three"):
        writer.append(record)
    writer.close()
    with open(path, "rb") as file:
        data = file.read()
    at = data.index(b"two")
    overwrite(path, data[:at] + bytes(3) + data[at + 3 :])
    with pytest.raises(DamagedError):  # nothing but damage explains it in the same run
        read_journal(path)
    monkeypatch.setattr(journal, "boot_id", lambda: "third")
    assert read_journal(path).records == [b"one"]


def test_a_full_disk_leaves_every_earlier_record(path):
    for full_at in range(12):
        if os.path.exists(path):
            os.unlink(path)
        disk = FaultyDisk(full_at=full_at)
        answered = []
        try:
            writer = JournalWriter(path, disk, journal_header(7))
        except NoSpaceError:
            assert not os.path.exists(path)
            continue
        for number in range(6):
            record = b"record %d" % number * 10
            try:
                writer.append(record)
                answered.append(record)
            except NoSpaceError:
                pass
        writer.close()
        contents = read_journal(path)
        assert contents.records == answered
        assert contents.torn_at is None


def test_other_versions_and_other_files_are_refused(path):
    header = JournalHeader(2, "boot", 7)
    overwrite(path, frame(msgspec.msgpack.encode(header), mark=True))
    with pytest.raises(FormatError, match="version 2"):
        read_journal(path)
    overwrite(path, frame(b"no header"))
    with pytest.raises(FormatError):
        read_journal(path)
    overwrite(path, frame(b"\xc1", mark=True))
    with pytest.raises(FormatError):
        read_journal(path)


def test_marks_stand_between_records(path):
    writer = JournalWriter(path, Disk(), journal_header(7))
    writer.append(b"one")
    size = writer.size()
    writer.sync()
    writer.close()
    with open(path, "rb") as file:
        assert file.read().endswith(frame(msgspec.msgpack.encode(Synced(size)), mark=True))
    assert Resumed("x") != Resumed("y")


def test_after_a_sync_that_failed_none_succeeds(path):
    disk = FaultyDisk()
    writer = JournalWriter(path, disk, journal_header(7))
    writer.append(b"one")
    disk.fail_syncs = 1
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            writer.sync()
    writer.append(b"two")
    assert read_journal(path).records == [b"one", b"two"]
    writer.close()
