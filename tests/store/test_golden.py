"""Bytes of every released version of the format are read, byte for byte, and what must be refused is refused."""

from __future__ import annotations

import os
import shutil

import pytest

from store.check import check
from store.errors import FormatError
from store.format import Absent, Directory, decode, encode
from store.frames import scan
from store.home import Home
from store.journal import read_journal
from store.nodes import Pages
from tests.golden import format1


@pytest.mark.parametrize("name", sorted(format1.VALUES))
def test_objects_are_read_and_written_as_they_were(name):
    data = (format1.OBJECTS / f"{name}.bin").read_bytes()
    assert decode(data) == format1.VALUES[name]
    assert encode(format1.VALUES[name]) == data


def test_every_golden_object_is_tried():
    assert {path.stem for path in format1.OBJECTS.glob("*.bin")} == set(format1.VALUES)
    assert {path.stem for path in format1.BAD.glob("*.bin")} == set(format1.bad_values())


@pytest.mark.parametrize("name", sorted(format1.bad_values()))
def test_bad_objects_are_refused(name):
    data = (format1.BAD / f"{name}.bin").read_bytes()
    assert data == format1.bad_values()[name]
    with pytest.raises(FormatError):
        decode(data)


def test_zeros_after_a_frame():
    assert scan((format1.BAD / "frame-of-zeros.frames").read_bytes()).payloads == [b"good"]


@pytest.fixture
def store1(tmp_path):
    root = tmp_path / "home"
    shutil.copytree(format1.STORE, root)
    # What a repository does not keep: empty directories and modes.
    for name in ("objects/tmp", "run"):
        (root / name).mkdir(exist_ok=True)
    for workspace in (root / "workspaces").iterdir():
        for name in ("journal", "working", "attic"):
            (workspace / name).mkdir(exist_ok=True)
    for directory, _, files in os.walk(root):
        os.chmod(directory, 0o700)
        for name in files:
            os.chmod(os.path.join(directory, name), 0o600)
    return Home.open(os.fsencode(root))


def test_a_store_is_read_as_it_was(store1):
    store = store1.find(format1.IDENTITY, format1.WORKSPACE_PATH)
    assert store is not None
    history = store.history
    base, one, two, four = history.all()
    assert [base.id, one.id, two.id, four.id] == ["000100010001", "000200020002", "000300030003", "000500050005"]
    assert (one.label, one.session, one.node, one.changed) == ("label", "session", "node", 2)
    assert (one.generation, one.epoch, one.next_ino, one.state) == (1, 2, 1 << 62, "sealed")
    assert (base.kind, two.kind, two.label, two.outside, four.state) == (
        "base",
        "outside",
        "second",
        (b"gone",),
        "sealing",
    )
    assert history.read_head() == format1.HEAD
    assert [generation.number for generation in store.generations.all()] == [0]
    contents = read_journal(store.journal_path(4))
    assert contents.header == format1.JOURNAL
    assert contents.records == format1.RECORDS
    pages = Pages(store1.objects)
    layer = decode(store1.objects.get_node(one.layer))
    page = pages.page_of(layer.root)
    blob = pages.get(page, b"blob")
    assert store1.objects.read_blob(blob.content.ref, blob.content.size) == format1.BLOB
    many = pages.get(page, b"many")
    assert isinstance(many, Directory)
    assert dict(pages.items(pages.page_of(many))) == {b"%03d" % number: format1.FILE for number in range(70)}
    removed = decode(store1.objects.get_node(two.layer)).root
    assert dict(pages.items(pages.page_of(removed))) == {b"gone": Absent()}


def test_a_store_is_sound(store1):
    report = check(store1)
    assert report.problems == []
    assert [loss.reason for loss in report.lost] == []


def test_a_store_is_written_as_it_was(tmp_path):
    format1.write_store(tmp_path / "home")
    for directory, _, files in os.walk(format1.STORE):
        for name in files:
            golden = os.path.join(directory, name)
            again = tmp_path / "home" / os.path.relpath(golden, format1.STORE)
            with open(golden, "rb") as file:
                assert again.read_bytes() == file.read(), again
