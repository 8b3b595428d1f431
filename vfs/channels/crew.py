"""Who reads the next request: one thread leads, others stand by to relieve it.

Owns the serving threads of the direct channel and whose turn it is. Under the GIL two threads that serve at once only
hinder each other (measured: 60 % more CPU per request with three readers and two busy clients than with one), but a
thread that waits for a disk must not hold up the rest. So one thread, the leader, reads and answers requests until it
is relieved: because it says that it is about to block (``relieve``), or because a lookout sees it busy with one
request for a whole tick. A relieved thread finishes its request and stands by.

Concurrency: the leader is changed under a lock; a serving thread looks without it once a request, which at worst lets
two threads serve for one request. While nothing happens the lookout sleeps, too.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

TICK_SECONDS = 0.01
DOZE_TICKS = 100
"""The lookout goes to sleep after so many ticks without a request, until there is one."""


class Member:
    """One serving thread. ``turns`` counts the beginnings and ends of its requests: odd while it is busy."""

    __slots__ = ("crew", "gate", "thread", "turns")

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.turns = 0
        self.gate = threading.Semaphore(0)
        self.thread: threading.Thread | None = None


class Crew:
    """``size`` threads of which one at a time runs ``serve``, which returns True when its member has been relieved
    (``member is not crew.leader``) and False when there is nothing left to serve.
    """

    def __init__(self, size: int, serve: Callable[[Member], bool], ended: Callable[[], None]) -> None:
        self._serve = serve
        self._when_ended = ended
        self._lock = threading.Lock()
        self._members = [Member(self) for _ in range(size)]
        self._standby = list(self._members[1:])
        self._running = size
        self._over = False
        self._lookout: threading.Thread | None = None
        self._awake = threading.Semaphore(0)
        self.leader: Member = self._members[0]
        self.dozing = False
        """The lookout sleeps: the leader is to call ``rouse`` when it gets a request."""

    def start(self) -> None:
        self.leader.gate.release()
        for number, member in enumerate(self._members):
            member.thread = threading.Thread(target=self._run, args=(member,), name=f"plyfs-fuse-{number}", daemon=True)
            member.thread.start()
        self._lookout = threading.Thread(target=self._watch, name="plyfs-lookout", daemon=True)
        self._lookout.start()

    def wait(self, timeout: float | None) -> bool:
        """True once all threads have ended."""
        for member in self._members:
            if member.thread is not None:
                member.thread.join(timeout)
                if member.thread.is_alive():
                    return False
        return True

    def relieve(self) -> None:
        """The calling thread is about to block: if it leads, let another one take over. Cheap for anybody else."""
        leader = self.leader
        if leader.thread is threading.current_thread():
            self._appoint(leader)

    def rouse(self) -> None:
        """Wake the lookout."""
        self.dozing = False
        self._awake.release()

    def _appoint(self, relieved: Member) -> None:
        with self._lock:
            if self.leader is relieved and self._standby and not self._over:
                self.leader = self._standby.pop()
                self.leader.gate.release()

    def _run(self, member: Member) -> None:
        try:
            while True:
                member.gate.acquire()
                if self._over or not self._serve(member):
                    break
                with self._lock:
                    self._standby.append(member)
        except BaseException:
            log.exception("a serving thread")
            raise
        finally:
            self._end()

    def _end(self) -> None:
        """One thread ends when the mount is gone: all are to, and the last turns off the light."""
        with self._lock:
            self._over = True
            self._running -= 1
            last = self._running == 0
        for member in self._members:
            member.gate.release()
        self._awake.release()
        if last:
            self._when_ended()

    def _watch(self) -> None:
        leader, turns, idle = self.leader, -1, 0
        while not self._over:
            now = self.leader.turns
            if leader is not self.leader or turns != now:
                idle = 0
            elif now & 1:
                self._appoint(leader)
            else:
                idle += 1
            leader, turns = self.leader, self.leader.turns
            if idle < DOZE_TICKS:
                self._awake.acquire(timeout=TICK_SECONDS)
            else:
                self.dozing = True
                self._awake.acquire()
                idle = 0
