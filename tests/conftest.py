"""What all tests share: a private home for each, workspaces that are always unmounted, and loud reasons for skipping.

With ``CI=true`` nothing is skipped for want of something on the machine: it fails, so that a green run has run it all.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import language
from tests.served import Plyfs, Served, Watchdog

# nohup and the background jobs of shells have these ignored, and so would all that is started from here.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

WATCHDOG_MARGIN = 15
"""Seconds before pytest's own timeout at which the daemons of a hanging test are killed."""


def lacking(reason: str) -> None:
    """Skip, loudly: the machine lacks what the test needs. In CI that is a failure."""
    if os.environ.get("CI"):
        pytest.fail(f"CI must have all that the tests need: {reason}", pytrace=False)
    pytest.skip(f"NOT RUN: {reason}")


def need_programs(*names: str) -> None:
    """Skip unless the programs are there."""
    for name in names:
        if shutil.which(name) is None:
            lacking(f"no program {name!r} (`make test` installs it)")


def may_make_devices(directory: Path) -> bool:
    """True if device files of any kind can be made in ``directory``: containers rarely may."""
    for kind, device in ((stat.S_IFBLK, os.makedev(8, 1)), (stat.S_IFCHR, os.makedev(0, 0))):
        try:
            os.mknod(directory / f"device-{os.getpid()}", kind | 0o600, device)
        except PermissionError:
            return False
        os.unlink(directory / f"device-{os.getpid()}")
    return True


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Marks that say what a test needs."""
    if item.get_closest_marker("mounted") and not os.access("/dev/fuse", os.R_OK | os.W_OK):
        lacking("no usable /dev/fuse, so nothing can be mounted")
    if item.get_closest_marker("root") and os.geteuid() != 0:
        lacking("it needs root")


def _seconds(request: pytest.FixtureRequest) -> float:
    marker = request.node.get_closest_marker("timeout")
    if marker is not None and marker.args:
        return float(marker.args[0])
    return float(request.config.getini("timeout") or 120)


@pytest.fixture(scope="session", autouse=True)
def others_may_pass(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests that run something as another user need the way to their directory open; pytest makes it private."""
    base = tmp_path_factory.getbasetemp()
    for path in (base, *base.parents):
        status = path.stat()
        if status.st_uid == os.geteuid() and path != Path(tempfile.gettempdir()):
            path.chmod(stat.S_IMODE(status.st_mode) | 0o011)
        if path.parent == Path(tempfile.gettempdir()):
            break


@pytest.fixture(autouse=True)
def private_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees the user's own store: PLYFS_HOME and the configuration are directories of its own."""
    top = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("PLYFS_HOME", str(top / "plyfs"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(top / "config"))
    # Nor is told things in the user's own language.
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    language.forget()
    return top / "plyfs"


@pytest.fixture
def plyfs(request: pytest.FixtureRequest) -> Iterator[Plyfs]:
    """The real command with a home of its own; its daemons and mounts are gone when the test ends, however it ends."""
    command = Plyfs(measured=request.node.get_closest_marker("programs") is None)
    watchdog = Watchdog(command, max(5.0, _seconds(request) - WATCHDOG_MARGIN))
    try:
        yield command
    finally:
        watchdog.cancel()
        command.close()
    assert not watchdog.fired, "the test hung on its mount until the watchdog killed the daemon"


@pytest.fixture
def workspace(plyfs: Plyfs, tmp_path: Path) -> Served:
    """An empty directory that is not served yet. Fill ``workspace.path``, then ``workspace.mount()``."""
    path = tmp_path / "workspace"
    path.mkdir()
    return Served(plyfs, path)


@pytest.fixture
def mounted(workspace: Served) -> Served:
    """An empty workspace that is served."""
    workspace.mount()
    return workspace
