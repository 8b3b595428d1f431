"""The life of one daemon: from a request to serve a workspace to its last breath.

Owns the order of starting and stopping: claim, refusals, entry, serve, socket, ready; then on a client's unmount, on
SIGTERM or SIGINT (which keep the changes in the store), or when the mount is gone, drain, close, withdraw the entry.
Does not own the socket (``server``), what is served (``serving``), or the log file (``daemon_log``).

Concurrency: the main thread runs trio; the channel's threads run beside it and know nothing of it; ``served.wait``
blocks a thread of its own.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from harness import messages, preload, refusals
from harness.config import load
from harness.daemon_log import log_to_file, log_to_terminal
from harness.dispatch import Dispatcher
from harness.events import Events
from harness.failure import PlyfsError, exit_status
from harness.launch import log_path
from harness.places import home_directory
from harness.registry import Claim, Entry, Registry, create_private, process_start
from harness.server import CALL_EVENTS, Server, listen
from harness.serving import Opener, ServedWorkspace, ServeOptions, ServeRequest, open_workspace
from harness.sessions import Sessions
from harness.systems import system
from harness.version import VERSION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

log = logging.getLogger("plyfs.daemon")

STOPPING = frozenset({signal.SIGTERM, signal.SIGINT})
LEFT_ALONE = frozenset({signal.SIGHUP} if hasattr(signal, "SIGHUP") else ())
EXIT_SECONDS = 10.0
"""A thread that hangs must not keep a process alive that has let go of everything."""
FLUSH_SECONDS = 1.0


def main(arguments: list[str], opener: Opener = open_workspace) -> int:
    """A detached daemon: ``arguments`` is one ServeRequest as JSON; the outcome goes to the readiness pipe."""
    os.chdir("/")
    request = messages.typed(json.loads(arguments[0]), ServeRequest)
    report = PipeReport(system.outcome_pipe())
    status = run(request, opener, report)
    last = threading.Timer(EXIT_SECONDS, os._exit, (status,))
    last.daemon = True
    last.start()
    return status


def run(request: ServeRequest, opener: Opener, report: Report) -> int:
    """Serve until told to stop; returns the exit status. Every failure goes to ``report``."""
    os.umask(0o077)
    system.expect_many_files()
    try:
        Daemon(request, opener, report).run()
    except Exception as error:
        failure = messages.failure_of(error)
        if failure.code == "internal":
            log.exception("the daemon failed")
        else:
            log.error("%s", failure.message)
        report.failed(failure)
        return exit_status(failure.code)
    return 0


class Report:
    """How whoever started the daemon learns what became of it."""

    def begin(self, options: ServeOptions) -> None:
        """The configuration is known."""

    def progress(self, data: object) -> None:
        """How far starting is."""

    def ready(self, result: messages.MountResult) -> bool:
        """It serves; False if nobody wants that any more."""
        raise NotImplementedError

    def failed(self, failure: PlyfsError) -> None:
        """It does not, or no longer."""
        raise NotImplementedError


class PipeReport(Report):
    """Lines on the readiness pipe: how far it is, and then what became of it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def begin(self, options: ServeOptions) -> None:
        """Log to the file from now on."""
        log_to_file(log_path(options.workspace), options.config.log)

    def progress(self, data: object) -> None:
        """Tell it, as long as the pipe is open."""
        if self._descriptor >= 0:
            try:
                os.write(self._descriptor, messages.line({"progress": data}))
            except BrokenPipeError:
                pass

    def ready(self, result: messages.MountResult) -> bool:
        """Tell it, and close the pipe."""
        return self._tell({"ready": result})

    def failed(self, failure: PlyfsError) -> None:
        """Tell it, unless the pipe is closed because it has served."""
        self._tell({"error": failure.body()})

    def _tell(self, value: dict[str, Any]) -> bool:
        if self._descriptor < 0:
            return False
        try:
            with open(self._descriptor, "wb") as pipe:
                pipe.write(messages.line(value))
        except BrokenPipeError:
            return False
        finally:
            self._descriptor = -1
        return True


class TerminalReport(Report):
    """For ``mount --foreground``."""

    def __init__(self, show: Callable[[messages.MountResult], None]) -> None:
        self._show = show
        self.failure: PlyfsError | None = None

    def begin(self, options: ServeOptions) -> None:
        """Log to the terminal."""
        log_to_terminal(options.config.log)

    def ready(self, result: messages.MountResult) -> bool:
        """Show it."""
        self._show(result)
        return True

    def failed(self, failure: PlyfsError) -> None:
        """Keep it for the command."""
        self.failure = failure


