"""The extension as it gets into the agents, and its types."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.agents import toolchain
from tests.agents.conftest import MakeStage
from tests.agents.shelf import Shelf

pytestmark = [pytest.mark.agents, pytest.mark.timeout(120)]


@pytest.mark.parametrize("kind", ["pi", "omp"])
def test_the_extension_has_the_types_of_the_agent(agents: None, kind: str) -> None:
    done = toolchain.check(kind)
    assert (done.stdout, done.returncode) == ("", 0)


def test_it_needs_nothing_at_run_time(agents: None) -> None:
    manifest = json.loads((toolchain.EXTENSION / "package.json").read_text())
    assert "dependencies" not in manifest
    assert manifest["pi"]["extensions"] == manifest["omp"]["extensions"]
    for path in (toolchain.EXTENSION / "src").rglob("*.ts"):
        for line in path.read_text().splitlines():
            if line.startswith("import ") and " from " in line:
                assert ' from "node:' in line or ' from ".' in line, f"{path}: {line}"


@pytest.mark.mounted
@pytest.mark.parametrize("kind", ["pi", "omp"])
def test_install_and_uninstall(make_stage: MakeStage, kind: str) -> None:
    stage = make_stage(kind)
    stage.extensions = []
    stage.plyfs.environment["HOME"] = str(stage.home)
    told = stage.plyfs.json("install", kind)
    assert told["done"] == "installed"
    assert stage.plyfs.json("install", kind)["done"] == "replaced"
    agent = stage.start(env={"PLYFS_COMMAND": ""})
    stage.served_by(agent)
    agent.prompt(stage.model.bash("turn1", "echo 1 > a.txt"))
    stage.do(agent, "/undo")
    assert not (stage.workspace / "a.txt").exists()
    agent.close()
    assert stage.plyfs.json("install", kind, "--uninstall")["done"] == "removed"
    assert not os.path.exists(told["path"])
    assert stage.plyfs.run("install", kind, "--uninstall", check=False).returncode == 1


def test_what_is_not_ours_is_left_alone(make_stage: MakeStage, tmp_path: Path) -> None:
    stage = make_stage("pi")
    stage.plyfs.environment["HOME"] = str(stage.home)
    there = stage.home / ".pi" / "agent" / "extensions" / "plyfs"
    there.mkdir(parents=True)
    (there / "mine.ts").write_text("mine\n")
    for words in (["install", "pi"], ["install", "pi", "--uninstall"]):
        done = stage.plyfs.run(*words, check=False)
        assert (done.returncode, "not from `plyfs install`" in done.stderr) == (1, True)
    assert (there / "mine.ts").exists()
    assert stage.plyfs.run("install", "emacs", check=False).returncode == 2


@pytest.mark.mounted
@pytest.mark.long
@pytest.mark.parametrize("kind", ["pi", "omp"])
def test_the_agents_own_package_managers(make_stage: MakeStage, kind: str) -> None:
    stage = make_stage(kind)
    stage.extensions = []
    words = ["install", str(toolchain.EXTENSION)] if kind == "pi" else ["plugin", "link", str(toolchain.EXTENSION)]
    program = toolchain.pi() if kind == "pi" else toolchain.omp()
    done = subprocess.run(
        [*program, *words],
        cwd=stage.home,
        env=stage.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    agent = stage.start()
    stage.served_by(agent)


@pytest.mark.mounted
@pytest.mark.parametrize("kind", ["pi", "omp"])
def test_the_package_as_it_is_published(make_stage: MakeStage, kind: str) -> None:
    """Installed from a registry it has all that it needs, works from ``node_modules``, and finds plyfs in ``PATH``."""
    stage = make_stage(kind)
    stage.extensions = []
    place = stage.home / "place"
    place.mkdir()
    npm = [str(toolchain.NODE), str(toolchain.NPM)]
    words = ["pack", "--json", "--pack-destination", str(place), str(toolchain.EXTENSION)]
    packed = subprocess.run([*npm, *words], cwd=place, capture_output=True, text=True, timeout=60, check=True)
    [package] = json.loads(packed.stdout)
    held = {file["path"] for file in package["files"]}
    source = {
        f"src/{path.relative_to(toolchain.EXTENSION / 'src')}" for path in toolchain.EXTENSION.rglob("src/**/*.ts")
    }
    assert held == {"LICENSE", "README.md", "package.json"} | source
    programs = stage.home / "bin"
    programs.mkdir()
    environment = stage.environment()
    for name, command in (("npm", shlex.join(npm)), ("plyfs", environment["PLYFS_COMMAND"])):
        (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (programs / name).chmod(0o755)
    environment = {
        "PATH": os.pathsep.join([str(programs), str(toolchain.BUN.parent), environment["PATH"]]),
        "PLYFS_COMMAND": "",
    }
    manifest = json.loads((toolchain.EXTENSION / "package.json").read_text())
    shelf = Shelf(place / package["filename"], manifest)
    registry = {"npm_config_registry": shelf.url, "BUN_CONFIG_REGISTRY": shelf.url}
    name = manifest["name"]
    words = (
        [*toolchain.pi(), "install", f"npm:{name}"] if kind == "pi" else [*toolchain.omp(), "plugin", "install", name]
    )
    try:
        done = subprocess.run(
            words,
            cwd=stage.home,
            env=stage.environment(environment | registry),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        shelf.close()
    assert done.returncode == 0, done.stdout + done.stderr
    agent = stage.start(env=environment)
    stage.served_by(agent)
    agent.prompt(stage.model.bash("turn1", "echo 1 > a.txt"))
    stage.do(agent, "/undo")
    assert not (stage.workspace / "a.txt").exists()
