"""Other systems and other users: the way of Windows by paths, no right to anything, another locale."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.scan.conftest import Scanned
from tests.scan.test_interrupted import fill, rework, state
from tests.treestate import capture
from vfs.scan.execute import Executor
from vfs.scan.names import ignores_case
from vfs.scan.platform import Paths, Posix, choose
from vfs.workspace import RefusedError, WorkspaceError


class PathsHere(Paths):
    """The way of Windows, with the names that Linux allows."""

    def name_problem(self, name: str) -> str | None:
        return None

    def mknod(self, at: object, name: str, mode: int, device: int) -> None:
        os.mkfifo(os.path.join(str(at), name), 0o644)


def test_what_is_chosen_here() -> None:
    assert isinstance(choose(), Posix)
    assert not ignores_case(Posix(), Posix().open_top(b"/"))


def test_by_paths(scanned: Scanned) -> None:
    fill(scanned)
    ws = scanned.start(platform=PathsHere())
    wanted = state(scanned.path)
    rework(scanned)
    ws.checkpoint()
    changed = state(scanned.path)
    ws.undo()
    left = [line for line in state(scanned.path).differences(wanted) if " mode " not in line and "links" not in line]
    assert left == []
    ws.redo()
    left = [line for line in state(scanned.path).differences(changed) if " mode " not in line and "links" not in line]
    assert left == []


@pytest.mark.parametrize(
    "name", ["nul", "AUX.txt", "com1", "trailing.", "trailing ", "a:b", "what?", "back\\slash", "ctrl\x01", "LPT³"]
)
def test_names_that_windows_refuses(name: str) -> None:
    assert Paths().name_problem(name) is not None


@pytest.mark.parametrize("name", ["null", "com", "a.nul", ".git", "é", "com10", "a b"])
def test_names_that_windows_allows(name: str) -> None:
    assert Paths().name_problem(name) is None


def test_reserved_names_refuse_the_whole_plan(scanned: Scanned) -> None:
    class Windows(PathsHere):
        def name_problem(self, name: str) -> str | None:
            return Paths.name_problem(self, name)

    scanned.write("aux", "x")
    scanned.write("plain", "x")
    ws = scanned.start(platform=Windows())
    os.unlink(scanned.path / "aux")
    scanned.write("plain", "changed")
    ws.checkpoint()
    with pytest.raises(RefusedError, match="aux"):
        ws.undo()
    assert (scanned.path / "plain").read_text() == "changed"
    ws.restore("base", ["plain"])
    assert (scanned.path / "plain").read_text() == "x"


def test_an_error_in_the_middle_takes_everything_back(scanned: Scanned) -> None:
    """A file that another program holds, as Windows has it: named, and the workspace is as it was."""

    class Held(Executor):
        failing = True

        def step(self) -> None:
            if Held.failing and self.moving and self.left == 0:
                Held.failing = False
                raise PermissionError(13, "held", "d/held")
            if self.moving:
                self.left -= 1

        moving = False
        left = 3

        def move(self) -> None:
            self.moving = True
            super().move()

        def _open_up(self, directory: bytes) -> bool:
            return False

    for name in ("a", "b", "c", "d/held"):
        scanned.write(name, "first")
    ws = scanned.start(executor=Held)
    for name in ("a", "b", "c", "d/held"):
        scanned.write(name, "second")
    scanned.write("new")
    head = ws.checkpoint().id
    before = capture(scanned.path, times=False)
    with pytest.raises(WorkspaceError, match=r"stopped at .: Permission denied"):
        ws.undo()
    assert not capture(scanned.path, times=False).differences(before)
    assert ws.status().head == head
    assert not ws.status().dirty
    ws.undo()
    assert (scanned.path / "a").read_text() == "first"


SCRIPT = """
import ctypes, difflib, encodings.ascii, encodings.latin_1, os, platformdirs, sys
sys.path.insert(0, {repo!r})
from pathlib import Path
from typing import Any
from vfs.scan.scanned import ScannedWorkspace
from vfs.scan.policy import Policy
os.setgroups([])
os.setgid(65534)
os.setuid(65534)  # what is imported by now may lie where only root may read
top = Path({top!r})
ws = ScannedWorkspace(str(top), {home!r}, Policy(), lambda *_: None)
ws.start()
(top / "d" / "f").write_text("second")
os.unlink(top / os.fsdecode(b"\\xc3\\xa9"))
os.chmod(top / "closed", 0o700)
os.unlink(top / "closed" / "in")
os.chmod(top / "closed", 0)
os.chmod(top / "readonly", 0o755)
(top / "readonly" / "f").write_text("second")
os.chmod(top / "readonly", 0o555)
os.unlink(top / "shut")
ws.checkpoint()
undone = ws.undo()
print(ascii([(row.path, row.reason) for row in undone.kept]))
assert (top / "d" / "f").read_text() == "first"
assert (top / os.fsdecode(b"\\xc3\\xa9")).read_text() == "x"
assert (top / "readonly" / "f").read_text() == "first"
assert oct((top / "readonly").stat().st_mode)[-3:] == "555"
assert oct((top / "closed").stat().st_mode)[-3:] == "000"
assert oct((top / "shut").stat().st_mode)[-3:] == "000"
os.chmod(top / "shut", 0o600)
assert (top / "shut").read_text() == "x"
if hasattr(os, "getxattr"):
    assert os.getxattr(top / "shut", "user.note") == b"kept"
