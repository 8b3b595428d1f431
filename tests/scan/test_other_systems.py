"""Scanner mode where Python lacks what it has on Linux: as on Windows, and as on macOS. What cannot be shown here is in
docs/scanner.md.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.served import Plyfs, Served

REPO = Path(__file__).resolve().parents[2]

STORY = """
import sys
sys.path.insert(0, {repo!r})
{pretend}
from pathlib import Path
from vfs.scan.scanned import ScannedWorkspace
from vfs.scan.policy import Policy
import os
top = Path({top!r})
def serve():
    ws = ScannedWorkspace(str(top), {home!r}, Policy(), lambda *_: None)
    ws.start()
    return ws
def state():
    return {{str(path.relative_to(top)): path.read_bytes() if path.is_file() else None for path in top.rglob("*")}}
ws = serve()
first = state()
(top / "a").write_text("second")
os.unlink(top / "d/b")
os.rename(top / "deep", top / "deeper")
os.rmdir(top / "empty")
(top / "n").mkdir()
(top / "n/new").write_bytes(b"n" * 2_000_000)
made = ws.checkpoint(sync=True)
second = state()
assert made.changed >= 5, made
assert ws.undo().kept == []
assert state() == first, state().keys() ^ first.keys()
assert ws.redo().head == made.id
assert state() == second
ws.restore("base", ["a"])
assert (top / "a").read_text() == "first"
assert ws.cat(made.id, "a") == b"second"
assert not ws.status().dirty
ws.unmount()
ws.close()
ws = serve()
assert not ws.status().dirty
ws.restore(made.id)
assert state() == second
print("done")
"""

WINDOWS = """
import ctypes, encodings.idna, platformdirs, psutil, socket, subprocess, tempfile, concurrent.futures.thread
import difflib, gc, json, logging, queue, shutil, threading, unicodedata, msgspec, blake3, pathlib
from tests.scan.windows import pretend
pretend()
"""

MACOS = """
import os, sys
import subprocess, psutil, platformdirs, pathlib
lacking = "O_PATH listxattr getxattr setxattr removexattr fdatasync O_TMPFILE SEEK_DATA SEEK_HOLE"
lacking += " copy_file_range eventfd memfd_create pidfd_open pipe2 splice posix_fadvise posix_fallocate getrandom"
lacking += " sched_getaffinity sched_setaffinity O_DIRECT O_LARGEFILE O_NOATIME getresuid setresuid"
for name in lacking.split():
    delattr(os, name)
import fcntl
fcntl.F_FULLFSYNC = fcntl.F_GETFD
sys.platform = "darwin"
"""


@pytest.mark.parametrize("pretend", [WINDOWS, MACOS], ids=["Windows", "macOS"])
def test_the_main_job(tmp_path: Path, pretend: str) -> None:
    top = tmp_path / "workspace"
    for name in ("a", "d/b", "d/c", "deep/er/file"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("first")
    (top / "big").write_bytes(b"0123456789" * 150_000)
    (top / "empty").mkdir()
    script = STORY.format(repo=str(REPO), pretend=pretend, top=str(top), home=str(tmp_path / "home"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "done"


def test_commands_and_daemon_on_macos(tmp_path: Path) -> None:
    """The whole way, in processes of which each takes itself to be on macOS."""
    (tmp_path / "site").mkdir()
    before = "import trio, trio.socket, logging.handlers, concurrent.futures.thread, faulthandler, tempfile, hmac\n"
    lacking = "import signal\ndel signal.sigwaitinfo, signal.sigtimedwait\nimport socket\ndel socket.SO_PEERCRED\n"
    (tmp_path / "site" / "sitecustomize.py").write_text(before + MACOS + lacking)
    workspace = tmp_path / "workspace"
    (workspace / "d").mkdir(parents=True)
    (workspace / "a").write_text("first")
    plyfs = Plyfs(environment={"PYTHONPATH": str(tmp_path / "site"), "HOME": str(tmp_path)})
    plyfs.owns(workspace)
    served = Served(plyfs, workspace)
    try:
        mounted = served.json("mount", str(workspace))
        assert mounted["mode"] == "scan"
        assert any("no FUSE but that of Linux" in note for note in mounted["notes"])
        (workspace / "a").write_text("second " * 100)
        (workspace / "d").rmdir()
        made = served.json("checkpoint", "--sync")
        assert made["changed"] == 2
        served.json("undo")
        assert (workspace / "a").read_text() == "first"
        served.json("redo")
        assert (workspace / "a").read_text() == "second " * 100
        os.kill(mounted["pid"], signal.SIGKILL)
        assert served.json("status")["head"] == made["id"]
        assert served.json("doctor")["healthy"]
        served.json("unmount")
        assert served.json("status")["mounted"] is False
        done = served.run("run", "--", "sh", "-c", "echo ran > ran; exit 4", check=False)
        assert done.returncode == 4, done.stderr
        assert (workspace / "ran").read_text() == "ran\n"
    finally:
        assert plyfs.close() == []
