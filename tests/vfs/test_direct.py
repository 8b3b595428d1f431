"""The loop of the direct channel over a socket that stands for the device, and the notifications; no mount."""

from __future__ import annotations

import errno
import socket
import stat
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from store.refs import Ino
from tests.fakes.memory_fs import MemoryFs
from vfs.channel import ROOT, Caller, Invalidations, Negotiated
from vfs.channels import direct, mountpoint, notify, wire
from vfs.channels.direct import DirectChannel
from vfs.channels.disguise import Disguise
from vfs.channels.dispatch import Dispatcher
from vfs.channels.wire import INIT_FLAGS

pytestmark = pytest.mark.timeout(30)


class Kernel:
    """The other end of the device: one packet is one request or reply."""

    def __init__(self, ours: socket.socket) -> None:
        self._socket = ours
        self._unique = 0

    def send(self, opcode: int, node: int, body: bytes = b"") -> int:
        self._unique += 2
        header = wire.IN_HEADER.pack(wire.HEADER_SIZE + len(body), opcode, self._unique, node, 1, 2, 3, 0, 0)
        self._socket.send(header + body)
        return self._unique

    def receive(self) -> tuple[int, int, bytes]:
        """(errno or notification code, unique, body)."""
        packet = self._socket.recv(1 << 21)
        length, error, unique = wire.OUT_HEADER.unpack_from(packet)
        assert length == len(packet)
        return (error if error > 0 else -error), unique, packet[wire.OUT_SIZE :]

    def ask(self, opcode: int, node: int, body: bytes = b"") -> tuple[int, bytes]:
        unique = self.send(opcode, node, body)
        error, answered, reply = self.receive()
        assert answered == unique
        return error, reply

    def init(self, minor: int = 45, flags: int | None = None) -> None:
        flags = sum(INIT_FLAGS.values()) if flags is None else flags
        self.send(wire.INIT, 0, wire.INIT_IN.pack(7, minor, 1 << 17, flags & 0xFFFFFFFF, flags >> 32))

    def hang_up(self) -> None:
        self._socket.close()


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 21)
        end.settimeout(20)
    theirs.setblocking(True)
    monkeypatch.setattr(mountpoint, "mount", lambda point, allow_other=None: theirs.detach())
    monkeypatch.setattr(mountpoint, "unmount", lambda point, lazy=False: ours.shutdown(socket.SHUT_RDWR))
    yield Kernel(ours)
    ours.close()


@pytest.fixture
def fs() -> MemoryFs:
    fs = MemoryFs()
    fs.mknod(ROOT, b"f", stat.S_IFREG | 0o644, 0, Caller(0, 0, 1, 0))
    return fs


@pytest.fixture
def served(kernel: Kernel, fs: MemoryFs) -> Iterator[DirectChannel]:
    kernel.init()
    channel = DirectChannel(fs, b"/nowhere", threads=2)
    channel.start()
    assert kernel.receive()[0] == 0
    yield channel
    channel.stop()
    assert channel.wait(0)


def test_requests_are_answered_in_turn(kernel: Kernel, served: DirectChannel) -> None:
    assert served.negotiated.zero_message_open
    error, reply = kernel.ask(wire.LOOKUP, ROOT, b"f\0")
    assert error == 0
    node = struct.unpack_from("=Q", reply)[0]
    assert kernel.ask(wire.WRITE, node, wire.WRITE_IN.pack(0, 0, 4, 0, 0, 0, 0) + b"data")[0] == 0
    assert kernel.ask(wire.READ, node, wire.READ_IN.pack(0, 0, 99, 0, 0, 0, 0)) == (0, b"data")
    assert kernel.ask(wire.UNLINK, ROOT, b"none\0")[0] == errno.ENOENT
    assert kernel.ask(4711, ROOT)[0] == errno.ENOSYS
    kernel.send(wire.FORGET, node, bytes(8))
    assert kernel.ask(wire.GETATTR, ROOT, bytes(16))[0] == 0


def test_an_fsync_that_hangs_holds_up_nobody(kernel: Kernel, served: DirectChannel, fs: MemoryFs) -> None:
    release = threading.Event()
    fs.fsync = lambda ino, datasync: release.wait(20) and None  # type: ignore[method-assign,assignment]
    waiting = kernel.send(wire.FSYNC, 2, bytes(16))
    assert kernel.ask(wire.GETATTR, ROOT, bytes(16))[0] == 0
    release.set()
    assert kernel.receive()[:2] == (0, waiting)


def test_the_file_system_may_say_that_it_blocks(kernel: Kernel, served: DirectChannel, fs: MemoryFs) -> None:
    release = threading.Event()

    def slow(ino: Ino, offset: int, size: int) -> bytes:
        served.relieve()
        release.wait(20)
        return b"late"

    fs.read = slow  # type: ignore[method-assign]
    waiting = kernel.send(wire.READ, 2, wire.READ_IN.pack(0, 0, 99, 0, 0, 0, 0))
    assert kernel.ask(wire.GETATTR, ROOT, bytes(16))[0] == 0
    release.set()
    assert kernel.receive() == (0, waiting, b"late")


def test_the_end_of_the_mount_ends_all_threads(kernel: Kernel, fs: MemoryFs) -> None:
    kernel.init()
    channel = DirectChannel(fs, b"/nowhere")
    channel.start()
    kernel.receive()
    kernel.hang_up()
    assert channel.wait(10)
    channel.stop()
    channel.invalidate(Invalidations(attributes=(ROOT,)))  # nobody there any more: no error