os.chmod(top / "shut", 0)
os.chmod(top / "closed", 0o700)
assert (top / "closed" / "in").read_text() == "x"
os.chmod(top / "closed", 0)
assert not ws.status().dirty, ws.diff()
ws.unmount()
ws.close()
print("done")
"""


@pytest.mark.root
@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_an_ordinary_user_in_any_locale(tmp_path: Path, locale: str) -> None:
    """Files and directories that their own modes close are captured, restored, and closed again; foreign ones told."""
    base = Path("/tmp") / f"plyfs-user-{os.getpid()}-{locale}"
    top, home = base / "w", base / "h"
    (top / "d").mkdir(parents=True)
    (top / "d/f").write_text("first")
    (top / "\u00e9").write_text("x")
    for name, mode in (("closed", 0o000), ("readonly", 0o555)):
        (top / name).mkdir()
        (top / name / ("in" if name == "closed" else "f")).write_text("x" if name == "closed" else "first")
        (top / name).chmod(mode)
    (top / "shut").write_text("x")
    (top / "shut").chmod(0o000)
    os.setxattr(top / "shut", "user.note", b"kept")
    try:
        subprocess.run(["chown", "-R", "65534:65534", str(base)], check=True)
        (top / "foreign").write_text("root's")
        (top / "foreign").chmod(0o600)
        script = SCRIPT.format(repo=str(Path(__file__).resolve().parents[2]), top=str(top), home=str(home))
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={"LANG": locale, "LC_ALL": locale, "PATH": os.environ["PATH"], "HOME": str(base)},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        assert done.stdout.decode().splitlines()[-1] == "done"
        assert (top / "foreign").read_text() == "root's"
    finally:
        subprocess.run(["chmod", "-R", "u+rwx", str(base)], check=False)
        subprocess.run(["rm", "-rf", str(base)], check=False)


class Overlay(Posix):
    """An overlay whose lower layer has all directories: it refuses to rename one."""

    def rename(self, at: Any, name: str, to: Any, new: str) -> None:
        if stat.S_ISDIR(self.stat(at, name).st_mode):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        super().rename(at, name, to, new)


def test_directories_that_cannot_be_renamed_move_piece_by_piece(scanned: Scanned) -> None:
    scanned.write("d/deep/f", "text")
    scanned.write("d/g", "text").chmod(0o640)
    (scanned.path / "d/deep").chmod(0o750)
    (scanned.path / "d/link").symlink_to("g")
    ws = scanned.start(platform=Overlay())
    before = capture(scanned.path)
    os.rename(scanned.path / "d", scanned.path / "e")
    ws.checkpoint()
    undone = ws.undo()
    assert [(change.path, change.kind) for change in undone.changes] == [("d", "rename")]
    assert not capture(scanned.path).differences(before)
    assert not ws.status().dirty
