"""Requests without a mount: what the dispatcher answers, to sense and to nonsense."""

from __future__ import annotations

import errno
import stat
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.refs import Ino
from tests.fakes.memory_fs import MemoryFs
from vfs.channel import ROOT, VALID_SECONDS, Caller
from vfs.channels import wire
from vfs.channels.disguise import Appear, Disguise, Touch, Vanish
from vfs.channels.dispatch import Dispatcher, Reply
from vfs.errors import FsError

ME = Caller(1, 2, 3, 0o022)
WAKER = 77


class Bench:
    """A dispatcher over a memory file system with a file ``f`` and a directory ``d``."""

    def __init__(self) -> None:
        self.fs = MemoryFs()
        self.disguise = Disguise(self.fs)
        self.dispatcher = Dispatcher(self.fs, self.disguise)
        self.file = self.fs.mknod(ROOT, b"f", stat.S_IFREG | 0o644, 0, ME).ino
        self.directory = self.fs.mkdir(ROOT, b"d", 0o755, ME).ino
        self._buffer = bytearray(1 << 17)

    def raw(self, request: bytes) -> Reply:
        self._buffer[: len(request)] = request
        return self.dispatcher.answer(memoryview(self._buffer), len(request))

    def ask(self, opcode: int, node: int, body: bytes = b"", pid: int = 3) -> tuple[int, bytes]:
        """(errno, body of the reply)."""
        header = wire.IN_HEADER.pack(wire.HEADER_SIZE + len(body), opcode, 42, node, 1, 2, pid, 0, 0)
        reply = self.raw(header + body)
        assert reply is not None
        whole = reply if isinstance(reply, bytes) else b"".join(map(bytes, reply))
        length, error, unique = wire.OUT_HEADER.unpack_from(whole)
        assert (length, unique) == (len(whole), 42)
        assert error == 0 or len(whole) == wire.OUT_SIZE
        return -error, whole[wire.OUT_SIZE :]

    def entry(self, opcode: int, node: int, body: bytes, pid: int = 3) -> tuple[int, int, int, int]:
        """(nodeid, seconds valid, mode, uid) of an entry reply."""
        error, reply = self.ask(opcode, node, body, pid)
        assert error == 0, errno.errorcode[error]
        fields = struct.unpack("=" + wire.ENTRY, reply)
        return fields[0], fields[2], fields[15], fields[17]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_lookup_and_forget(bench: Bench) -> None:
    assert bench.entry(wire.LOOKUP, ROOT, b"f\0") == (bench.file, VALID_SECONDS, stat.S_IFREG | 0o644, 1)
    assert bench.fs.inodes[bench.file].lookups == 2
    forget = wire.IN_HEADER.pack(wire.HEADER_SIZE + 8, wire.FORGET, 0, bench.file, 0, 0, 0, 0, 0) + struct.pack("=Q", 2)
    assert bench.raw(forget) is None
    assert bench.fs.inodes[bench.file].lookups == 0


def test_an_absent_name_is_remembered(bench: Bench) -> None:
    assert bench.entry(wire.LOOKUP, ROOT, b"none\0")[:2] == (0, VALID_SECONDS)


def test_batch_forget_counts_what_is_there(bench: Bench) -> None:
    pairs = struct.pack("=QQQQ", bench.file, 1, bench.directory, 1)
    body = struct.pack("=II", 1000, 0) + pairs  # claims more than it holds
    header = wire.IN_HEADER.pack(wire.HEADER_SIZE + len(body), wire.BATCH_FORGET, 0, 0, 0, 0, 0, 0, 0)
    assert bench.raw(header + body) is None
    assert bench.fs.inodes[bench.file].lookups == bench.fs.inodes[bench.directory].lookups == 0


def test_create_is_left_to_mknod_and_open_to_nobody(bench: Bench) -> None:
    for opcode in (
        wire.CREATE,
        wire.OPEN,
        wire.OPENDIR,
        wire.FLUSH,
        wire.INTERRUPT,
        wire.STATX,
        wire.POLL,
        wire.ACCESS,
    ):
        assert bench.ask(opcode, bench.file, bytes(32))[0] == errno.ENOSYS
    assert bench.ask(wire.IOCTL, bench.file, bytes(32))[0] == errno.ENOTTY


