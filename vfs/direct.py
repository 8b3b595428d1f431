"""The direct channel: the FUSE protocol spoken to ``/dev/fuse`` by plain threads.

Owns the descriptor of one mount, its serving threads, and the writing of notifications. What requests mean is
``dispatch``, what was agreed with the kernel ``negotiation``. Knows neither trio nor pyfuse3.

Concurrency: every serving thread reads a request, has it answered, writes the reply; whichever is idle takes the next
request, so a slow one holds up nobody else. Serving threads never touch a path inside the mount and never write
notifications; ``invalidate`` and ``wake`` may block on requests in flight and are for other threads.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
from collections.abc import Iterable

from vfs import mountpoint, negotiation, notify, wire
from vfs.channel import FileSystem, Invalidations, Negotiated, Touched
from vfs.disguise import Disguise
from vfs.dispatch import Dispatcher, error_reply
from vfs.watchers import Watchers

log = logging.getLogger(__name__)

BUFFER_SIZE = negotiation.MAX_WRITE + 8192
"""A WRITE of max_write with its headers; the kernel refuses to fill a smaller one."""

DEFAULT_THREADS = 3

GONE = (errno.ENODEV, errno.ECONNABORTED, errno.EBADF)
"""Read errors that end the channel: unmounted, aborted, closed."""

AGAIN = (errno.ENOENT, errno.EINTR, errno.EAGAIN)
"""Read errors that mean nothing: the request was taken back."""


class DirectChannel:
    """Serves ``fs`` at the directory ``point`` (absolute). ``threads`` answer at once; ``clone`` gives each thread a
    device descriptor of its own.
    """

    name = "direct"

    def __init__(
        self,
        fs: FileSystem,
        point: bytes,
        *,
        threads: int = DEFAULT_THREADS,
        allow_other: bool | None = None,
        clone: bool = False,
        options: negotiation.Options | None = None,
    ) -> None:
        self._fs = fs
        self._point = point
        self._count = threads
        self._allow_other = allow_other
        self._clone = clone
        self._options = options or negotiation.Options()
        self._disguise = Disguise(fs)
        self._watchers = Watchers(point, self._disguise, self._drop)
        self._threads: list[threading.Thread] = []
        self._fd = -1
        self._closing = threading.Lock()
        self._serving = 0
        self._negotiated: Negotiated | None = None

    @property
    def negotiated(self) -> Negotiated:
        assert self._negotiated is not None, "start first"
        return self._negotiated

    def start(self) -> None:
        self._fd = mountpoint.mount(self._point, allow_other=self._allow_other)
        try:
            self._negotiated = self._initialise()
        except BaseException:
            os.close(self._fd)
            self._fd = -1
            mountpoint.unmount(self._point, lazy=True)
            raise
        dispatcher = Dispatcher(
            self._fs,
            self._disguise,
            zero_message_open=self._negotiated.zero_message_open,
            extended_setxattr="SETXATTR_EXT" in self._negotiated.flags,
        )
        self._serving = self._count
        for number in range(self._count):
            thread = threading.Thread(
                target=self._run, args=(dispatcher, number), name=f"plyfs-fuse-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        for thread in self._threads:
            thread.join(timeout)
            if thread.is_alive():
                return False
        return True

    def stop(self, lazy: bool = False) -> None:
        if not self.wait(0):
            try:
                mountpoint.unmount(self._point, lazy=lazy)
            except mountpoint.MountError:
                if not self.wait(1):  # somebody else has unmounted it, or is about to
                    raise
        if not lazy:
            self.wait()

    def invalidate(self, invalidations: Invalidations) -> None:
        for message in notify.messages(invalidations, self.negotiated):
            self._notify(message)

    def wake(self, touched: Iterable[Touched]) -> None:
        self._watchers.wake(touched)

    def _drop(self, invalidations: Invalidations) -> None:
        self.invalidate(invalidations)

    def _notify(self, message: bytes) -> None:
        try:
            os.write(self._fd, message)
        except OSError as error:
            # ENOENT: the kernel does not know it, which is as well. ENOTEMPTY, EBUSY: a directory whose entries were
            # looked up again or that is mounted upon, after its name was dropped; ENOTDIR: the parent is a file now.
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EBUSY, errno.ENOTDIR, *GONE):
                log.warning("notification %r: %s", message[:64], error)

    def _initialise(self) -> Negotiated:
        """Answer INIT, which the kernel sends first and alone."""
        buffer = bytearray(BUFFER_SIZE)
        view = memoryview(buffer)
        while True:
            length = os.readv(self._fd, (buffer,))
            _, opcode, unique, *_ = wire.IN_HEADER.unpack_from(buffer)
            if opcode != wire.INIT:
                os.write(self._fd, error_reply(unique, errno.EIO))
                continue
            try:
                agreement = negotiation.answer(unique, view[wire.HEADER_SIZE : length], self._options)
            except negotiation.TooOldError as error:
                os.write(self._fd, error_reply(unique, errno.EPROTO))
                raise mountpoint.MountError(str(error), "use --channel pyfuse3 or --mode scan", errno.EPROTO) from error
            os.write(self._fd, agreement.reply)
            if agreement.negotiated is not None:
                return agreement.negotiated

    def _run(self, dispatcher: Dispatcher, number: int) -> None:
        fd = self._fd
        try:
            if self._clone and number:
                fd = clone(fd)
            serve(fd, dispatcher)
        except Exception:
            log.exception("serving thread %d", number)
        finally:
            with self._closing:
                self._serving -= 1
                last = self._serving == 0
            if fd != self._fd:
                os.close(fd)
            if last:
                os.close(self._fd)
                self._fd = -1


def clone(fd: int) -> int:
    """Another descriptor of the same connection; a request read from one is answered on the same one."""
    other = os.open(mountpoint.DEVICE, os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(other, wire.DEV_IOC_CLONE, fd.to_bytes(4, "little"))
    return other


def serve(fd: int, dispatcher: Dispatcher) -> None:
    """Answer requests from ``fd`` until the mount is gone. The loop that everything waits for: keep it bare."""
    buffer = bytearray(BUFFER_SIZE)
    view = memoryview(buffer)
    buffers = (buffer,)
    answer = dispatcher.answer
    readv, write, writev = os.readv, os.write, os.writev
    while True:
        try:
            length = readv(fd, buffers)
        except OSError as error:
            if error.errno in AGAIN:
                continue
            if error.errno not in GONE:
                log.error("reading %s: %s", mountpoint.DEVICE, error)
            return
        reply = answer(view, length)
        try:
            if isinstance(reply, bytes):
                write(fd, reply)
            elif reply is not None:
                writev(fd, reply)
        except OSError as error:
            if error.errno == errno.ENOENT:  # the request was aborted meanwhile
                continue
            if error.errno in GONE:
                return
            log.error("reply to operation %d: %s", wire.IN_HEADER.unpack_from(buffer)[1], error)
            try:
                write(fd, error_reply(wire.IN_HEADER.unpack_from(buffer)[2], errno.EIO))
            except OSError:
                continue
