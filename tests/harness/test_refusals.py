"""What is refused as a workspace, and what the refusal says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import refusals
from harness.failure import PlyfsError, exit_status
from harness.registry import Registry
from tests.harness.test_registry import entry
from vfs.channels.mountinfo import Mount, parse


def refused(call: Callable[[], object], code: str, words: str) -> None:
    with pytest.raises(PlyfsError) as caught:
        call()
    assert caught.value.code == code
    assert words in caught.value.message
    assert caught.value.hint
    assert exit_status(caught.value.code) != 0


@pytest.fixture
def registry(private_home: Path) -> Registry:
    made = Registry(str(private_home / "run"))
    made.create()
    return made


def test_what_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(lambda: refusals.resolve(str(tmp_path / "none")), "not_a_workspace", "No such file")
    refused(lambda: refusals.resolve(str(tmp_path / "file")), "not_a_workspace", "is not a directory")
    refused(lambda: refusals.resolve(str(tmp_path / "file" / "x")), "not_a_workspace", "Not a directory")
    (tmp_path / "link").symlink_to(tmp_path)
    assert refusals.resolve(str(tmp_path / "link")) == str(tmp_path)


def test_root_home_and_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "users" / "me"))
    store = str(tmp_path / "state" / "plyfs")
    for path, words in [
        ("/", "/ cannot be"),
        (f"{tmp_path}/users/me", "home directory"),
        (f"{tmp_path}/users", "home directory"),
        (str(tmp_path / "state"), "the store"),
        (store, "the store"),
        (f"{store}/run", "part of the store"),
    ]:
        refused(lambda path=path: refusals.check_place(path, store), "not_a_workspace", words)  # type: ignore[misc]
    refusals.check_place(f"{tmp_path}/users/me/project", store)


def test_a_home_that_is_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "home").symlink_to("real")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    refused(lambda: refusals.check_place(str(tmp_path / "real"), "/store"), "not_a_workspace", "home directory")


def test_nesting(registry: Registry) -> None:
    registry.write(entry("/w/served", "/m/point"))
    for path, code, words in [
        ("/w/served", "locked", "served already"),
        ("/m/point", "locked", "served already"),
        ("/w/served/below", "not_a_workspace", "lies in the served workspace"),
        ("/m/point/below", "not_a_workspace", "lies in the served workspace"),
        ("/w", "not_a_workspace", "the served workspace"),
    ]:
        refused(lambda path=path: refusals.check_nesting(path, path, registry, []), code, words)  # type: ignore[misc]
    refusals.check_nesting("/w/servedx", "/w/servedx", registry, [])


def test_a_dead_entry_forbids_nothing(registry: Registry) -> None:
    dead = entry("/w")
    dead.start_time = "1"
    registry.write(dead)
    refusals.check_nesting("/w", "/w", registry, [])


MOUNTINFO = rb"""20 1 8:1 / / rw - ext4 /dev/sda1 rw
21 20 0:20 / /proc rw - proc proc rw
22 20 0:50 / /m\040x rw - fuse.plyfs plyfs rw,user_id=0
23 20 0:51 / /m\040x rw - tmpfs tmpfs rw
"""


def mounted() -> list[Mount]:
    return parse(MOUNTINFO)


def test_mounts(registry: Registry) -> None:
    assert refusals.mount_over("/a", mounted()) == mounted()[0]
    assert refusals.mount_over("/m x/y", mounted()) == mounted()[3], "the last one lies on top"
    refused(lambda: refusals.check_kind("/proc/1", mounted()), "not_a_workspace", "proc file system")
    ours = mounted()[:3]
    refused(lambda: refusals.check_nesting("/m x/a", "/m x/a", registry, ours), "not_a_workspace", "/m x")


def test_elsewhere(tmp_path: Path) -> None:
    for name in ("ws", "ws/in", "empty", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "x").write_text("")
    ws = str(tmp_path / "ws")
    refused(lambda: refusals.check_elsewhere(ws, f"{ws}/in"), "usage", "lie in each other")
    refused(lambda: refusals.check_elsewhere(f"{ws}/in", ws), "usage", "lie in each other")
    refused(lambda: refusals.check_elsewhere(ws, str(tmp_path / "full")), "usage", "not empty")
    refusals.check_elsewhere(ws, str(tmp_path / "empty"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_access(request: pytest.FixtureRequest) -> None:
    top = Path(tempfile.mkdtemp(prefix="ply-"))  # not below pytest's own, which is closed to others
    request.addfinalizer(lambda: shutil.rmtree(top))
    top.chmod(0o755)
    theirs, sticky = top / "theirs", top / "sticky"
    theirs.mkdir(mode=0o755)
    sticky.mkdir()
    sticky.chmod(0o1777)
    code = (
        "import os, sys\n"
        "from harness import refusals\n"
        "from harness.failure import PlyfsError\n"
        "os.setgroups([]); os.setgid(12345); os.setuid(12345)\n"
        "for path in sys.argv[1:]:\n"
        "    try: refusals.check_access(path)\n"
        "    except PlyfsError as error: print(error.message)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(theirs), str(sticky)], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.count("not yours to write") == 1
    assert done.stdout.count("is sticky") == 1


def test_no_fuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    refused(refusals.check_fuse, "no_fuse", "no FUSE but that of Linux")
    monkeypatch.undo()
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    refused(refusals.check_fuse, "no_fuse", "no /dev/fuse")
    monkeypatch.setattr(os.path, "exists", lambda path: True)

    def forbidden(path: str, flags: int) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", forbidden)
    refused(refusals.check_fuse, "no_fuse", "cannot be opened")
    monkeypatch.undo()
    monkeypatch.setattr(os.path, "exists", lambda path: True)
    monkeypatch.setattr(os, "open", lambda path, flags: os.dup(0))
    monkeypatch.setattr(refusals.system, "user_id", lambda: 1000)
    monkeypatch.setenv("PATH", "/nowhere")
    refused(refusals.check_fuse, "no_fuse", "no fusermount3")
