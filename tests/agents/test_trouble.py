"""When something is wrong: the agent goes on, is not held up, and a person is told, once, with the remedy."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from bench.checkpoints import fill
from tests.agents.conftest import MakeStage
from tests.agents.rpc import Agent
from tests.agents.stage import Stage, until

LONG = pytest.mark.long
pytestmark = [pytest.mark.mounted, pytest.mark.agents, pytest.mark.timeout(120)]

HELD_UP_SECONDS = 0.2


def say(stage: Stage, agent: Agent, name: str) -> float:
    """Seconds that a prompt which the model answers at once takes."""
    return agent.prompt(stage.model.scenario(name, [{"text": "hello"}]))


def printed(stage: Stage, command: list[str]) -> subprocess.CompletedProcess[str]:
    """An agent that runs to its end, without a terminal."""
    done = subprocess.run(
        command,
        cwd=stage.workspace,
        env=stage.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.crash
def test_a_daemon_that_dies(make_stage: MakeStage) -> None:
    stage = make_stage("pi")
    agent = stage.start()
    stage.served_by(agent)
    agent.prompt(stage.model.bash("turn1", "echo 1 > a.txt"))
    os.kill(stage.daemon(), signal.SIGKILL)
    until(lambda: agent.heard(0.1) and "✗" in (agent.status.get("plyfs") or ""))
    say(stage, agent, "on")
    say(stage, agent, "and on")
    errors = [line for line in agent.notices if "daemon" in line]
    assert len(errors) <= 1
    told = stage.do(agent, "/undo")
    assert told
    told = stage.do(agent, "/plyfs doctor")
    assert "mended" in told[-1], told
    stage.served_by(agent)
    assert (stage.workspace / "a.txt").read_text() == "1\n"
    stage.do(agent, "/undo 3")
    assert not (stage.workspace / "a.txt").exists()


def test_a_daemon_that_hangs_holds_up_nobody(make_stage: MakeStage) -> None:
    stage = make_stage("pi", settings='on_exit = "leave"')
    agent = stage.start()
    stage.served_by(agent)
    free = min(say(stage, agent, f"free{number}") for number in range(3))
    pid = stage.daemon()
    os.kill(pid, signal.SIGSTOP)
    try:
        first = len(agent.events)
        agent._write({"id": "held", "type": "prompt", "message": stage.model.scenario("held", [{"text": "hello"}])})
        began = time.monotonic()
        requests = len(stage.model.log.read_text().splitlines())
        until(lambda: len(stage.model.log.read_text().splitlines()) > requests, 10)
        held = time.monotonic() - began
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: agent.heard(0.05) and any(e.get("type") == "agent_settled" for e in agent.events[first:]))
    assert held < HELD_UP_SECONDS + free, f"the prompt was held up for {held:.3f} s; free {free:.3f} s"


@pytest.mark.parametrize(
    ("mode", "size"),
    [("fuse", 1000), pytest.param("fuse", 50_000, marks=LONG), pytest.param("scan", 50_000, marks=LONG)],
)
def test_nobody_waits_long_however_large_the_workspace(make_stage: MakeStage, mode: str, size: int) -> None:
    """As the extension measures at every hook of its own, less what this machine is late with everything."""
    stage = make_stage("pi", mode=mode, settings='on_exit = "leave"')
    fill(stage.workspace / "many", size)
    agent = stage.start()
    stage.served_by(agent, 90)
    for number in range(3):
        agent.prompt(stage.model.bash(f"turn{number}", f"for d in 00 01; do echo {number} >> many/000/$d/00.txt; done"))
    agent.request("bash", command="echo mine > mine.txt")
    agent.prompt(stage.model.scenario("talk", [{"text": "hello"}]))
    told = stage.do(agent, "/plyfs health")[-1]
    found = re.search(r"waited for plyfs: (\d+) ms \((\w+)\)", told)
    assert found is not None and int(found[1]) <= HELD_UP_SECONDS * 1000, told


def test_a_bad_configuration_turns_plyfs_off_and_leaves_the_agent(make_stage: MakeStage) -> None:
    stage = make_stage("pi", settings='mount = "sometimes"')
    agent = stage.start()
    until(lambda: agent.heard(0.1) and agent.notices)
    assert "config.toml:5: agents.mount" in agent.notices[0], agent.notices
    assert agent.status["plyfs"] == "plyfs off"
    agent.prompt(stage.model.bash("turn1", "echo 1 > a.txt"))
    agent.prompt(stage.model.bash("turn2", "echo 2 > a.txt"))
    assert (stage.workspace / "a.txt").read_text() == "2\n"
    assert len(agent.notices) == 1
    assert not stage.served.is_mounted()


def test_without_the_command(make_stage: MakeStage) -> None:
    stage = make_stage("pi")
    agent = stage.start(env={"PLYFS_COMMAND": "/nonexistent/plyfs"})
    until(lambda: agent.heard(0.1) and agent.notices)
    assert "pip install plyfs" in agent.notices[0]
    agent.prompt(stage.model.bash("turn1", "echo 1 > a.txt"))
    assert (stage.workspace / "a.txt").read_text() == "1\n"
    assert len(agent.notices) == 1


def test_off(make_stage: MakeStage) -> None:
    stage = make_stage("pi", settings='mount = "off"')
    agent = stage.start()
    until(lambda: agent.heard(0.1) and agent.status.get("plyfs"))
    agent.prompt(stage.model.bash("turn1", "echo 1 > a.txt"))
    assert not stage.served.is_mounted()
    assert agent.notices == []


@pytest.mark.parametrize(("answer", "mounted"), [(True, True), (False, False)])
def test_ask(make_stage: MakeStage, answer: bool, mounted: bool) -> None:
    stage = make_stage("pi", settings='mount = "ask"')
    agent = stage.start(on_dialog=lambda request: {"confirmed": answer})
    until(lambda: agent.heard(0.2) and agent.dialogs)
    if mounted:
        stage.served_by(agent)
    else:
        agent.drain(0.5)
    assert stage.served.is_mounted() is mounted


@pytest.mark.parametrize("mode", ["text", pytest.param("json", marks=pytest.mark.long)])
def test_print_mode_never_asks(make_stage: MakeStage, mode: str) -> None:
    stage = make_stage("pi", settings='on_exit = "leave"')
    first = stage.model.bash("turn1", "echo 1 > a.txt")
    run = [*stage.command("-p", first), *(["--mode", "json"] if mode == "json" else [])]
    done = printed(stage, run)
    assert "done turn1" in done.stdout
    (stage.workspace / "a.txt").write_text("changed\n")
    again = [*stage.command("--continue", "-p", stage.model.bash("turn2", "echo 2 > b.txt"))]
    done = printed(stage, again)
    assert (stage.workspace / "a.txt").read_text() == "changed\n"
    assert [row["changed"] for row in stage.states()["checkpoints"] if row["kind"] == "user"] == [1, 1, 1]


@pytest.mark.parametrize(
    ("kind", "mode"), [("pi", "text"), pytest.param("pi", "json", marks=LONG), pytest.param("omp", "text", marks=LONG)]
)
def test_print_mode_tells_of_failures_on_stderr(make_stage: MakeStage, kind: str, mode: str) -> None:
    stage = make_stage(kind, settings='mount = "sometimes"')
    prompt = stage.model.bash("turn1", "echo 1 > a.txt")
    done = printed(stage, [*stage.command("-p", prompt), *(["--mode", "json"] if mode == "json" else [])])
    assert (stage.workspace / "a.txt").read_text() == "1\n"
    assert done.stderr.count("agents.mount") == 1, done.stderr
    assert "agents.mount" not in done.stdout


def test_chinese(make_stage: MakeStage) -> None:
    stage = make_stage("pi")
    agent = stage.start(env={"LANG": "zh_CN.UTF-8", "LC_ALL": "zh_CN.UTF-8"})
    stage.served_by(agent)
    assert "没有可撤销的内容" in stage.do(agent, "/undo")[0]


@pytest.mark.parametrize("kind", ["pi", "omp"])
def test_chinese_by_configuration(make_stage: MakeStage, kind: str) -> None:
    stage = make_stage(kind, settings='language = "zh-CN"')
    agent = stage.start()
    stage.served_by(agent)
    told = stage.do(agent, "/undo")
    assert len([line for line in told if "没有可撤销的内容" in line]) == 1, told
    if kind == "omp":
        return  # it tells its commands to nobody over RPC
    about = {one["name"]: one["description"] for one in agent.request("get_commands")["commands"]}
    assert "回到上一条提示之前" in about["undo"]
    assert sum("回到上一条提示之前" in text for text in about.values()) == 1


@pytest.mark.parametrize(
    ("settings", "told"), [('mount = "sometimes"', "agents.mount：不允许的值"), ("", "的格式版本为 99")]
)
def test_what_goes_wrong_before_there_is_a_daemon_is_told_in_chinese(
    make_stage: MakeStage, settings: str, told: str
) -> None:
    """By the command's JSON, which for others is English."""
    stage = make_stage("pi", settings=settings)
    store = Path(stage.plyfs.environment["PLYFS_HOME"])
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    (store / "version").write_text("plyfs store 99\n")
    agent = stage.start(env={"LANG": "zh_CN.UTF-8", "LC_ALL": "zh_CN.UTF-8"})
    until(lambda: agent.heard(0.1) and agent.notices)
    assert told in agent.notices[0], agent.notices


