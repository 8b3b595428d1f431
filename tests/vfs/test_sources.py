"""Where stored bytes come from: exact ones or an error, through few descriptors."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from store.errors import MissingError
from store.format import (
    Blob,
    BlobPiece,
    Chunked,
    ChunkList,
    HolePiece,
    Inline,
    Origin,
    Original,
    OriginPiece,
    encode,
)
from tests.fakes.objects import MemoryObjects
from vfs.errors import FsError
from vfs.live.extents import read_runs
from vfs.live.sources import OriginSource, Sources
from vfs.trees.host import Host


@pytest.fixture
def base(tmp_path):
    (tmp_path / "file").write_bytes(b"0123456789")
    os.utime(tmp_path / "file", ns=(1, 5_000_000_000))
    return tmp_path


@pytest.fixture
def objects():
    return MemoryObjects()


@pytest.fixture
def sources(base, objects):
    fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY)
    sources = Sources(objects, Host({0: fd}), most_open=2)
    yield sources
    sources.close()
    os.close(fd)


FILE = Original(Origin(0, b"file"), 10, 5_000_000_000)


def content(sources, what, size):
    return read_runs(list(sources.runs(what)), 0, size)


def test_inline(sources):
    assert sources.runs(Inline(b"")) == ()
    assert content(sources, Inline(b"abc"), 3) == b"abc"


def test_blob(sources, objects):
    assert content(sources, Blob(objects.put_blob(b"blob"), 4), 4) == b"blob"


def test_a_missing_blob_is_an_error_when_it_is_read(sources, objects):
    runs = sources.runs(Blob(objects.put_blob(b"blob"), 4))
    objects.data.clear()
    with pytest.raises(FsError) as caught:
        read_runs(list(runs), 0, 4)
    assert caught.value.errno == errno.EIO


def test_a_damaged_blob_gives_no_bytes(sources, objects):
    ref = objects.put_blob(b"blob")
    objects.data[ref] = b"bl0b"
    with pytest.raises(FsError) as caught:
        content(sources, Blob(ref, 4), 4)
    assert caught.value.errno == errno.EIO


def test_a_file_of_the_base(sources):
    assert content(sources, FILE, 10) == b"0123456789"
    assert sources.runs(Original(Origin(0, b"file"), 0, 0)) == (), "an empty file is not even opened"


@pytest.mark.parametrize("change", ["content", "time", "size", "gone", "type"])
def test_a_file_of_the_base_that_has_changed(sources, base, change):
    path = base / "file"
    match change:
        case "content":
            path.write_bytes(b"9876543210")
        case "time":
            os.utime(path, ns=(1, 6_000_000_000))
        case "size":
            os.truncate(path, 9)
            os.utime(path, ns=(1, 5_000_000_000))
        case "gone":
            path.unlink()
        case "type":
            path.unlink()
            path.symlink_to("elsewhere")
    with pytest.raises(FsError):
        content(sources, FILE, 10)


def test_a_file_cut_short_while_it_is_open(sources, base):
    source = OriginSource(sources, FILE.origin, 10, FILE.mtime_ns)
    assert source.pread(2, 8) == b"89"
    os.truncate(base / "file", 5)
    with pytest.raises(FsError) as caught:
        source.pread(5, 4)
    assert caught.value.errno == errno.EIO


def test_pieces(sources, objects):
    pieces = (
        HolePiece(3),
        BlobPiece(4, objects.put_blob(b"blob")),
        OriginPiece(2, FILE.origin, 7, 10, FILE.mtime_ns),
        HolePiece(1),
        OriginPiece(3, FILE.origin, 0, 10, FILE.mtime_ns),
    )
    ref = objects.put_node(encode(ChunkList(pieces)))
    runs = sources.runs(Chunked(ref, 13))
    assert read_runs(list(runs), 0, 13) == bytes(3) + b"blob78" + bytes(1) + b"012"
    origins = {id(run.source) for run in runs if isinstance(run.source, OriginSource)}
    assert len(origins) == 1, "one file is opened once"


def test_a_chunk_list_that_is_missing_or_none(sources, objects):
    ref = objects.put_node(encode(ChunkList((HolePiece(1),))))
    objects.data.clear()
    with pytest.raises(FsError):
        sources.runs(Chunked(ref, 1))
    with pytest.raises(MissingError):
        objects.get_node(ref)


def test_holes_of_a_sparse_file_stay_holes(sources, base):
    with open(base / "sparse", "wb") as file:
        os.ftruncate(file.fileno(), 1 << 20)
        os.pwrite(file.fileno(), b"x" * 4096, 512 << 10)
    status = os.stat(base / "sparse")
    original = Original(Origin(0, b"sparse"), status.st_size, status.st_mtime_ns)
    runs = sources.data_runs(original)
    assert sum(run.end - run.start for run in runs) < 1 << 20
    assert read_runs(list(runs), 0, 1 << 20) == (base / "sparse").read_bytes()


def test_few_descriptors_are_open_and_those_in_use_stay(sources, base):
    for number in range(5):
        (base / f"f{number}").write_bytes(b"%d" % number)
    used = []
    for number in range(5):
        status = os.stat(base / f"f{number}")
        source = OriginSource(sources, Origin(0, b"f%d" % number), 1, status.st_mtime_ns)
        used.append((sources.descriptor(source), b"%d" % number))
    assert all(os.pread(descriptor.fd, 1, 0) == byte for descriptor, byte in used)
    before = len(os.listdir("/proc/self/fd"))
    used.clear()
    assert len(os.listdir("/proc/self/fd")) < before, "what is not in use is closed"


def test_from_several_threads(sources):
    wrong = []

    def read():
        for _ in range(200):
            if content(sources, FILE, 10) != b"0123456789":
                wrong.append(1)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
