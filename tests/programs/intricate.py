"""A small tree with one of everything that a copy can get wrong."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

MOMENT_NS = 1_600_000_000_123_456_789


def build(top: Path) -> None:
    """Make the tree in the empty directory ``top``. Owners and devices only as root."""
    (top / "empty").mkdir()
    (top / "deep/er/still").mkdir(parents=True)
    (top / "deep/er/still/leaf").write_bytes(os.urandom(70_000))
    (top / "zero").touch()
    (top / "private").write_text("secret")
    (top / "private").chmod(0o600)
    (top / "program").write_text("#!/bin/sh\n")
    (top / "program").chmod(0o4755)
    (top / "shared").mkdir(mode=0o2775)
    (top / "shared").chmod(0o2775)
    (top / "sticky").mkdir()
    (top / "sticky").chmod(0o1777)
    (top / "dangling").symlink_to("nowhere/at/all")
    (top / "absolute").symlink_to("/etc/hostname")
    (top / "loop").symlink_to("loop")
    (top / "to-directory").symlink_to("deep/er")
    os.link(top / "private", top / "deep/second-name")
    os.link(top / "private", top / "third-name")
    os.link(top / "dangling", top / "deep/dangling-too", follow_symlinks=False)
    os.mkfifo(top / "fifo", 0o620)
    with socket.socket(socket.AF_UNIX) as listener:
        # Bound by a short relative name: socket paths are limited to 108 bytes.
        before = os.getcwd()
        os.chdir(top)
        listener.bind("socket")
        os.chdir(before)
    for name in (b"not-\xff-utf8", b"new\nline", b"-dash", b" space ", "é".encode(), "e\u0301".encode(), b"x" * 255):
        with open(os.path.join(os.fsencode(top), name), "wb") as file:
            file.write(name)
    for name in (".wh.gone", ".wh..wh..opq", ".gitignore"):
        (top / name).write_text("an ordinary file\n")
    with (top / "sparse").open("wb") as file:
        file.truncate(50 << 20)
        file.seek(20 << 20)
        file.write(b"in the middle")
    os.setxattr(top / "zero", "user.note", b"kept \x00 exactly")
    os.setxattr(top / "empty", "user.kind", b"directory")
    if shutil.which("setfacl"):
        subprocess.run(["setfacl", "-m", "u:1234:rw,g:55:r", top / "deep/er/still/leaf"], check=True)
        subprocess.run(["setfacl", "-d", "-m", "u:1234:rwx", top / "shared"], check=True)
    if os.geteuid() == 0:
        os.lchown(top / "zero", 1234, 4321)
        os.lchown(top / "loop", 1234, 4321)
    for number, path in enumerate(sorted(top.rglob("*"), reverse=True)):
        os.utime(path, ns=(MOMENT_NS, MOMENT_NS + number * 1_000_000_007), follow_symlinks=False)
