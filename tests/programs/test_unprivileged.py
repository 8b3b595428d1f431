"""A user without privileges mounts through fusermount3 and works there; root itself cannot look in."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import need_programs
from tests.served import Plyfs, Served, mounts_below

USER = 65534
"""nobody: fusermount3 wants a user with a name."""

SCRIPT = """
set -e
git init -q -b main . && git add -A && git commit -q -m one
git mv email post && echo more >> http/client.py && git commit -q -a -m two
git checkout -q HEAD~1 && git checkout -q main && git gc -q
git fsck --full --strict --no-progress --no-dangling
test -z "$(git status --porcelain)"
chmod 600 http/client.py; touch -d 2001-02-03 http/client.py; ln -s nowhere dangling; mkfifo pipe
find . -path ./.git -prune -o -printf '%p %M %u %T@ %s %l\\n' | sort > ../state
"""


@pytest.fixture
def plyfs(environment: dict[str, str]) -> Iterator[Plyfs]:
    """The command as another user."""
    need_programs("setpriv", "fusermount3", "git")
    settings = {name: value for name, value in environment.items() if name != "HOME"}
    command = Plyfs(measured=False, user=USER, environment=settings)
    # Some machines without udev give the device to root alone; elsewhere this changes nothing.
    mode = os.stat("/dev/fuse").st_mode & 0o7777
    os.chmod("/dev/fuse", 0o666)
    try:
        yield command
    finally:
        os.chmod("/dev/fuse", mode)
        command.close()


@pytest.mark.root
def test_mount_work_crash_unmount(plyfs: Plyfs, corpus: Path) -> None:
    """The whole life of a mount, with git in it."""
    top = plyfs.top / "workspace"
    subprocess.run(["cp", "-r", corpus, top], check=True)
    subprocess.run(["chown", "-R", f"{USER}:{USER}", top], check=True)
    served = Served(plyfs, top)
    served.mount()

    def shell(script: str) -> str:
        done = subprocess.run(
            [*plyfs.prefix, "bash", "-c", script],
            cwd="/",
            env=plyfs.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    shell(f"cd {top}\n{SCRIPT}")
    with pytest.raises(PermissionError):
        os.listdir(top)
    served.checkpoint("worked")
    shell(f"rm -rf {top}/http {top}/json")
    served.checkpoint("removed")
    served.run("undo")
    assert shell(f"tail -n 1 {top}/http/client.py") == "more\n"
    shell(f"echo unsaved > {top}/unsaved")
    served.kill()
    served.run("status")
    assert shell(f"cat {top}/unsaved") == "unsaved\n"
    shell(f"rm {top}/unsaved")
    served.unmount()
    assert not mounts_below(top)
    names = "find . -path ./.git -prune -o -type f -printf '%p %M %u %s\\n' | sort"
    assert shell(f"cd {top}; {names}") == shell(f"awk '$2 ~ /^-/ {{print $1, $2, $3, $5}}' {plyfs.top}/state")
    assert (top / "http/client.py").stat().st_uid == USER
    assert (top / "http/client.py").stat().st_mode & 0o7777 == 0o600
