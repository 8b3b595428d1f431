"""Contents give the right bytes or an error, and copies keep holes."""

from __future__ import annotations

import errno
import os

import pytest

from store.errors import DamagedError, FormatError, MissingError
from store.format import Blob, BlobPiece, Chunked, ChunkList, HolePiece, Inline, Origin, Original, OriginPiece, encode
from store.refs import BlobRef, NodeRef
from tests.fakes.objects import MemoryObjects
from vfs.errors import FsError
from vfs.trees.contents import Contents, Span
from vfs.trees.host import Host

MIB = 1 << 20


@pytest.fixture
def objects():
    return MemoryObjects()


@pytest.fixture
def contents(tmp_path, objects):
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield Contents(objects, Host({0: fd}))
    os.close(fd)


def original(path) -> Original:
    status = path.stat()
    return Original(Origin(0, os.fsencode(path.name)), status.st_size, status.st_mtime_ns)


def chunked(objects, *pieces) -> Chunked:
    return Chunked(objects.put_node(encode(ChunkList(pieces))), sum(piece.length for piece in pieces))


@pytest.fixture
def mixed(tmp_path, objects):
    """A blob, a hole and the middle of a base file."""
    path = tmp_path / "base"
    path.write_bytes(b"0123456789")
    status = path.stat()
    piece = OriginPiece(4, Origin(0, b"base"), 3, 10, status.st_mtime_ns)
    return chunked(objects, BlobPiece(3, objects.put_blob(b"abc")), HolePiece(2), piece)


def test_read_of_every_kind(tmp_path, objects, contents, mixed):
    blob = objects.put_blob(b"blobby")
    (tmp_path / "f").write_bytes(b"from the base")
    for content, data in (
        (Inline(b""), b""),
        (Inline(b"in"), b"in"),
        (Blob(blob, 6), b"blobby"),
        (original(tmp_path / "f"), b"from the base"),
        (mixed, b"abc\0\x003456"),
    ):
        assert contents.size(content) == len(data)
        for start in range(len(data) + 2):
            for length in range(len(data) + 2):
                assert contents.read(content, start, length) == data[start : start + length]
        assert sum(span.length for span in contents.spans(content)) == len(data)


def test_spans_say_where_bytes_lie(objects, contents, mixed):
    blob, hole, origin = contents.spans(mixed)
    assert blob == Span(0, 3, Blob(objects.put_blob(b"abc"), 3))
    assert hole == Span(3, 2, HolePiece(2))
    assert (origin.start, origin.length, origin.source.offset) == (5, 4, 3)


def test_a_changed_or_missing_origin_is_an_error_that_names_it(tmp_path, contents, mixed):
    path = tmp_path / "base"
    whole = original(path)
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))
    for content in (whole, mixed):
        with pytest.raises(FsError, match="base") as caught:
            contents.read(content, 0, 100)
        assert caught.value.errno == errno.EIO
    path.unlink()
    with pytest.raises(FsError, match="base") as caught:
        contents.read(whole, 0, 100)
    assert caught.value.errno == errno.EIO
    with pytest.raises(FsError):
        contents.copy_to(whole, os.memfd_create("copy"))


def test_damaged_and_missing_objects(objects, contents, mixed):
    with pytest.raises(MissingError):
        contents.read(Blob(BlobRef(bytes(32)), 3), 0, 3)
    objects.data[objects.put_blob(b"abc")] = b"abd"
    with pytest.raises(DamagedError):
        contents.read(mixed, 0, 1)
    with pytest.raises(FormatError):
        contents.read(Chunked(mixed.ref, mixed.size + 1), 0, 1)
    with pytest.raises(FormatError):
        contents.read(Chunked(objects.put_node(encode_page()), 3), 0, 1)
    with pytest.raises(MissingError):
        contents.spans(Chunked(NodeRef(bytes(32)), 3))


def encode_page() -> bytes:
    from store.format import LeafPage

    return encode(LeafPage(()))


def copied(contents, content, path) -> bytes:
    with open(path, "w+b") as file:
        contents.copy_to(content, file.fileno())
    return path.read_bytes()


def test_copies_are_equal(tmp_path, objects, contents, mixed):
    (tmp_path / "f").write_bytes(b"x" * 5000)
    target = tmp_path / "target"
    assert copied(contents, mixed, target) == b"abc\0\x003456"
    assert copied(contents, original(tmp_path / "f"), target) == b"x" * 5000
    assert copied(contents, Inline(b"hi"), target) == b"hi"
    assert copied(contents, Inline(b""), target) == b""


def test_a_sparse_file_is_copied_sparse(tmp_path, objects, contents):
    source = tmp_path / "sparse"
    with open(source, "wb") as file:
        file.seek(64 * MIB)
        file.write(b"middle")
        file.truncate(128 * MIB)
    target = tmp_path / "copy"
    with open(target, "w+b") as file:
        contents.copy_to(original(source), file.fileno())
    assert target.stat().st_size == 128 * MIB
    assert target.stat().st_blocks * 512 < MIB
    with open(target, "rb") as file:
        assert os.lseek(file.fileno(), 0, os.SEEK_DATA) <= 64 * MIB
        file.seek(64 * MIB)
        assert file.read(7) == b"middle\0"
    holes = chunked(objects, HolePiece(MIB), BlobPiece(3, objects.put_blob(b"abc")), HolePiece(MIB))
    assert copied(contents, holes, target) == bytes(MIB) + b"abc" + bytes(MIB)
    assert target.stat().st_blocks * 512 < MIB
