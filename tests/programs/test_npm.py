"""npm in a mount: a package set of some size is installed, works, is removed, and comes back by undo."""

from __future__ import annotations

import shutil

import pytest

from tests.conftest import lacking, need_programs
from tests.programs.conftest import Shell
from tests.served import Served
from tests.treestate import assert_same, capture

PACKAGES = ("express@4", "eslint@8", "webpack@5")
TRY = "require('express'); require('webpack'); require('eslint'); console.log('loaded')"


@pytest.mark.network
def test_install_use_remove_undo(plain: Shell, inside: Shell, mounted: Served) -> None:
    """The tree that npm makes is the one it makes in a plain directory."""
    need_programs("npm", "node")
    install = ("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline")
    plain.run("npm", "init", "-y")
    try:
        plain.run(*install, *PACKAGES)
    except AssertionError as error:
        lacking(f"the npm registry does not answer: {str(error)[-500:]}")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(plain.cwd / name, inside.cwd / name)
    mounted.checkpoint("before")
    inside.run("npm", "ci", *install[2:])
    assert inside.run("node", "-e", TRY) == "loaded\n"
    inside.run("npm", "ls", "--all")
    installed = capture(inside.cwd / "node_modules", times=False)
    wanted = capture(plain.cwd / "node_modules", times=False)
    assert len(installed.paths) > 3000
    for state in (installed, wanted):
        del state.paths[".package-lock.json"]
    assert_same(installed, wanted, "after npm ci")

    mounted.checkpoint("installed")
    shutil.rmtree(inside.cwd / "node_modules")
    assert not (inside.cwd / "node_modules").exists()
    mounted.checkpoint("removed")
    mounted.run("undo")
    assert inside.run("node", "-e", TRY) == "loaded\n"
    mounted.run("undo")
    assert sorted(path.name for path in inside.cwd.iterdir()) == ["package-lock.json", "package.json"]
    mounted.run("redo")
    again = capture(inside.cwd / "node_modules", times=False)
    del again.paths[".package-lock.json"]
    assert_same(again, wanted, "after undo and redo")
