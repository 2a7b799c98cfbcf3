"""The world of the support agent: cases, the shop behind its tools, the tool server, the gate's own cases, and the agent's loop."""

from __future__ import annotations

import json
from itertools import islice
from random import Random
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from examples.support.agent import MOST_CALLS, Agent
from examples.support.cases import REFUNDED, REPLACED, SORRY, TOO_LATE, SupportCase, cases
from examples.support.sentinels import sentinels
from examples.support.shop import OFFERED, TOOLS, Shop, ToolRefused, is_solved
from examples.support.teacher import moves, play
from examples.support.tool_server import tool_server


def drawn(number: int = 300) -> list[SupportCase]:
    return list(islice(cases("users", 1), number))


def test_cases_are_the_same_every_time_and_splits_share_none() -> None:
    assert drawn() == drawn()
    assert drawn() != list(islice(cases("users", 2), 300))
    splits = [{case.text for case in islice(cases(split, 0), 300)} for split in ("users", "sentinel", "held_out")]
    assert not splits[0] & splits[1]
    assert not splits[0] & splits[2]
    assert not splits[1] & splits[2]


def test_a_session_without_mistakes_solves_every_case_in_three_or_four_answers() -> None:
    for case in drawn():
        steps, last = play(case, Random(0), mistakes=0.0)
        done = tuple(step.result["done"] for step in steps if "done" in step.result)
        assert is_solved(case, done, last.text)
        assert len(steps) + 1 in {3, 4}


def test_the_base_learns_from_sessions_of_which_a_minority_is_solved() -> None:
    rng, solved = Random(1), 0
    for case in drawn():
        steps, last = play(case, rng)
        done = tuple(step.result["done"] for step in steps if "done" in step.result)
        solved += is_solved(case, done, last.text)
        assert len(steps) < MOST_CALLS
        assert sum(weight for _, weight in moves(case, steps[:1])) == pytest.approx(1.0)
    assert 0.15 < solved / 300 < 0.4


def test_only_the_right_thing_done_once_and_the_right_reply_solve_a_case() -> None:
    by_wish = {case.wants: case for case in drawn() if case.kind != "where"}
    refund, replacement, late = by_wish["refund"], by_wish["replacement"], by_wish[""]
    assert is_solved(refund, ("refund",), REFUNDED)
    assert not is_solved(refund, ("refund", "refund"), REFUNDED)
    assert not is_solved(refund, (), REFUNDED)
    assert not is_solved(refund, ("refund",), SORRY)
    assert is_solved(replacement, ("replacement",), REPLACED)
    assert is_solved(late, (), TOO_LATE)
    assert not is_solved(late, ("refund",), REFUNDED)


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("drop_tables", {}, "no such tool"),
        ("lookup_order", {"item": "lamp-10"}, "it takes: order"),
        ("lookup_order", {"order": "customer"}, "no such order"),
        ("lookup_order", {"order": ["a"]}, "no such order"),
    ],
)
def test_a_tool_refuses_what_it_cannot_do(name: str, arguments: dict[str, Any], why: str) -> None:
    shop = Shop()
    shop.open(drawn()[0])
    with pytest.raises(ToolRefused, match=why):
        shop.call(name, arguments)


def test_an_item_out_of_stock_is_not_sent() -> None:
    case, shop = next(case for case in drawn() if not case.stock), Shop()
    shop.open(case)
    with pytest.raises(ToolRefused, match="out of stock"):
        shop.call("send_replacement", {"order": case.order})
    assert shop.close(case) == ()


@pytest.mark.enable_socket
def test_the_tool_server_answers_over_http_and_remembers_what_was_done() -> None:
    case = next(case for case in drawn() if case.wants == "refund")
    with tool_server() as shop, httpx.Client(base_url=shop.url) as client:
        shop.open(case)
        found = client.post("/tools/lookup_order", json={"order": case.order})
        assert (found.status_code, found.json()["item"]) == (200, case.item)
        assert client.post("/tools/issue_refund", json={"order": case.order}).json() == {"done": "refund"}
        assert client.post("/tools/lookup_order", json={"order": "0"}).status_code == 422
        assert client.post("/tools/lookup_order", content=b"[").status_code == 400
        assert client.post("/orders", json={}).status_code == 404
        assert shop.close(case) == ("refund",)


def test_sentinels_are_moves_of_sessions_without_mistakes() -> None:
    found = list(islice(sentinels(), 100))
    assert found == list(islice(sentinels(), 100))
    calls = [item for item in found if item["reference"].startswith("<tool_call>")]
    assert 40 < len(calls) < 90
    for item in calls:
        call = json.loads(item["reference"].removeprefix("<tool_call>").removesuffix("</tool_call>"))
        assert set(call["arguments"]) == {TOOLS[call["name"]].argument}


class ScriptedModel:
    """Stands for the endpoint: gives the teacher's right moves."""

    def __init__(self, moves_to_give: list[Any]) -> None:
        self.given, self.asked = iter(moves_to_give), list[dict[str, Any]]()
        self.chat = SimpleNamespace(completions=self)

    async def create(self, **asked: Any) -> Any:
        self.asked.append({**asked, "messages": list(asked["messages"])})
        move = next(self.given)
        call = (
            SimpleNamespace(id="c", function=SimpleNamespace(name=move.tool, arguments=json.dumps(move.arguments)))
            if move.tool
            else None
        )
        dumped = {"role": "assistant", "tool_calls": [{"id": "c"}]}
        message = SimpleNamespace(content=move.text, tool_calls=[call] if call else None, model_dump=lambda **_: dumped)
        return SimpleNamespace(id=f"a{len(self.asked)}", policy_version=3, choices=[SimpleNamespace(message=message)])


@pytest.mark.enable_socket
async def test_the_agent_runs_the_tools_that_the_model_calls_and_names_its_session() -> None:
    case = next(case for case in drawn() if case.wants == "replacement")
    steps, last = play(case, Random(0), mistakes=0.0)
    model: Any = ScriptedModel([*(step.move for step in steps), last])
    with tool_server() as shop:
        shop.open(case)
        async with httpx.AsyncClient(base_url=shop.url) as tools:
            worked = await Agent(model, tools, model="support").work(case.text, "s1")
        assert is_solved(case, shop.close(case), worked.reply)
    assert [answer.version for answer in worked.answers] == [3] * (len(steps) + 1)
    assert model.asked[-1]["tools"] == OFFERED
    assert model.asked[-1]["metadata"] == {"session_id": "s1", "task": "support"}
    told = [message["content"] for message in model.asked[-1]["messages"] if message["role"] == "tool"]
    assert [json.loads(text) for text in told] == [step.result for step in steps]


@pytest.mark.enable_socket
async def test_the_agent_gives_up_after_so_many_answers() -> None:
    case = drawn()[0]
    steps, _ = play(case, Random(0), mistakes=0.0)
    model: Any = ScriptedModel([steps[0].move] * MOST_CALLS)
    with tool_server() as shop:
        shop.open(case)
        async with httpx.AsyncClient(base_url=shop.url) as tools:
            worked = await Agent(model, tools, model="support").work(case.text, "s1")
    assert (worked.reply, len(worked.answers)) == ("", MOST_CALLS)