def test_without_zero_message_open_handles_are_given() -> None:
    bench = Bench()
    bench.dispatcher = Dispatcher(bench.fs, bench.disguise, zero_message_open=False)
    error, body = bench.ask(wire.OPEN, bench.file, bytes(8))
    assert (error, struct.unpack("=QII", body)) == (0, (0, wire.FOPEN_KEEP_CACHE, 0))
    error, body = bench.ask(wire.OPENDIR, ROOT, bytes(8))
    assert struct.unpack("=QII", body)[1] == wire.FOPEN_KEEP_CACHE | wire.FOPEN_CACHE_DIR


def test_setattr_sets_what_is_valid_and_nothing_else(bench: Bench) -> None:
    before = bench.fs.getattr(bench.file)
    mtime = before.mtime_ns
    body = wire.SETATTR_IN.pack(wire.FATTR_MODE, 0, 0, 99, 0, 1, 2, 3, 4, 5, 6, 0o100600, 0, 7, 8, 0)
    error, _ = bench.ask(wire.SETATTR, bench.file, body)
    after = bench.fs.getattr(bench.file)
    assert (error, after.mode, after.size, after.uid, after.mtime_ns) == (0, stat.S_IFREG | 0o600, 0, 1, mtime)


def test_chown_to_nobody_in_particular_drops_setuid(bench: Bench) -> None:
    bench.fs.setattr(bench.file, mode=0o6755)
    assert bench.ask(wire.SETATTR, bench.file, bytes(wire.SETATTR_IN.size))[0] == 0
    assert bench.fs.getattr(bench.file).mode & 0o7777 == 0o755


def test_times_before_1970(bench: Bench) -> None:
    valid = wire.FATTR_MTIME
    body = wire.SETATTR_IN.pack(valid, 0, 0, 0, 0, 0, -2, 0, 0, 500_000_000, 0, 0, 0, 0, 0, 0)
    _, reply = bench.ask(wire.SETATTR, bench.file, body)
    assert bench.fs.getattr(bench.file).mtime_ns == -1_500_000_000
    fields = struct.unpack("=QII" + wire.ATTR, reply)
    assert (fields[7], fields[10]) == (-2, 500_000_000)


def test_write_borrows_and_read_returns(bench: Bench) -> None:
    body = wire.WRITE_IN.pack(0, 2, 3, 0, 0, 0, 0) + b"abc"
    assert bench.ask(wire.WRITE, bench.file, body) == (0, struct.pack("=II", 3, 0))
    assert bench.ask(wire.READ, bench.file, wire.READ_IN.pack(0, 0, 100, 0, 0, 0, 0)) == (0, b"\0\0abc")
    lying = wire.WRITE_IN.pack(0, 0, 4000, 0, 0, 0, 0) + b"abc"
    assert bench.ask(wire.WRITE, bench.file, lying)[0] == errno.EIO


def test_listing_fits_its_room_and_goes_on_where_it_stopped(bench: Bench) -> None:
    for number in range(100):
        bench.fs.mknod(ROOT, b"n%d" % number, stat.S_IFREG, 0, ME)
    for opcode, plus in ((wire.READDIR, 0), (wire.READDIRPLUS, struct.calcsize("=" + wire.ENTRY))):
        names: list[bytes] = []
        offset = 0
        while True:
            error, body = bench.ask(opcode, ROOT, wire.READ_IN.pack(0, offset, 1024, 0, 0, 0, 0))
            assert error == 0
            assert len(body) <= 1024
            if not body:
                break
            at = 0
            while at < len(body):
                _, offset, length, _ = struct.unpack_from("=" + wire.DIRENT, body, at + plus)
                start = at + plus + wire.DIRENT_SIZE
                names.append(body[start : start + length])
                if plus:
                    node = struct.unpack_from("=Q", body, at)[0]
                    assert (node == 0) == (names[-1] in (b".", b".."))
                at = start + (length + 7) // 8 * 8
        assert sorted(names) == sorted([b".", b"..", *bench.fs.inodes[ROOT].entries])
    first = bench.fs.inodes[bench.fs.inodes[ROOT].entries[b"n0"]]
    assert first.lookups == 2


