"""The direct channel: the FUSE protocol spoken to ``/dev/fuse`` by plain threads.

Owns the descriptor of one mount, the loop that reads requests and writes replies, and the writing of notifications.
What requests mean is ``dispatch``, what was agreed with the kernel ``negotiation``, which thread serves ``crew``.

Concurrency: serving threads never touch a path inside the mount and never write notifications; ``invalidate`` and
``wake`` may block on requests in flight and are for other threads.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable

from vfs.channel import FileSystem, Invalidations, Negotiated, Touched
from vfs.channels import mountpoint, negotiation, notify, wire
from vfs.channels.busypoll import BusyPoll
from vfs.channels.crew import Crew, Member
from vfs.channels.disguise import Disguise
from vfs.channels.dispatch import Dispatcher, Reply, error_reply
from vfs.channels.watchers import Watchers

log = logging.getLogger(__name__)

BUFFER_SIZE = negotiation.MAX_WRITE + 8192
"""A WRITE of max_write with its headers; the kernel refuses to fill a smaller one."""

DEFAULT_THREADS = 4

GONE = (errno.ENODEV, errno.ECONNABORTED, errno.EBADF)
"""Read errors that end the channel: unmounted, aborted, closed."""

AGAIN = (errno.ENOENT, errno.EINTR, errno.EAGAIN)
"""Read errors that mean nothing: the request was taken back."""


class DirectChannel:
    """Serves ``fs`` at the directory ``point`` (absolute). Of ``threads`` one serves and the others relieve it."""

    name = "direct"

    def __init__(
        self,
        fs: FileSystem,
        point: bytes,
        *,
        threads: int = DEFAULT_THREADS,
        allow_other: bool | None = None,
        options: negotiation.Options | None = None,
    ) -> None:
        self._fs = fs
        self._point = point
        self._count = threads
        self._allow_other = allow_other
        self._options = options or negotiation.Options()
        self._disguise = Disguise(fs)
        self._watchers = Watchers(point, self._disguise, self._drop)
        self._crew: Crew | None = None
        self._desks: dict[Member, Desk] = {}
        self._dispatcher: Dispatcher | None = None
        self._fd = -1
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
        self._crew = Crew(self._count, self._serve, self._close)
        self._dispatcher = Dispatcher(
            self._fs,
            self._disguise,
            about_to_block=self._crew.relieve,
            zero_message_open=self._negotiated.zero_message_open,
            extended_setxattr="SETXATTR_EXT" in self._negotiated.flags,
        )
        self._crew.start()

    def wait(self, timeout: float | None = None) -> bool:
        return self._crew is None or self._crew.wait(timeout)

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

    def relieve(self) -> None:
        """For the file system: the calling thread is about to block (on a disk, say); let another one serve."""
        if self._crew is not None:
            self._crew.relieve()

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

    def _serve(self, member: Member) -> bool:
        assert self._dispatcher is not None
        desk = self._desks.get(member)
        if desk is None:
            desk = self._desks[member] = Desk(self._fd)
        desk.poll.begin()
        return serve(self._fd, self._dispatcher, member, desk)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)


class Desk:
    """What one serving thread needs each time that it leads: a buffer for requests, and how it waits for them."""

    __slots__ = ("buffer", "poll")

    def __init__(self, fd: int) -> None:
        self.buffer = bytearray(BUFFER_SIZE)
        self.poll = BusyPoll(fd)


def serve(fd: int, dispatcher: Dispatcher, member: Member, desk: Desk) -> bool:
    """Answer requests from ``fd`` until the mount is gone (False) or another member leads (True).

    The loop that everything waits for: keep it bare.
    """
    buffer = desk.buffer
    view = memoryview(buffer)
    buffers = (buffer,)
    answer = dispatcher.answer
    crew = member.crew
    readv, write, writev = os.readv, os.write, os.writev
    wait = desk.poll.wait
    reply: Reply = None
    while crew.leader is member:
        if reply is not None:  # nobody waits for what comes after a FORGET, and the thread that caused it needs the GIL
            wait()
        try:
            length = readv(fd, buffers)
        except OSError as error:
            if error.errno in AGAIN:
                continue
            if error.errno not in GONE:
                log.error("reading %s: %s", mountpoint.DEVICE, error)
            return False
        member.turns += 1
        if crew.dozing:
            crew.rouse()
        reply = answer(view, length)
        try:
            if isinstance(reply, bytes):
                write(fd, reply)
            elif reply is not None:
                writev(fd, reply)
            elif not length:
                return False
        except OSError as error:
            if error.errno in GONE:
                return False
            if error.errno != errno.ENOENT:  # which means: the request was aborted meanwhile
                _, opcode, unique, *_ = wire.IN_HEADER.unpack_from(buffer)
                log.error("reply to operation %d: %s", opcode, error)
                _refuse(fd, unique)
        member.turns += 1
    return True


def _refuse(fd: int, unique: int) -> None:
    """The kernel did not like our reply: whoever waits gets EIO instead."""
    try:
        os.write(fd, error_reply(unique, errno.EIO))
    except OSError as error:
        log.error("nor was EIO accepted: %s", error)
