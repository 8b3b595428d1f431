"""The registry: entries, finding one from a path, claims, and private directories."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.failure import PlyfsError
from harness.registry import (
    SOCKET_PATH_MAX,
    Claim,
    Entry,
    Registry,
    create_private,
    home_directory,
    is_below,
    key_of,
    process_start,
)


def entry(workspace: str, mountpoint: str | None = None, pid: int = 0, socket: str = "/s") -> Entry:
    pid = pid or os.getpid()
    return Entry(
        workspace,
        mountpoint or workspace,
        socket,
        pid,
        process_start(pid),
        "fuse",
        "direct",
        "ready",
        {"workspace": "w"},
    )


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    made = Registry(str(tmp_path / "home" / "run"))
    made.create()
    return made


def test_home(monkeypatch: pytest.MonkeyPatch) -> None:
    from store.home import default_root

    for given in ({"PLYFS_HOME": "/x/../y"}, {"XDG_STATE_HOME": "/state"}, {}):
        for name in ("PLYFS_HOME", "XDG_STATE_HOME"):
            monkeypatch.delenv(name, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        assert home_directory() == os.path.abspath(default_root())


def test_keys_differ() -> None:
    assert key_of("/a") == key_of("/a") != key_of("/b")
    assert len(key_of(os.fsdecode(b"/\xff"))) == 16


@pytest.mark.parametrize("name", ["plain", "sp ace\n", os.fsdecode(b"\xff\xfe"), "日本"])
def test_entry_survives_its_file(registry: Registry, name: str) -> None:
    made = entry(f"/w/{name}", f"/m/{name}")
    registry.write(made)
    for path in (made.workspace, made.mountpoint):
        found = registry.read(path or "")
        assert found is not None
        assert found.to_json() == made.to_json()
    assert [one.workspace for one in registry.all()] == [made.workspace]
    registry.remove(made)
    assert registry.all() == []
    assert registry.names("") == []


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"version": 99}', b'{"version": 1, "pid": "x"}', b"\xff"])
def test_an_entry_that_cannot_be_read_is_none(registry: Registry, data: bytes) -> None:
    with open(registry.path("/w", "json"), "wb") as file:
        file.write(data)
    assert registry.read("/w") is None
    assert registry.all() == []


def test_of_two_paths_with_one_key_only_the_right_one_is_found(registry: Registry) -> None:
    made = entry("/w")
    registry.write(made)
    os.rename(registry.path("/w", "json"), registry.path("/other", "json"))
    assert registry.read("/other") is None


def test_find(registry: Registry, tmp_path: Path) -> None:
    top = tmp_path / "ws"
    (top / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("ws/deep")
    (tmp_path / "absolute").symlink_to(top)
    (tmp_path / "loop").symlink_to("loop")
    registry.write(entry(str(top)))
    for path in ("ws", "ws/deep", "ws/not/there", "link", "link/x", "absolute", "x/../ws", "./ws/.", "ws//deep/"):
        found = registry.find(str(tmp_path / path))
        assert found is not None, path
    for path in ("", "wsx", "ws/../x", "link/../../x"):
        assert registry.find(f"{tmp_path}/{path}") is None, path
    with pytest.raises(PlyfsError, match="too many symbolic links"):
        registry.find(str(tmp_path / "loop"))


def test_find_from_here(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ws" / "deep").mkdir(parents=True)
    registry.write(entry(str(tmp_path / "ws")))
    monkeypatch.chdir(tmp_path / "ws" / "deep")
    assert registry.find(".") is not None
    assert registry.find("..") is not None
    assert registry.find("../..") is None


def test_find_looks_at_nothing_below_a_served_directory(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.write(entry("/w/served"))
    looked = []
    real = os.readlink

    def readlink(path: str) -> str:
        looked.append(path)
        return real(path)

    monkeypatch.setattr(os, "readlink", readlink)
    assert registry.find("/w/served/a/b") is not None
    assert looked == ["/w"]


def test_the_directory_that_was_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, registry: Registry) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(PlyfsError) as caught:
        registry.find(".")
    assert caught.value.code == "not_a_workspace"


def test_alive(registry: Registry) -> None:
    assert entry("/w").is_alive()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    made = entry("/w", pid=child.pid)
    assert made.is_alive()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not made.is_alive(), "a zombie serves nobody"
    child.wait()
    child.stdin.close()  # type: ignore[union-attr]
    assert not made.is_alive()
    reused = entry("/w")
    reused.start_time = "1"
    assert not reused.is_alive()


def test_remove_leaves_a_successor_alone(registry: Registry) -> None:
    old, new = entry("/w"), entry("/w")
    old.start_time = "1"
    registry.write(new)
    registry.remove(old)
    assert registry.read("/w") is not None


def test_socket_path(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    short = Registry("/short/run").socket_path("/w")
    assert short.startswith("/short/run/")
    long = Registry(f"/{'long' * 30}/run")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    path = long.socket_path("/w")
    assert path.startswith("/run/user/7/plyfs-")
    assert len(path) <= SOCKET_PATH_MAX
    assert path != Registry(f"/{'other' * 30}/run").socket_path("/w")
    monkeypatch.setenv("XDG_RUNTIME_DIR", f"/{'x' * 80}")
    assert long.socket_path("/w").startswith("/tmp/plyfs-")


def test_claims(registry: Registry) -> None:
    first, second = Claim(registry, "/w", "owner"), Claim(registry, "/w", "owner")
    assert first.acquire()
    assert not second.acquire()
    assert Claim(registry, "/w", "starter").acquire()
    assert Claim(registry, "/v", "owner").acquire()
    assert not Claim.discard(registry.path("/w", "owner.lock"))
    first.release()
    assert second.acquire()
    second.release()
    assert not os.path.exists(registry.path("/w", "owner.lock"))


def test_a_claim_ends_with_its_holder(registry: Registry) -> None:
    code = (
        "import sys\nfrom harness.registry import *\nr = Registry(sys.argv[1])\n"
        "assert Claim(r, '/w', 'owner').acquire()\nprint('held', flush=True)\ninput()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, registry.directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    claim = Claim(registry, "/w", "owner")
    assert not claim.acquire()
    child.kill()
    child.communicate()
    assert claim.acquire()
    claim.release()


def test_private_directories(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    create_private(str(path))
    assert path.stat().st_mode & 0o777 == 0o700
    path.chmod(0o755)
    create_private(str(path))
    assert path.stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "file").write_text("")
    for name in ("link", "file"):
        with pytest.raises(PlyfsError):
            create_private(str(tmp_path / name))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_somebody_elses_directory(tmp_path: Path) -> None:
    path = tmp_path / "theirs"
    path.mkdir()
    os.chown(path, 12345, 12345)
    with pytest.raises(PlyfsError, match="not a directory of this user's"):
        create_private(str(path))


def test_below() -> None:
    assert is_below("/a", "/a")
    assert is_below("/a/b", "/a")
    assert is_below("/a", "/")
    assert not is_below("/ab", "/a")
    assert not is_below("/", "/a")