def test_requests_before_init_are_refused(kernel: Kernel, fs: MemoryFs) -> None:
    kernel.send(wire.GETATTR, ROOT, bytes(16))
    kernel.init(40)
    channel = DirectChannel(fs, b"/nowhere", threads=1)
    channel.start()
    assert kernel.receive()[0] == errno.EIO
    assert kernel.receive()[0] == 0
    assert channel.negotiated.protocol == (7, 40)
    channel.stop()


def test_too_old_a_kernel_is_a_clear_error(kernel: Kernel, fs: MemoryFs, monkeypatch: pytest.MonkeyPatch) -> None:
    unmounted: list[bytes] = []
    monkeypatch.setattr(mountpoint, "unmount", lambda point, lazy: unmounted.append(point))
    kernel.init(30)
    channel = DirectChannel(fs, b"/nowhere")
    with pytest.raises(mountpoint.MountError, match=r"speaks FUSE 7\.30") as caught:
        channel.start()
    assert "pyfuse3" in caught.value.hint
    assert kernel.receive()[0] == errno.EPROTO
    assert unmounted == [b"/nowhere"]
    assert channel.wait(0)


class Refusing:
    """A member of a crew that never is relieved, for one run of the loop."""

    def __init__(self) -> None:
        self.turns = 0
        self.crew: Any = self
        self.leader = self
        self.dozing = False


@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.EINVAL, [b"first", b"second"]), (errno.ENOENT, [b"first"]), (errno.ENODEV, [b"first"])],
)
def test_write_errors(monkeypatch: pytest.MonkeyPatch, fs: MemoryFs, number: int, expected: list[bytes]) -> None:
    """A refused reply is replaced by EIO; one whose request was aborted is dropped; without a device all is over."""
    requests = iter([wire.IN_HEADER.pack(wire.HEADER_SIZE, wire.GETATTR, 7, ROOT, 0, 0, 0, 0, 0)])
    written: list[bytes] = []

    def readv(fd: int, buffers: tuple[bytearray]) -> int:
        request = next(requests, None)
        if request is None:
            raise OSError(errno.ENODEV, "gone")
        buffers[0][: len(request)] = request
        return len(request)

    def write(fd: int, data: bytes) -> int:
        written.append(data)
        if len(written) == 1:
            raise OSError(number, "no")
        return len(data)

    monkeypatch.setattr(direct.os, "readv", readv)
    monkeypatch.setattr(direct.os, "write", write)
    member: Any = Refusing()
    assert direct.serve(99, Dispatcher(fs, Disguise(fs)), member, direct.Desk(99)) is False
    assert len(written) == len(expected)
    if len(expected) == 2:
        assert wire.OUT_HEADER.unpack(written[1]) == (wire.OUT_SIZE, -errno.EIO, 7)


@pytest.mark.parametrize("number", [errno.EINTR, errno.ENOENT, errno.EAGAIN])
def test_reads_that_are_to_be_tried_again(monkeypatch: pytest.MonkeyPatch, fs: MemoryFs, number: int) -> None:
    errors = iter([number, errno.ECONNABORTED])

    def readv(fd: int, buffers: tuple[bytearray]) -> int:
        raise OSError(next(errors), "no")

    monkeypatch.setattr(direct.os, "readv", readv)
    member: Any = Refusing()
    assert direct.serve(99, Dispatcher(fs, Disguise(fs)), member, direct.Desk(99)) is False
    assert next(errors, None) is None


# Notifications


def codes(invalidations: Invalidations, epoch: bool = True) -> list[int]:
    negotiated = Negotiated((7, 45), (), 1 << 20, True, epoch, True, False)
    found = []
    for message in notify.messages(invalidations, negotiated):
        length, code, unique = wire.OUT_HEADER.unpack_from(message)
        assert (length, unique) == (len(message), 0)
        found.append(code)
    return found


def test_names_come_first_then_their_directories_then_the_rest() -> None:
    invalidations = Invalidations(
        entries=((Ino(1), b"a"), (Ino(1), b"b")),
        removed=((Ino(5), Ino(6), b"c"),),
        contents=(Ino(9),),
        attributes=(Ino(8),),
    )
    assert codes(invalidations) == [6, 3, 3, 2, 2, 2, 2]
    messages = list(notify.messages(invalidations, Negotiated((7, 45), (), 1, True, True, True, False)))
    assert messages[0][wire.OUT_SIZE :] == struct.pack("=QQII", 5, 6, 1, 0) + b"c\0"
    assert messages[1][wire.OUT_SIZE :] == struct.pack("=QII", 1, 1, 0) + b"a\0"
    assert [struct.unpack("=Qqq", m[wire.OUT_SIZE :]) for m in messages[3:]] == [
        (1, 0, 0),
        (5, 0, 0),
        (9, 0, 0),
        (8, -1, 0),
    ]


def test_before_many_names_goes_one_epoch_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "EPOCH_ENTRIES", 3)
    many = Invalidations(entries=tuple((Ino(1), b"%d" % number) for number in range(4)))
    assert codes(many) == [8, 3, 3, 3, 3, 2]
    assert codes(many, epoch=False) == [3, 3, 3, 3, 2]
    assert codes(Invalidations(everything=True)) == [8]
    assert codes(Invalidations(everything=True), epoch=False) == []