def test_plyfs_run(make_stage: MakeStage) -> None:
    """Mounted before the agent starts, and left by who mounted it."""
    stage = make_stage("pi")
    prompt = stage.model.bash("turn1", "echo 1 > a.txt")
    command = [*stage.plyfs.command("run", "-C", str(stage.workspace), "--"), *stage.command("-p", prompt)]
    printed(stage, command)
    assert not stage.served.is_mounted()
    assert (stage.workspace / "a.txt").read_text() == "1\n"
    assert [row["changed"] for row in stage.states()["checkpoints"] if row["kind"] == "user"] == [1]


def test_an_agent_that_starts_while_the_last_one_is_still_leaving(make_stage: MakeStage) -> None:
    stage = make_stage("pi")
    for number in range(3):
        agent = stage.start(*(["--continue"] if number else []))
        stage.served_by(agent)
        agent.prompt(
            stage.model.bash(f"turn{number}", f"echo {number} >> a.txt; head -c 3000000 /dev/zero > big{number}")
        )
        agent.close()
    agent = stage.start("--continue")
    stage.served_by(agent)
    until(lambda: agent.heard(0.3) and stage.served.is_mounted())
    for wanted in ("0\n1\n", "0\n", None):
        stage.do(agent, "/undo")
        path = stage.workspace / "a.txt"
        assert (path.read_text() if path.exists() else None) == wanted
