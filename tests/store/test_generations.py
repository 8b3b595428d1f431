"""The states of the base."""

from __future__ import annotations

import os

import msgspec
import pytest

from store.disk import Disk
from store.errors import FormatError
from store.frames import frame
from store.generations import Generation, Generations
from store.refs import LayerRef
from tests.store.faulty_disk import FaultyDisk


def ended(number, cause="apply"):
    return Generation(number, LayerRef(bytes([number]) * 32), LayerRef(bytes([number + 100]) * 32), number, cause)


def test_generations_end_in_order_and_durably(top):
    disk = FaultyDisk()
    generations = Generations(top, disk)
    assert (generations.current, generations.all(), generations.since(0)) == (0, [], [])
    generations.append(ended(0))
    generations.append(ended(1, "outside"))
    with pytest.raises(AssertionError):
        generations.append(ended(1))
    disk.power_loss(top)
    again = Generations(top, Disk())
    assert again.current == 2
    assert again.all() == [ended(0), ended(1, "outside")]
    assert again.since(1) == [ended(1, "outside")]
    assert again.since(2) == []
    again.append(ended(2))
    again.close()
    again.append(ended(3))
    assert Generations(top, Disk()).current == 4


def test_a_torn_end_is_left_out_and_told(top):
    generations = Generations(top, Disk())
    generations.append(ended(0))
    generations.append(ended(1))
    generations.close()
    os.truncate(generations.path, os.path.getsize(generations.path) - 1)
    again = Generations(top, Disk())
    assert again.current == 1
    assert len(again.problems) == 1


def test_gaps_and_foreign_records_are_refused(top):
    generations = Generations(top, Disk())
    generations.append(ended(0))
    generations.close()
    with open(generations.path, "rb") as file:
        good = file.read()
    for value in (ended(2), ["generation"], 5):
        with open(generations.path, "wb") as file:
            file.write(good + frame(msgspec.msgpack.encode(value)))
        with pytest.raises(FormatError):
            Generations(top, Disk())


def test_a_sync_that_failed_is_made_good_by_recording_again(top):
    disk = FaultyDisk()
    generations = Generations(top, disk)
    generations.append(ended(0))
    disk.fail_syncs = 1
    with pytest.raises(OSError, match="Input/output"):
        generations.append(ended(1))
    generations.append(ended(1))
    assert generations.current == 2
    disk.power_loss(top)
    assert Generations(top, Disk()).all() == [ended(0), ended(1)]
