"""Unmodified agents on the serving API: what they are asked, and how their sessions come out in the log.

In: an address and the key of a session. Out: what the agent said at last. Each runs in an environment of its own (`deploy/clients`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.chat_templates.bundled import bundled_source
from tests.clients.scripted import question
from tests.clients.server import TASK
from tests.worlds.gateway import GatewayWorld, running

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
CONTEXT = 32_768
MODEL = "gateway"
_SECONDS = 300
_THOUGHT = "The tool knows. I ask it for this city."
_CITIES = (("Paris", "Rome", "Oslo", "Bern", "Graz", "Nice"), ("Rome", "Paris", "Bern"))
_COMMANDS = (
    "ls -la", "echo 'print(1 / 0)' > sum.py", "python3 sum.py 2>&1 | tail -1", "sed -i 's/0/1/' sum.py", "python3 sum.py",
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat sum.py",
)  # fmt: skip


class Harness(NamedTuple):
    """A program, the environment that runs it, the package whose version is told, and which API it asks."""

    name: str
    environment: str
    program: str
    package: str
    api: str = "chats"


class Plan(NamedTuple):
    """What a harness is asked in one session, and what it has to say to each question."""

    questions: list[str]
    answers: list[str]
    num_calls: int


HARNESSES = (
    Harness("openai (Python), own loop", "openai", "agent_openai.py", "openai"),
    Harness("openai (Python), previous_response_id", "openai", "agent_openai.py", "openai", "responses"),
    Harness("openai (Node), runTools", "node", "agent_openai.mjs", "openai"),
    Harness("anthropic (Python), tool_runner", "anthropic", "agent_anthropic.py", "anthropic", "messages"),
    Harness("anthropic (Node), toolRunner", "node", "agent_anthropic.mjs", "@anthropic-ai/sdk", "messages"),
    Harness("LangGraph, prebuilt agent", "langchain", "agent_langgraph.py", "langgraph"),
    Harness("LangGraph, prebuilt agent", "langchain", "agent_langgraph.py", "langgraph", "responses"),
    Harness("OpenAI Agents SDK", "agents", "agent_agents.py", "openai-agents"),
    Harness("OpenAI Agents SDK", "agents", "agent_agents.py", "openai-agents", "responses"),
    Harness("@ai-sdk/openai-compatible", "node", "agent_vercel.mjs", "@ai-sdk/openai-compatible"),
    Harness("@ai-sdk/openai", "node", "agent_vercel.mjs", "@ai-sdk/openai", "responses"),
    Harness("mini-swe-agent", "mini-swe-agent", "agent_mini_swe.py", "mini-swe-agent"),
)


def plan_of(harness: Harness, *, thinks: bool) -> Plan:
    """Two questions with six and three calls of a tool; of an agent that ends at its answer, one with six commands."""
    thought = {"think": _THOUGHT} if thinks else {}
    if harness.program == "agent_mini_swe.py":
        commands = [{**thought, "call": ["bash", {"command": command}]} for command in _COMMANDS]
        return Plan([question(commands)], ["print(1 / 1)\n"], len(commands))
    steps = [[{**thought, "call": ["get_weather", {"city": city}]} for city in cities] for cities in _CITIES]
    answers = [f"{max(cities)} it is." for cities in _CITIES]
    asked = [question([*calls, {**thought, "say": said}]) for calls, said in zip(steps, answers, strict=True)]
    return Plan(asked, answers, sum(len(calls) + 1 for calls in steps))


@contextmanager
def served(policy: Path, folder: Path) -> Iterator[GatewayWorld]:
    """The serving API with Qwen3's template, in front of the engine that does what questions say."""
    base = folder / "base"
    shutil.copytree(policy, base)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    (base / "chat_template.jinja").write_text(bundled_source("qwen3"))
    engine = ["-m", "tests.clients.scripted", str(base)]
    with running(folder / "home", None, "agents", engine=engine, base=base, task=TASK) as world:
        yield world


def new_session(world: GatewayWorld) -> tuple[str, str]:
    """Id and key of a session."""
    headers = {"authorization": f"Bearer {world.key}"}
    made = httpx.post(f"{world.gateway}/v1/sessions", headers=headers, json={"budget": {"calls": 100}}).json()
    return str(made["id"]), str(made["key"])


def run(harness: Harness, environments: Path, world: GatewayWorld, key: str, questions: Sequence[str]) -> list[str]:
    """One session; what the agent answered to each question.

    Raises:
        RuntimeError: the program failed.
    """
    folder = environments / harness.environment
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "MILLRACE_URL": f"{world.gateway}/v1",
        "MILLRACE_MODEL": MODEL,
        "MILLRACE_KEY": key,
        "MILLRACE_API": harness.api,
        "MILLRACE_QUESTIONS": json.dumps(questions),
    }
    if harness.environment == "node":  # Node looks for packages beside the program; the other file has its copy
        shutil.copytree(PROGRAMS, folder / "agents", dirs_exist_ok=True)
        command = ["node", str(folder / "agents" / harness.program)]
    else:
        command = [str(folder / "bin" / "python"), str(PROGRAMS / harness.program)]
    ended = subprocess.run(  # noqa: S603 the programs beside this file
        command, env=variables, capture_output=True, text=True, check=False, timeout=_SECONDS
    )
    told = [line for line in ended.stdout.splitlines() if line.startswith('{"answers"')]
    if ended.returncode or not told:
        raise RuntimeError(f"{harness.name} failed: {ended.stdout[-2000:]}{ended.stderr[-4000:]}")
    answers: Any = json.loads(told[-1])["answers"]
    return [str(answer) for answer in answers]


def installed_version(environments: Path, environment: str, package: str) -> str:
    """Of a package in an environment, as it is installed or pinned."""
    if environment == "node":
        content = json.loads((environments / environment / "node_modules" / package / "package.json").read_text())
        return str(content["version"])
    pins = (HERE / "environments" / f"{environment}.txt").read_text()
    return str(dict(line.split("==") for line in pins.splitlines() if "==" in line)[package])
