"""Unmodified agents with tools, each in a session of its own. Writes the last part of docs/clients.md, and fails if it says something else.

Needs the environments that `deploy/clients` builds; without them every test is skipped by name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.turns import RowCount, count_rows
from tests.clients.harnesses import HARNESSES, Harness, installed_version, new_session, plan_of, run, served
from tests.clients.policy_digest import POLICY
from tests.clients.server import ROOT, alone
from tests.clients.table import AGENTS, Outcome, agents, with_agents
from tests.worlds.gateway import GatewayWorld
from tests.worlds.sessions.records import LoggedCall, calls_of

pytestmark = pytest.mark.clients
ENVIRONMENTS = Path(os.environ.get("MILLRACE_CLIENTS", ROOT / ".clients"))
PAGE = ROOT / "docs" / "clients.md"
_OF_THE_TEMPLATE = {"reasoning_dropped": 1}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayWorld]:
    missing = sorted({one.environment for one in HARNESSES if not (ENVIRONMENTS / one.environment / ".built").exists()})
    if missing:
        pytest.skip(f"no client environments ({', '.join(missing)}): make clients builds them")
    with served(POLICY, tmp_path_factory.mktemp("agents")) as world:
        yield world


@pytest.fixture(scope="module")
def seen() -> dict[Harness, Outcome]:
    """What each harness came to; the last test writes it down."""
    return {}


@pytest.mark.parametrize("harness", HARNESSES, ids=lambda harness: f"{harness.name}, {harness.api}")
def test_a_session_of_tools_is_one_row(harness: Harness, world: GatewayWorld, seen: dict[Harness, Outcome]) -> None:
    plain, reasoned = (session_of(harness, world, thinks=thinks) for thinks in (False, True))

    version = installed_version(ENVIRONMENTS, harness.environment, harness.package)
    seen[harness] = Outcome(f"{harness.name} {version}", harness.api, plain, reasoned)
    assert (plain.rows, plain.branches) == (1, {"first": 1})
    breaks = _OF_THE_TEMPLATE if len(plan_of(harness, thinks=True).questions) > 1 else {}
    assert reasoned.branches == {"first": 1, **breaks}
    assert min(plain.saved, reasoned.saved) > 0.6


def session_of(harness: Harness, world: GatewayWorld, *, thinks: bool) -> RowCount:
    """One session from beginning to end, checked token for token."""
    session, key = new_session(world)
    plan = plan_of(harness, thinks=thinks)
    assert run(harness, ENVIRONMENTS, world, key, plan.questions) == plan.answers
    calls = [call for call in calls_of(world.home) if call.session == session]
    assert len(calls) == plan.num_calls
    by_key = {call.key: call for call in calls}
    for call in calls:
        if call.turn.parent is not None:
            parent, shared = by_key[call.turn.parent], call.turn.parent_tokens
            assert call.prompt[:shared] == [*parent.prompt, *parent.sampled][:shared]
            assert call.turn.branch or shared == num_tokens(parent)
    return count_rows([call.counted for call in calls])


def num_tokens(call: LoggedCall) -> int:
    return len(call.prompt) + len(call.sampled)


def test_the_page_says_what_came_of_the_agents(world: GatewayWorld, seen: dict[Harness, Outcome]) -> None:
    assert world.process.is_running()
    if len(seen) < len(HARNESSES):
        pytest.skip("only some of the agents ran")
    with alone(ENVIRONMENTS):
        before, part = PAGE.read_text(), agents([seen[harness] for harness in HARNESSES])
        PAGE.write_text(with_agents(before, part))
    # The machine's name is in mini-swe-agent's prompt: shares of tokens differ a little from one to the next.
    told = "".join(before.partition(AGENTS)[1:])
    said_something_else = re.sub(r"\d+%", "%", told) != re.sub(r"\d+%", "%", part)
    assert not said_something_else, "docs/clients.md said something else; it is rewritten: look and commit it"
