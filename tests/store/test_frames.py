"""Framed records: what an append that was cut short leaves, and what damage is told apart from it."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.disk import Disk
from store.errors import DamagedError, FormatError, NoSpaceError, StoreError
from store.frames import EventFile, FrameWriter, frame, scan
from tests.store.faulty_disk import FaultyDisk

PAYLOADS = st.lists(st.binary(min_size=1, max_size=40), max_size=8)


@given(PAYLOADS, st.data())
def test_a_file_cut_anywhere_gives_the_whole_frames_before_the_cut(payloads, data):
    whole = b"".join(frame(payload) for payload in payloads)
    cut = data.draw(st.integers(0, len(whole)))
    found = scan(whole[:cut])
    assert found.payloads == payloads[: len(found.payloads)]
    assert found.end <= cut
    assert found.end == len(b"".join(frame(payload) for payload in found.payloads))
    if cut == len(whole):
        assert found.payloads == payloads
        assert found.end == cut


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=2, max_size=8), st.data())
def test_a_flipped_bit_before_good_frames_is_damage_and_not_an_end(payloads, data):
    whole = bytearray(b"".join(frame(payload) for payload in payloads))
    last = len(whole) - len(frame(payloads[-1]))
    whole[data.draw(st.integers(0, last - 1))] ^= 1 << data.draw(st.integers(0, 7))
    found = scan(bytes(whole))
    assert found.resumes is not None
    assert found.payloads == payloads[: len(found.payloads)]


def test_zeros_are_no_frames():
    found = scan(frame(b"one") + bytes(4096))
    assert found.payloads == [b"one"]
    assert found.end == len(frame(b"one"))
    assert found.resumes is None


def test_marks_know_how_many_records_precede_them():
    found = scan(frame(b"h", mark=True) + frame(b"a") + frame(b"b") + frame(b"m", mark=True))
    assert found.payloads == [b"a", b"b"]
    assert found.marks == [(0, b"h"), (2, b"m")]


def test_an_append_that_does_not_fit_leaves_nothing(top):
    path = top + b"/file"
    Disk().write_new(path, frame(b"first"))
    disk = FaultyDisk(full_at=0)
    writer = FrameWriter(disk.open_append(path), disk, path)
    with pytest.raises(NoSpaceError) as caught:
        writer.append(b"second" * 10)
    assert os.fsdecode(path) in caught.value.message
    assert caught.value.hint
    assert disk.effects == ["full append", "full append", "truncate"]
    writer.append(b"third")
    with open(path, "rb") as file:
        assert scan(file.read()).payloads == [b"first", b"third"]
    writer.close()
    with pytest.raises(StoreError):
        writer.append(b"fourth")


def test_nothing_is_appended_behind_a_tear_that_could_not_be_cut_away(top):
    class Stubborn(FaultyDisk):
        refuse = True

        def truncate(self, fd, length):
            if self.refuse:
                raise OSError(5, "Input/output error")
            super().truncate(fd, length)

    path = top + b"/file"
    Disk().write_new(path, frame(b"first"))
    disk = Stubborn(full_at=0)
    writer = FrameWriter(disk.open_append(path), disk, path)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            writer.append(b"second" * 10)
    disk.refuse = False
    writer.append(b"third")
    with open(path, "rb") as file:
        assert scan(file.read()).payloads == [b"first", b"third"]
    writer.close()


def test_events_of_another_process_are_taken_in_before_the_first_append(top):
    path = top + b"/events"
    mine, other = EventFile(path, "test", Disk()), EventFile(path, "test", Disk())
    assert mine.load() == []
    assert other.load() == []
    assert other.prepare() == []
    other.append(b"theirs")
    assert mine.prepare() == [b"theirs"]
    mine.append(b"mine")
    mine.sync()
    assert EventFile(path, "test", Disk()).load() == [b"theirs", b"mine"]
    mine.close()
    other.close()


def test_a_torn_end_is_left_until_something_is_appended(top):
    path = top + b"/events"
    events = EventFile(path, "test", Disk())
    events.prepare()
    events.append(b"one")
    events.close()
    with open(path, "ab") as file:
        file.write(frame(b"two")[:-1])
    size = os.path.getsize(path)
    events = EventFile(path, "test", Disk())
    assert events.load() == [b"one"]
    assert events.torn == len(frame(b"two")) - 1
    assert os.path.getsize(path) == size
    events.prepare()
    events.append(b"three")
    events.close()
    assert EventFile(path, "test", Disk()).load() == [b"one", b"three"]


def test_damage_among_events_is_told(top):
    path = top + b"/events"
    events = EventFile(path, "test", Disk())
    events.prepare()
    events.append(b"one")
    events.append(b"two")
    events.close()
    with open(path, "rb") as file:
        data = file.read()
    for place in (len(data) - 2 * len(frame(b"two")), 0, 9):
        flipped = bytearray(data)
        flipped[place] ^= 1
        with open(path, "wb") as file:
            file.write(flipped)
        with pytest.raises(DamagedError):
            EventFile(path, "test", Disk()).load()
    with pytest.raises(FormatError):
        with open(path, "wb") as file:
            file.write(data)
        EventFile(path, "other", Disk()).load()
