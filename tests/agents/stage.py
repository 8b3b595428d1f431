"""One agent in one workspace, with a scripted model, a home of its own and the extension installed: a test's stage.

Owns the model's process, the agents' configuration and the sessions' files. The agents are the real ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.registry import Registry
from tests.agents import toolchain
from tests.agents.rpc import Agent, Json
from tests.served import Plyfs, Served

HERE = Path(__file__).resolve().parent
GOTO = HERE / "goto.ts"


class Model:
    """The scripted model on loopback; ``script`` maps the name of a scenario to its steps."""

    def __init__(self, top: Path) -> None:
        self.path = top / "script.json"
        self.log = top / "requests.jsonl"
        self.script: dict[str, list[Json]] = {}
        self.write()
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "model.py"), str(self.path), "--log", str(self.log)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def write(self) -> None:
        """Publish the script."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(self.script))
        fresh.replace(self.path)

    def bash(self, name: str, command: str) -> str:
        """A scenario of one bash command; the prompt that plays it."""
        return self.scenario(
            name, [{"calls": [{"tool": "bash", "args": {"command": command}}]}, {"text": f"done {name}"}]
        )

    def scenario(self, name: str, steps: list[Json]) -> str:
        """A scenario; the prompt that plays it."""
        self.script[name] = steps
        self.write()
        return f"[[{name}]] go"

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(timeout=10)
        if self._process.stdout:
            self._process.stdout.close()


class Stage:
    """``kind`` is pi or omp, ``mode`` how plyfs is to serve the workspace."""

    def __init__(self, kind: str, plyfs: Plyfs, workspace: Path, top: Path, mode: str = "fuse") -> None:
        self.kind = kind
        self.mode = mode
        self.plyfs = plyfs
        self.served = Served(plyfs, workspace)
        self.workspace = workspace
        self.home = top / "agent-home"
        self.sessions = top / "sessions"
        self.model = Model(top)
        self.stderr = top / "stderr"
        self.extensions = [toolchain.EXTENSION / "src" / "index.ts", GOTO]
        self._agents: list[Agent] = []
        self._configure()

    def _configure(self) -> None:
        config = self.home / f".{self.kind}" / "agent"
        config.mkdir(parents=True)
        model = {"id": "scripted"}
        provider = {"baseUrl": self.model.url, "api": "openai-completions", "apiKey": "none", "models": [model]}
        models = json.dumps({"providers": {"scripted": provider}})
        if self.kind == "pi":
            (config / "models.json").write_text(models)
        else:
            (config / "models.yml").write_text(models)  # JSON is YAML
            (config / "config.yml").write_text("setupVersion: 2\n")

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """What the agent runs in."""
        root = str(toolchain.ROOT)
        return {
            **self.plyfs.environment,
            "HOME": str(self.home),
            "PI_OFFLINE": "1",
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "PYTHONPATH": root,
            "PLYFS_COMMAND": " ".join(self.plyfs.command()),
            "PATH": f"{toolchain.NODE.parent}{os.pathsep}{os.environ['PATH']}",
            **(extra or {}),
        }

    def command(self, *options: str) -> list[str]:
        """The words that start the agent."""
        words = toolchain.pi() if self.kind == "pi" else toolchain.omp()
        words += ["--model", "scripted/scripted"]
        if "--no-session" not in options:
            words += ["--session-dir", str(self.sessions)]
        for extension in self.extensions:
            words += ["-e", str(extension)]
        return [*words, *options]

    def start(
        self, *options: str, on_dialog: Callable[[Json], Json] | None = None, env: Mapping[str, str] | None = None
    ) -> Agent:
        """The agent in RPC mode, with its extensions started."""
        agent = Agent(
            self.command("--mode", "rpc", *options),
            cwd=self.workspace,
            env=self.environment(env),
            on_dialog=on_dialog or (lambda request: {"cancelled": True}),
            settled_event="agent_settled" if self.kind == "pi" else "agent_end",
            stderr=self.stderr,
        )
        self._agents.append(agent)
        agent.request("get_state")
        return agent

    def served_by(self, agent: Agent, timeout: float = 20) -> None:
        """Wait until plyfs' badge says that the workspace is served."""
        until(
            lambda: agent.heard(0.05) and "✓" in (agent.status.get("plyfs") or ""),
            timeout,
            lambda: f"{agent.status} {agent.notices}",
        )

    def do(self, agent: Agent, command: str) -> list[str]:
        """Run a slash command to its end; what it told. Oh My Pi answers before the handler has done anything."""
        first = len(agent.notices)
        agent.command(command, quiet=0.05)
        if self.kind == "omp":
            name = command.split(" ")[0].removeprefix("/")
            own = {"goto": "goto: ", "leaf": "leaf "}.get(name, "")
            until(
                lambda: agent.heard(0.05) and any(line.startswith(own) for line in agent.notices[first:]),
                20,
                lambda: f"{command} told nothing",
            )
            # What plyfs has done to the files it tells a moment after the conversation has moved.
            agent.drain(0.5 if name == "goto" else 0.05)
        return agent.notices[first:]

    def configure(self, **settings: Any) -> None:
        """Settings of the agent's own, each a table."""
        config = self.home / f".{self.kind}" / "agent"
        if self.kind == "pi":
            (config / "settings.json").write_text(json.dumps(settings))
        else:
            (config / "config.yml").write_text(json.dumps({"setupVersion": 2, **settings}))

    def settings(self, agents: str, own: str = "") -> None:
        """plyfs' settings for agents: for all workspaces, and for this one."""
        config = Path(self.plyfs.environment["XDG_CONFIG_HOME"]) / "plyfs" / "config.toml"
        config.parent.mkdir(parents=True, exist_ok=True)
        text = f'[mount]\nmode = "{self.mode}"\n\n[agents]\n{agents}\n'
        if own:
            text += f'\n[workspace."{self.workspace}".agents]\n{own}\n'
        config.write_text(text)

    def reload(self, agent: Agent) -> None:
        """Have the agent load its extensions anew, and wait until plyfs has begun again."""
        agent.request("prompt", message="/anew")
        agent.drain(1.0)

    def daemon(self) -> int:
        """The process that serves the workspace."""
        entry = Registry(str(self.plyfs.home / "run")).read(str(self.workspace))
        assert entry is not None
        return entry.pid

    def session_file(self) -> Path:
        """The newest session's file."""
        return max(self.sessions.rglob("*.jsonl"), key=lambda path: path.stat().st_mtime)

    def entries(self) -> list[Json]:
        """What the newest session's file holds."""
        return [json.loads(line) for line in self.session_file().read_text().splitlines()]

    def states(self) -> Any:
        """The checkpoints."""
        return self.served.json("log")

    def close(self) -> None:
        """End the agents and the model."""
        for agent in self._agents:
            agent.close()
        self.model.close()


def until(condition: Callable[[], Any], timeout: float = 20, show: Callable[[], str] = lambda: "") -> None:
    """Wait for ``condition``."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"it did not come to that within {timeout:.0f} s: {show()}"
        time.sleep(0.02)
