"""The wire form: one encoding for each value, and nothing else is read."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.errors import FormatError
from store.format import (
    Absent,
    Attributes,
    BlobPiece,
    BranchChild,
    BranchPage,
    ChunkList,
    Directory,
    HolePiece,
    Inline,
    Layer,
    LeafPage,
    Linked,
    LinkTarget,
    Origin,
    Original,
    OriginPiece,
    Regular,
    Special,
    Symlink,
    decode,
    encode,
)
from tests.store.entries import STORED

PLAIN = Attributes(5, 0o644, 0, 0, 1, 2)
FILE = Regular(PLAIN, Inline(b"x"))
REF = bytes(32)


def raw(value):
    """Bytes that encode() would refuse to write."""
    return msgspec.msgpack.encode(value)


@settings(max_examples=150, deadline=None)
@given(STORED)
def test_encoding_what_was_decoded_gives_the_same_bytes(value):
    data = encode(value)
    again = decode(data)
    assert again == value
    assert type(again) is type(value)
    assert encode(again) == data


@settings(max_examples=150, deadline=None)
@given(STORED, st.data())
def test_changed_bytes_are_refused_or_another_value(value, data):
    good = encode(value)
    changed = bytearray(good)
    changed[data.draw(st.integers(0, len(good) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        other = decode(bytes(changed))
    except FormatError:
        return
    assert other != value
    assert encode(other) == changed


@settings(max_examples=50, deadline=None)
@given(STORED, st.binary(min_size=1, max_size=4))
def test_nothing_may_follow_or_be_missing(value, more):
    data = encode(value)
    for wrong in (data + more, data[:-1], b""):
        with pytest.raises(FormatError):
            decode(wrong)


@pytest.mark.parametrize(
    "value",
    [
        LeafPage(((b"b", FILE), (b"a", FILE))),
        LeafPage(((b"a", FILE), (b"a", FILE))),
        LeafPage(((b"", FILE),)),
        LeafPage(((b".", FILE),)),
        LeafPage(((b"..", FILE),)),
        LeafPage(((b"a/b", FILE),)),
        LeafPage(((b"a\0b", FILE),)),
        LeafPage(((b"12345678", LinkTarget(FILE, 2)), (b"name", FILE))),
        LeafPage(((b"name", LinkTarget(FILE, 2)),)),
        LeafPage(((b"a", Regular(Attributes(5, 0o644, 0, 0, 1, 2, ((b"b", b""), (b"a", b""))), Inline(b""))),)),
        LeafPage(((b"a", Regular(PLAIN, Original(Origin(0, b"../etc/passwd"), 1, 1))),)),
        LeafPage(((b"a", Regular(PLAIN, Original(Origin(0, b"/etc/passwd"), 1, 1))),)),
        LeafPage(((b"a", Directory(PLAIN, Origin(0, b"a//b"), 0, None)),)),
        LeafPage(((b"a", Special(PLAIN, 0o100000, 0)),)),
        BranchPage(()),
        BranchPage((BranchChild(3, 1, REF), BranchChild(2, 1, REF))),
        ChunkList(()),
        ChunkList((HolePiece(5), HolePiece(5))),
        ChunkList((OriginPiece(5, Origin(0, b"./x"), 0, 5, 1),)),
        Layer(1, None, 0, Directory(PLAIN, Origin(0, b"a/"), 0, None), None),
    ],
)
def test_values_that_break_a_rule_are_neither_read_nor_written(value):
    with pytest.raises(FormatError):
        decode(raw(value))
    with pytest.raises(AssertionError):
        encode(value)


@pytest.mark.parametrize(
    "value",
    [
        LeafPage(((b"a", Regular(PLAIN, Inline(bytes(129)))),)),
        LeafPage(((b"a", Regular(Attributes(5, 0o10000, 0, 0, 1, 2), Inline(b""))),)),
        LeafPage(((b"a", Linked(5.0)),)),
        LeafPage((("a", Absent()),)),
        LeafPage(((b"a", Symlink(PLAIN, "text")),)),
        BranchPage((BranchChild(32, 1, REF),)),
        BranchPage((BranchChild(0, 0, REF),)),
        BranchPage((BranchChild(0, 1, REF[1:]),)),
        ChunkList((HolePiece(0),)),
        ChunkList((BlobPiece(-1, REF),)),
        ["leaf", [], "an unknown field"],
        ["twig", []],
        ["leaf"],
        {"leaf": []},
        5,
    ],
)
def test_values_of_wrong_types_and_ranges_are_refused(value):
    with pytest.raises(FormatError):
        decode(raw(value))


def test_another_version_is_named():
    layer = Layer(2, None, 0, Directory(PLAIN, None, 0, None), None)
    with pytest.raises(FormatError, match="version 2") as caught:
        decode(raw(layer))
    assert caught.value.hint


def test_longer_forms_of_the_same_number_are_refused():
    data = encode(ChunkList((HolePiece(5),)))
    assert data.endswith(b"\x05")
    with pytest.raises(FormatError):
        decode(data[:-1] + b"\xcc\x05")
