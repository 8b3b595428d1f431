"""Records of vfs as the first release wrote them are read, byte for byte; what is damaged or unknown is refused."""

from __future__ import annotations

import msgspec
import pytest

from store.errors import DamagedError
from store.whole import read_whole
from tests.golden.records1 import RECORDS, VALUES


@pytest.mark.parametrize("name", sorted(VALUES))
def test_records_are_read_and_written_as_they_were(name):
    data = read_whole(bytes(RECORDS / name))
    assert msgspec.msgpack.decode(data, type=type(VALUES[name])) == VALUES[name]
    assert msgspec.msgpack.encode(VALUES[name]) == data


def test_every_golden_record_is_tried():
    assert {path.name for path in RECORDS.iterdir()} == set(VALUES)


@pytest.mark.parametrize("name", sorted(VALUES))
def test_every_flipped_bit_and_every_cut_is_noticed(name, tmp_path):
    data = (RECORDS / name).read_bytes()
    path = tmp_path / name
    for at in range(1, len(data)):
        flipped = data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :]
        for bad in (flipped, data[:at], data + data[:at]):
            path.write_bytes(bad)
            with pytest.raises(DamagedError):
                read_whole(bytes(path))


@pytest.mark.parametrize("name", sorted(VALUES))
def test_a_field_more_is_refused(name):
    value = msgspec.msgpack.decode(read_whole(bytes(RECORDS / name)))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode([*value, 0]), type=type(VALUES[name]))
