"""Behaviours that sank others, as far as a plain directory can meet them and no other test of the scanner has them."""

from __future__ import annotations

import os

from tests.scan.conftest import Scanned
from tests.treestate import capture


def test_names_of_a_file_that_became_files_of_their_own(scanned: Scanned) -> None:
    """With the bytes that they had: only their times tell, and they are one file again."""
    top = scanned.path
    scanned.write("a", "text")
    for name in ("b", "c"):
        os.link(top / "a", top / name)
    ws = scanned.start()
    before = capture(top, times=False)
    for name in "ab":
        os.unlink(top / name)
        os.utime(scanned.write(name, "text"), ns=(1, 10**18))
    ws.checkpoint()
    ws.undo()
    assert not capture(top, times=False).differences(before)
    ws.redo()
    assert len({(top / name).stat().st_ino for name in "abc"}) == 3