def test_xattr_sizes(bench: Bench) -> None:
    body = wire.SETXATTR_IN.pack(5, 0, 0, 0) + b"user.x\0value"
    assert bench.ask(wire.SETXATTR, bench.file, body)[0] == 0
    get = b"user.x\0"
    assert bench.ask(wire.GETXATTR, bench.file, struct.pack("=II", 0, 0) + get) == (0, struct.pack("=II", 5, 0))
    assert bench.ask(wire.GETXATTR, bench.file, struct.pack("=II", 5, 0) + get) == (0, b"value")
    assert bench.ask(wire.GETXATTR, bench.file, struct.pack("=II", 4, 0) + get)[0] == errno.ERANGE
    assert bench.ask(wire.LISTXATTR, bench.file, struct.pack("=II", 99, 0)) == (0, b"user.x\0")
    short = wire.SETXATTR_IN.pack(50, 0, 0, 0) + b"user.x\0value"
    assert bench.ask(wire.SETXATTR, bench.file, short)[0] == errno.EIO


def test_setting_an_acl_drops_setgid_when_told(bench: Bench) -> None:
    bench.fs.setattr(bench.file, mode=0o2755)
    body = wire.SETXATTR_IN.pack(1, 0, wire.SETXATTR_ACL_KILL_SGID, 0) + b"user.x\0v"
    assert bench.ask(wire.SETXATTR, bench.file, body)[0] == 0
    assert bench.fs.getattr(bench.file).mode & 0o7777 == 0o755


def test_what_blocks_says_so_before() -> None:
    bench = Bench()
    calls: list[str] = []
    bench.dispatcher = Dispatcher(bench.fs, bench.disguise, about_to_block=lambda: calls.append("block"))
    assert bench.ask(wire.FSYNC, bench.file, bytes(16))[0] == 0
    assert bench.ask(wire.FSYNCDIR, ROOT, bytes(16))[0] == 0
    assert bench.ask(wire.SYNCFS, ROOT, bytes(8))[0] == 0
    assert calls == ["block"] * 3


