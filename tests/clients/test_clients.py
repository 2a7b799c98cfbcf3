"""Unmodified clients against a started server. Writes docs/clients.md, and fails if the committed page says something else.

Needs the environments that `deploy/clients` builds; without them every test is skipped by name.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from sqlalchemy import select

from contracts.tables import received_signal
from runtime.settings import load_settings
from tests.clients.harnesses import installed_version
from tests.clients.policy_digest import POLICY
from tests.clients.server import MODEL, REQUESTS_PER_MINUTE, ROOT, Millrace, alone, started
from tests.clients.table import AGENTS, Result, page, with_agents
from tests.worlds.servers.peers import running_litellm

pytestmark = pytest.mark.clients
HERE = Path(__file__).parent
ENVIRONMENTS = Path(os.environ.get("MILLRACE_CLIENTS", ROOT / ".clients"))
PROGRAMS = HERE / "programs"
PAGE = ROOT / "docs" / "clients.md"
_SECONDS = 600
_PROXY_KEY = f"sk-{uuid.uuid4().hex}"


class Client(NamedTuple):
    """A program, the environment that runs it, and the package whose version heads its column."""

    name: str
    environment: str
    program: str
    package: str
    variables: tuple[tuple[str, str], ...] = ()


CLIENTS = (
    Client("openai (Python)", "openai", "openai_sdk.py", "openai"),
    Client("openai (Python), our pin", "openai-pinned", "openai_sdk.py", "openai"),
    Client("openai (Node)", "node", "openai_sdk.mjs", "openai"),
    Client("anthropic (Python)", "anthropic", "anthropic_sdk.py", "anthropic"),
    Client("anthropic (Python), API of 2023-06-01", "anthropic-2023", "anthropic_sdk.py", "anthropic"),
    Client("anthropic (Node)", "node", "anthropic_sdk.mjs", "@anthropic-ai/sdk"),
    Client("LangChain: langchain-openai", "langchain", "langchain_sdk.py", "langchain-openai"),
    Client("LangGraph: prebuilt agent", "langchain", "langgraph_agent.py", "langgraph"),
    Client("OpenAI Agents SDK: openai-agents", "agents", "agents_sdk.py", "openai-agents"),
    Client("Vercel AI SDK: @ai-sdk/openai-compatible", "node", "vercel.mjs", "@ai-sdk/openai-compatible",
           (("MILLRACE_PROVIDER", "openai-compatible"),)),
    Client("Vercel AI SDK: @ai-sdk/openai", "node", "vercel.mjs", "@ai-sdk/openai", (("MILLRACE_PROVIDER", "openai"),)),
    Client("instructor", "instructor", "instructor_sdk.py", "instructor"),
    Client("litellm (SDK)", "litellm", "litellm_sdk.py", "litellm"),
    Client("litellm (proxy)", "litellm", "openai_sdk.py", "litellm", (("MILLRACE_THROUGH_PROXY", "1"),)),
    Client("Langfuse (Python)", "langfuse", "langfuse_sdk.py", "langfuse"),
    Client("Langfuse (Python), batches of events", "langfuse-4", "langfuse_sdk.py", "langfuse"),
    Client("OpenTelemetry (Python): OTLP over HTTP", "langfuse", "opentelemetry_sdk.py", "opentelemetry-sdk"),
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Millrace]:
    missing = sorted({one.environment for one in CLIENTS if not (ENVIRONMENTS / one.environment / ".built").exists()})
    if missing:
        pytest.skip(f"no client environments ({', '.join(missing)}): make clients builds them")
    with started(POLICY, tmp_path_factory.mktemp("clients")) as server:
        yield server


@pytest.fixture(scope="module")
def seen() -> dict[str, list[Result]]:
    """What each client got; the last test writes it down."""
    return {}


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_every_feature_works_or_is_refused_by_name(
    client: Client, server: Millrace, seen: dict[str, list[Result]]
) -> None:
    with ExitStack() as stack:
        url, keys = f"{server.url}/v1", (server.new_key(client.name), server.new_key(f"{client.name}, spent"))
        if client.name == "litellm (proxy)":
            url, keys = stack.enter_context(proxy(url, keys[0], server.home.parent)), (_PROXY_KEY, _PROXY_KEY)
        results = run(client, url, keys)
    seen[f"{client.name} {version_of(client)}"] = results
    assert len(results) >= 8
    bad = [result for result in results if not is_answer(result)]
    assert not bad, "\n".join(f"{result.feature}: {result.result}\n{result.message}" for result in bad)


def test_scores_and_evaluations_became_signals(server: Millrace, seen: dict[str, list[Result]]) -> None:
    with load_settings(server.home).snapshot() as connection:
        ids = connection.execute(select(received_signal.c.id)).scalars().all()
    for name, origin in (("Langfuse", "langfuse-"), ("OpenTelemetry", "otel-")):
        if any(client.startswith(name) for client in seen):
            assert sum(one.startswith(origin) for one in ids) >= 6, name


def test_the_page_says_what_was_seen(server: Millrace, seen: dict[str, list[Result]]) -> None:
    assert httpx.get(f"{server.url}/ready", timeout=10).is_success
    if len(seen) < len(CLIENTS):
        pytest.skip("only some of the clients ran")
    with alone(ENVIRONMENTS):
        before = PAGE.read_text() if PAGE.exists() else ""
        now = with_agents(page(seen), "".join(before.partition(AGENTS)[1:]))
        PAGE.write_text(now)
    assert now == before, "docs/clients.md said something else; it is rewritten: look at the difference and commit it"


def is_answer(result: Result) -> bool:
    """True for what works and for refusals that name a reason below 500."""
    if result.result == "works":
        return True
    found = re.match(r"refused: (not sent|4\d\d \w+)", result.result)
    return found is not None and len(result.message) > 10


def run(client: Client, url: str, keys: tuple[str, str]) -> list[Result]:
    """Every case of a program, in its own environment. `keys`: one to use, one to use up."""
    folder = ENVIRONMENTS / client.environment
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "MILLRACE_URL": url,
        "MILLRACE_MODEL": MODEL,
        "MILLRACE_KEY": keys[0],
        "MILLRACE_SPENT_KEY": keys[1],
        "MILLRACE_REQUESTS_PER_MINUTE": str(REQUESTS_PER_MINUTE),
        **dict(client.variables),
    }
    if client.environment == "node":  # Node looks for packages beside the program
        shutil.copytree(PROGRAMS, folder / "programs", dirs_exist_ok=True)
        command = ["node", str(folder / "programs" / client.program)]
    else:
        command = [str(folder / "bin" / "python"), str(PROGRAMS / client.program)]
    ended = subprocess.run(  # noqa: S603 the programs beside this file
        command, env=variables, capture_output=True, text=True, check=False, timeout=_SECONDS
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    lines = [line for line in ended.stdout.splitlines() if line.startswith('{"feature"')]
    return [Result(**json.loads(line)) for line in lines]


def version_of(client: Client) -> str:
    """Of the package, as it is installed."""
    return installed_version(ENVIRONMENTS, client.environment, client.package)


@contextmanager
def proxy(url: str, key: str, folder: Path) -> Iterator[str]:
    """litellm's proxy in front of Millrace, which it calls with `key`; its own callers have `_PROXY_KEY`."""
    model = {"model_name": MODEL, "litellm_params": {"model": f"openai/{MODEL}", "api_base": url, "api_key": key}}
    content = {
        "model_list": [model],
        "litellm_settings": {"drop_params": False, "num_retries": 0},
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
        "general_settings": {"master_key": _PROXY_KEY},
    }
    with running_litellm(content, folder) as peer:
        yield f"{peer.url}/v1"