class Daemon:
    """One daemon."""

    def __init__(self, request: ServeRequest, opener: Opener, report: Report) -> None:
        self._request = request
        self._opener = opener
        self._report = report
        self._registry = Registry()
        self._events = Events()
        self._stop = trio.Event()
        self._with_git = False

    def run(self) -> None:
        """Everything, from the claim to its release. Raises PlyfsError or StoreError if it does not come to serving."""
        request = self._request
        self._registry.create()
        config = load(request.workspace)
        if request.all is not None:
            config = msgspec.structs.replace(config, scan=msgspec.structs.replace(config.scan, all=request.all))
        options = ServeOptions(
            workspace=request.workspace,
            mountpoint=request.mountpoint,
            mode=request.mode or config.mount.mode,
            channel=request.channel or config.mount.channel,
            home=home_directory(),
            config=config,
        )
        self._with_git = config.restore.with_git
        self._report.begin(options)
        claim = Claim(self._registry, request.workspace, "owner")
        if not claim.acquire():
            raise PlyfsError(
                "locked", f"another daemon serves {request.workspace}", "use it as it is, or `plyfs unmount` it first"
            )
        try:
            refusals.check(request.workspace, request.mountpoint, options.home, self._registry)
            preload.shield(options)
            self._serve(options)
        finally:
            claim.release()
        log.info("stopped")

    def _serve(self, options: ServeOptions) -> None:
        entry = self._entry(options)
        log.info("process %d starts to serve %s", os.getpid(), options.workspace)
        served = self._opener(options, self._hear)
        try:
            self._registry.write(entry)
            served.start()
            trio.run(self._main, served, entry)
        finally:
            served.close()
            self._registry.remove(entry)

    def _hear(self, name: str, data: object) -> None:
        """Pass on what the served workspace tells. Of its calls the server tells itself, when they are answered."""
        if name == "progress":
            self._report.progress(data)
        if name not in CALL_EVENTS:
            self._events.publish_from_thread(name, data)

    def _entry(self, options: ServeOptions) -> Entry:
        return Entry(
            workspace=options.workspace,
            mountpoint=options.mountpoint or options.workspace,
            socket=self._registry.socket_path(options.workspace),
            pid=os.getpid(),
            start_time=process_start(os.getpid()),
            mode=options.mode,
            channel=options.channel,
            state="starting",
            request=messages.to_object(self._request),
        )

    async def _main(self, served: ServedWorkspace, entry: Entry) -> None:
        self._events.attach()
        with trio.open_signal_receiver(*STOPPING, *LEFT_ALONE) as signals:
            create_private(os.path.dirname(entry.socket))
            listener, endpoint = listen(entry.socket)
            entry.socket, entry.token = endpoint.address, endpoint.token
            sessions = Sessions(served.store_directory(), served.knows, time.time_ns)
            dispatcher = Dispatcher(served, self._with_git, sessions, entry.workspace)
            server = Server(dispatcher, self._events, self._hello(entry), entry.token)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.serve, listener)
                nursery.start_soon(self._watch_signals, signals)
                nursery.start_soon(self._watch_mount, served, server)
                nursery.start_soon(self._watch_unmount, server)
                self._announce(served, entry)
                await self._stop.wait()
                entry.state = "stopping"
                self._registry.write(entry)
                await server.drain()
                self._events.end()
                with trio.move_on_after(FLUSH_SECONDS):
                    await self._events.flushed()
                nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await listener.aclose()
                await trio.to_thread.run_sync(sessions.close)
                if server.unmount_result is None:
                    await trio.to_thread.run_sync(self._keep, served)

    def _hello(self, entry: Entry) -> messages.HelloResult:
        return messages.HelloResult(
            protocol=messages.PROTOCOL_VERSION,
            version=VERSION,
            pid=entry.pid,
            workspace=entry.workspace,
            mountpoint=entry.mountpoint,
            methods=list(messages.METHODS),
        )

    def _announce(self, served: ServedWorkspace, entry: Entry) -> None:
        status = served.status()
        entry.mode, entry.channel, entry.mountpoint = status.mode, status.channel, status.mountpoint
        entry.state = "ready"
        self._registry.write(entry)
        result = messages.MountResult(
            workspace=entry.workspace,
            mountpoint=entry.mountpoint,
            mode=entry.mode,
            channel=entry.channel,
            head=status.head,
            pid=entry.pid,
            socket=entry.socket,
            notes=served.notes(),
        )
        log.info("serves %s at %s (%s, %s)", entry.workspace, entry.mountpoint, entry.mode, entry.channel)
        if not self._report.ready(result):
            log.warning("nobody waits for this daemon any more")
            self._stop.set()

    async def _watch_signals(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            log.info("got signal %s", signal.Signals(number).name)
            if number not in LEFT_ALONE:
                self._stop.set()

    async def _watch_mount(self, served: ServedWorkspace, server: Server) -> None:
        while True:
            begun = server.unmounts_begun
            await trio.to_thread.run_sync(served.wait, abandon_on_cancel=True)
            await server.settled()
            if server.unmount_result is not None:
                return
            if server.unmounts_begun == begun:
                break
            # An unmount took the mount away and failed afterwards: then it is served again, or gone for good.
        log.warning("the mount is gone, and no client asked for that")
        self._stop.set()

    async def _watch_unmount(self, server: Server) -> None:
        await server.unmounted.wait()
        self._stop.set()

    def _keep(self, served: ServedWorkspace) -> None:
        """Stop serving, with the changes left in the store for the next mount. Open files do not hold this up."""
        try:
            result = served.unmount("keep", lazy=True)
        except Exception:
            log.exception("cannot unmount; the next command mends what is left")
        else:
            log.info("unmounted, head %s", result.head)


def foreground(
    request: ServeRequest, show: Callable[[messages.MountResult], None], opener: Opener = open_workspace
) -> None:
    """Serve in this very process until a signal or an unmount. Raises PlyfsError."""
    report = TerminalReport(show)
    run(request, opener, report)
    if report.failure is not None:
        raise report.failure