def test_a_bug_in_the_file_system_is_an_io_error_and_no_more(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.fs.getattr = None  # type: ignore[method-assign,assignment]
    assert bench.ask(wire.GETATTR, ROOT, bytes(16))[0] == errno.EIO
    assert "TypeError" in caplog.text


def test_errors_that_no_reply_can_hold_become_io_errors(bench: Bench) -> None:
    def fail(ino: Ino) -> None:
        raise FsError(4000)

    bench.fs.getattr = fail  # type: ignore[method-assign]
    assert bench.ask(wire.GETATTR, ROOT, bytes(16))[0] == errno.EIO


# The thread that wakes watchers


def test_the_waker_creates_what_is_there(bench: Bench) -> None:
    bench.disguise.thread = WAKER
    bench.disguise.part = Appear(ROOT, b"f")
    assert bench.entry(wire.LOOKUP, ROOT, b"f\0", WAKER)[:2] == (0, 0)
    assert bench.entry(wire.LOOKUP, ROOT, b"d\0", WAKER)[0] == bench.directory
    assert bench.entry(wire.LOOKUP, ROOT, b"f\0")[0] == bench.file  # others see the truth
    made = bench.entry(wire.MKNOD, ROOT, wire.MKNOD_IN.pack(stat.S_IFREG, 0, 0, 0) + b"f\0", WAKER)
    assert made[:2] == (bench.file, VALID_SECONDS)
    assert bench.fs.inodes[bench.file].lookups == 3
    bench.disguise.part = Appear(ROOT, b"d")
    assert bench.entry(wire.MKDIR, ROOT, wire.MKDIR_IN.pack(0, 0) + b"d\0", WAKER)[0] == bench.directory
    assert bench.entry(wire.SYMLINK, ROOT, b"d\0-\0", WAKER)[0] == bench.directory


def test_the_waker_removes_what_is_gone_and_its_lookup_is_not_counted(bench: Bench) -> None:
    bench.fs.unlink(ROOT, b"f")  # it lives on: the kernel holds one lookup
    bench.disguise.thread = WAKER
    bench.disguise.part = Vanish(ROOT, b"f", bench.file, stat.S_IFREG)
    assert bench.entry(wire.LOOKUP, ROOT, b"f\0", WAKER)[:2] == (bench.file, 0)
    assert bench.ask(wire.UNLINK, ROOT, b"f\0", WAKER)[0] == 0
    bench.disguise.part = None
    assert bench.ask(wire.UNLINK, ROOT, b"f\0", WAKER)[0] == errno.ENOENT
    assert bench.fs.inodes[bench.file].lookups == 1
    forget = wire.IN_HEADER.pack(wire.HEADER_SIZE + 8, wire.FORGET, 0, bench.file, 0, 0, 0, 0, 0) + struct.pack("=Q", 2)
    assert bench.raw(forget) is None
    assert bench.file not in bench.fs.inodes
    assert not bench.disguise.lent


def test_the_waker_removes_even_what_nobody_knows_any_more(bench: Bench) -> None:
    bench.fs.unlink(ROOT, b"f")
    bench.fs.forget(bench.file, 1)
    bench.disguise.thread = WAKER
    bench.disguise.part = Vanish(ROOT, b"f", bench.file, stat.S_IFREG | 0o600)
    assert bench.entry(wire.LOOKUP, ROOT, b"f\0", WAKER)[:3] == (bench.file, 0, stat.S_IFREG | 0o600)


def test_the_waker_touches_without_changing(bench: Bench) -> None:
    before = (bench.fs.getattr(bench.file).mtime_ns, bench.fs.getattr(bench.file).ctime_ns)
    bench.disguise.thread = WAKER
    bench.disguise.part = Touch(bench.file)
    valid = wire.FATTR_SIZE | wire.FATTR_MTIME | wire.FATTR_MTIME_NOW
    body = wire.SETATTR_IN.pack(valid, 0, 0, 500, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    assert bench.ask(wire.SETATTR, bench.file, body, WAKER)[0] == 0
    after = bench.fs.getattr(bench.file)
    assert (after.mtime_ns, after.ctime_ns, after.size) == (*before, 0)
    assert bench.ask(wire.SETATTR, bench.directory, body, WAKER)[0] == 0
    assert bench.fs.getattr(bench.directory).mtime_ns > before[0]


# Nonsense

_BENCH = Bench()
_OPCODES = sorted(_BENCH.dispatcher.handlers)


def check_any_answer(request: bytes) -> None:
    """Whatever was asked, the answer is well-formed or none."""
    reply = _BENCH.raw(request)
    if reply is None:
        return
    whole = reply if isinstance(reply, bytes) else b"".join(map(bytes, reply))
    length, error, unique = wire.OUT_HEADER.unpack_from(whole)
    assert length == len(whole)
    assert -512 < error <= 0
    assert unique == struct.unpack_from("=Q", request, 8)[0]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_survived(request_bytes: bytes) -> None:
    check_any_answer(request_bytes)


@settings(max_examples=600, deadline=None)
@given(
    st.sampled_from(_OPCODES) | st.integers(0, 2**32 - 1),
    st.integers(0, 6) | st.integers(0, 2**64 - 1),
    st.binary(max_size=200),
    st.integers(-50, 50) | st.just(0),
    st.integers(0, 2**32 - 1),
)
def test_arbitrary_bodies_are_survived(opcode: int, node: int, body: bytes, lie: int, pid: int) -> None:
    length = max(0, wire.HEADER_SIZE + len(body) + lie)
    check_any_answer(wire.IN_HEADER.pack(length, opcode, 9, node, 1, 2, pid, 0, 0) + body)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(_OPCODES),
    st.integers(0, 6),
    st.lists(st.sampled_from([0, 1, 2, 3, 255, 4096, 2**31, 2**32 - 1]), min_size=2, max_size=30),
    st.sampled_from([b"f\0", b"d\0", b"", b"\0", b"f\0g\0", b"f", b"x" * 300 + b"\0", b"a/b\0", b".\0"]),
)
def test_plausible_nonsense_is_survived(opcode: int, node: int, words: list[int], tail: bytes) -> None:
    body = struct.pack(f"={len(words)}I", *words) + tail
    if opcode in (wire.FALLOCATE, wire.SETATTR, wire.WRITE, wire.COPY_FILE_RANGE, wire.COPY_FILE_RANGE_64):
        node += 1000  # the fake would really make files of 2**63 bytes
    check_any_answer(wire.IN_HEADER.pack(wire.HEADER_SIZE + len(body), opcode, 9, node, 1, 2, 3, 0, 0) + body)
