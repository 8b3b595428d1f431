"""A directory's listing: offsets that stay, whatever comes and goes."""

from __future__ import annotations

from store.refs import Ino
from vfs.live.listing import FIRST_OFFSET, Listing

FILE = 8


def listing(*names: bytes) -> Listing:
    return Listing((name, Ino(number), FILE) for number, name in enumerate(names, 10))


def names(rows) -> list[bytes]:
    return [row.name for row in rows]


def read_all(of: Listing, most: int) -> list[bytes]:
    found, offset = [], FIRST_OFFSET
    while rows := of.after(offset, most):
        found += names(rows)
        offset = rows[-1].offset
    return found


def test_in_parts():
    of = listing(b"a", b"b", b"c", b"d", b"e")
    assert read_all(of, 2) == [b"a", b"b", b"c", b"d", b"e"]
    assert len(of) == 5


def test_offsets_before_the_dots_are_the_start():
    of = listing(b"a")
    assert names(of.after(0, 9)) == names(of.after(1, 9)) == names(of.after(2, 9)) == [b"a"]


def test_reading_goes_on_where_it_was_after_a_removal_before_it():
    of = listing(b"a", b"b", b"c", b"d")
    rows = of.after(FIRST_OFFSET, 2)
    of.remove(b"a")
    of.remove(b"b")
    assert names(of.after(rows[-1].offset, 9)) == [b"c", b"d"]


def test_removing_while_reading_as_rm_does():
    of = listing(*(b"%d" % number for number in range(50)))
    seen, offset = [], FIRST_OFFSET
    while rows := of.after(offset, 7):
        for row in rows:
            seen.append(row.name)
            of.remove(row.name)
            offset = row.offset
    assert seen == [b"%d" % number for number in range(50)]
    assert len(of) == 0


def test_a_gap_longer_than_a_part_does_not_end_it():
    of = listing(*(b"%d" % number for number in range(20)))
    for number in range(19):
        of.remove(b"%d" % number)
    assert names(of.after(FIRST_OFFSET, 3)) == [b"19"]


def test_what_comes_is_seen_by_who_is_reading():
    of = listing(b"a")
    rows = of.after(FIRST_OFFSET, 9)
    of.add(b"b", Ino(99), FILE)
    assert [(row.name, row.ino) for row in of.after(rows[-1].offset, 9)] == [(b"b", 99)]


def test_another_inode_under_a_name_stays_in_its_place():
    of = listing(b"a", b"b", b"c")
    of.add(b"b", Ino(77), FILE)
    assert [(row.name, row.ino) for row in of.after(0, 9)] == [(b"a", 10), (b"b", 77), (b"c", 12)]


def test_a_name_removed_and_made_again_goes_to_the_end():
    of = listing(b"a", b"b")
    of.remove(b"a")
    of.add(b"a", Ino(50), FILE)
    assert names(of.after(0, 9)) == [b"b", b"a"]


def test_renumbered():
    of = listing(b"a", b"b", b"c")
    of.remove(b"c")
    assert of.renumber({Ino(10): Ino(100), Ino(12): Ino(120)})
    assert not of.renumber({Ino(12): Ino(120)})
    assert [(row.name, row.ino) for row in of.after(0, 9)] == [(b"a", 100), (b"b", 11)]


def test_removing_what_is_not_there():
    of = listing(b"a")
    of.remove(b"b")
    assert len(of) == 1
