"""Calls of a session: which goes on from which, with which tokens, and why a branch begins."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.ids import new_completion_id
from contracts.turns import BRANCHES
from runtime.replicas.in_process import LocalSessionStore
from runtime.template.chat_template import ChatTemplate
from services.inference.answer import Choice
from services.inference.requests import ChatRequest, parse_chat_request
from services.inference.sessions.turns import Turn, Turns
from tests.chat_templates.bundled import BundledTemplates
from tests.unit.services.inference.sessions.test_suffixes import DROPS_IN_TOOL_CYCLES, THANKED, close_of
from tests.unit.services.inference.test_template_tools import TOOLS, WITH_CALLS

FIRST: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Tisch für vier?"},
]

FAMILIES = ("qwen3", "glm4moe", "llama3_1", "gemma4", "qwen3_8", "gptoss")


@dataclass
class Agent:
    """A client, and a model that writes what the test says."""

    name: str
    template: ChatTemplate
    turns: Turns
    tenant: str = "t"
    session: str = "s1"
    ids: dict[str, list[int]] = field(default_factory=dict)
    """Prompt and answer of each call."""

    def ask(self, messages: Sequence[dict[str, Any]], *, logged: bool = True, **fields: Any) -> Turn:
        return asyncio.run(self._ask(messages, logged=logged, **fields))

    async def _ask(self, messages: Sequence[dict[str, Any]], *, logged: bool, **fields: Any) -> Turn:
        request = self.request(messages, **fields)
        turn = await self.turns.next(request, self.tenant, self.session, logged=logged)
        if turn.parent is not None:
            before = self.ids[turn.parent]
            assert turn.prompt_ids[: turn.parent_tokens] == before[: turn.parent_tokens]
            assert turn.branch or turn.parent_tokens == len(before)
        return turn

    def request(self, messages: Sequence[dict[str, Any]], **fields: Any) -> ChatRequest:
        body = {"model": "demo", "messages": list(messages), "tools": TOOLS, **fields}
        return parse_chat_request(msgspec.json.encode(body))

    def answer(
        self,
        turn: Turn,
        text: str = "",
        *,
        calls: Sequence[dict[str, Any]] = (),
        reasoning: str = "",
        logged: bool = True,
        closed: bool = True,
    ) -> tuple[str, dict[str, Any]]:
        """What the model wrote, and the message that the client sends back of it."""
        written = [*self.template.tokenizer.encode(reasoning + text + "x" * len(calls)).ids]
        if closed:
            written.append(close_of(self.template, self.name, is_call=bool(calls)))
        choice = SimpleNamespace(
            index=0, tokens=[SimpleNamespace(id=token) for token in written], text=text, calls=list(calls),
            reasoning=reasoning, finish_reason="stop" if closed else "length", is_closed=closed,
        )  # fmt: skip
        completion = new_completion_id(self.session)
        asyncio.run(self.turns.keep(turn, completion, [cast("Choice", choice)], logged=logged))
        self.ids[f"{completion}:0"] = [*turn.prompt_ids, *written]
        return f"{completion}:0", {
            "role": "assistant",
            "content": text,
            **({"tool_calls": list(calls)} if calls else {}),
        }


@pytest.fixture
def agent(templates: dict[str, ChatTemplate]) -> Agent:
    return make_agent(templates, "qwen3")


def make_agent(templates: dict[str, ChatTemplate], name: str) -> Agent:
    return Agent(name, templates[name], Turns(templates[name], LocalSessionStore(), 60.0))


def said(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def call(number: int) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": f'{{"city":  "Köln {number}"}}'}
    return {"id": f"call{number:05}", "type": "function", "function": function}


def result(number: int) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call{number:05}", "content": f'{{"sun": {number}}}'}


@pytest.mark.parametrize(
    "name", [name if name in FAMILIES else pytest.param(name, marks=pytest.mark.slow) for name in WITH_CALLS]
)
def test_fifty_turns_with_tools_are_one_row(templates: dict[str, ChatTemplate], name: str) -> None:
    agent, messages, parent = make_agent(templates, name), list(FIRST), None
    reasoning = "" if name in DROPS_IN_TOOL_CYCLES else "Let me see. "
    for number in range(50):
        turn = agent.ask(messages)
        assert (turn.branch, turn.parent) == ("" if number else "first", parent)
        parent, answer = agent.answer(turn, calls=[call(number)], reasoning=reasoning)
        # A client that writes JSON in its own way, and sends the reasoning back or not.
        function = {"name": "get_weather", "arguments": f'{{"city":"Köln {number}"}}'}
        answer["tool_calls"] = [{**call(number), "function": function}]
        if reasoning and number % 2:
            answer["reasoning_content"] = reasoning
        messages += [answer, result(number)]


def test_a_question_after_reasoning_is_a_branch_where_the_template_drops_it(templates: dict[str, ChatTemplate]) -> None:
    for name, branch in (("qwen3", "reasoning_dropped"), ("qwen3_8", ""), ("qwen2_5", "")):
        agent = make_agent(templates, name)
        reasoning = "" if name == "qwen2_5" else "Hm. "
        called, answer = agent.answer(agent.ask(FIRST), calls=[call(1)], reasoning=reasoning)
        told, last = agent.answer(agent.ask([*FIRST, answer, result(1)]), "Sonne.")
        turn = agent.ask([*FIRST, answer, result(1), last, THANKED])
        assert (turn.branch, turn.parent) == (branch, told), called


def test_a_plain_question_without_reasoning_goes_on(agent: Agent) -> None:
    first, answer = agent.answer(agent.ask(FIRST), " Gut. ")
    echoed = {**answer, "content": "Gut."}  # many clients strip
    turn = agent.ask([*FIRST, echoed, THANKED])
    assert (turn.parent, turn.branch) == (first, "")
    assert turn.prompt_ids[: turn.parent_tokens] == agent.ids[first]


def test_every_break_has_its_reason(agent: Agent) -> None:
    first, answer = agent.answer(agent.ask(FIRST), "Gut.")
    more = [*FIRST, answer, THANKED]
    second, thanks = agent.answer(agent.ask(more), "Gern.", reasoning="Hm")
    whole = [*more, thanks, THANKED]

    def reason(messages: Sequence[dict[str, Any]], **fields: Any) -> tuple[str, str | None]:
        turn = agent.ask(messages, **fields)
        return turn.branch, turn.parent

    assert reason(FIRST) == ("repeated", None)
    assert reason(more) == ("", first)  # a retry is a sibling
    assert reason([FIRST[0], {"role": "user", "content": "Name this chat"}]) == ("other_beginning", None)
    assert reason([{"role": "user", "content": "Summarise"}, said("?"), THANKED]) == ("other_beginning", None)
    assert reason([*more, said("Rewritten."), THANKED]) == ("answer_rewritten", first)
    assert reason([*FIRST, said("Rewritten."), THANKED]) == ("answer_rewritten", None)
    assert reason([*FIRST, {"role": "user", "content": "cut"}, said("x"), THANKED]) == ("history_rewritten", None)
    assert reason([*whole, said("not from here"), THANKED]) == ("foreign_answer", second)
    assert reason(whole, tools=TOOLS[:1]) == ("tools_changed", second)
    assert reason(whole, tools=TOOLS[::-1]) == ("tools_changed", second)
    assert reason(whole, tool_choice="none") == ("tools_changed", second)
    assert reason(whole, chat_template_kwargs={"enable_thinking": False}) == ("options_changed", second)
    assert reason([*more, {**thanks, "reasoning_content": "Other"}, THANKED]) == ("reasoning_changed", second)
    assert reason(whole) == ("reasoning_dropped", second)
    assert reason([*more, thanks]) == ("no_new_message", second)
    agent.session = "s2"
    assert reason(whole) == ("unknown_history", None)
    agent.session, agent.tenant = "s1", "another"
    assert reason(whole) == ("unknown_history", None)
    assert reason(FIRST) == ("first", None)


def test_an_answer_that_was_cut_is_not_gone_on_from(agent: Agent) -> None:
    first, answer = agent.answer(agent.ask(FIRST), "Gut, ab", closed=False)
    turn = agent.ask([*FIRST, answer, THANKED])
    assert (turn.branch, turn.parent) == ("answer_cut", first)


def test_an_answer_that_may_not_be_stored_stays_in_memory(templates: dict[str, ChatTemplate]) -> None:
    store = LocalSessionStore()
    agent = Agent("qwen2_5", templates["qwen2_5"], Turns(templates["qwen2_5"], store, 60.0))
    first, answer = agent.answer(agent.ask(FIRST, logged=False), "Gut.", logged=False)
    assert not store._values
    turn = agent.ask([*FIRST, answer, THANKED], logged=False)
    assert (turn.parent, turn.branch) == (first, "")
    assert agent.ask([*FIRST, answer, THANKED]).branch == "unknown_history"


def test_what_another_release_kept_is_not_known(templates: dict[str, ChatTemplate]) -> None:
    store = LocalSessionStore()
    agent = Agent("qwen3", templates["qwen3"], Turns(templates["qwen3"], store, 60.0))
    _, answer = agent.answer(agent.ask(FIRST), "Gut.")
    for name in list(store._values):
        asyncio.run(store.write({name: b"\x93\x01\x02\x03"}, 60.0))
    assert agent.ask([*FIRST, answer, THANKED]).branch == "unknown_history"


def test_two_branches_at_once_keep_their_own_tokens(agent: Agent) -> None:
    first, answer = agent.answer(agent.ask(FIRST), calls=[call(1)])
    both = [agent.ask([*FIRST, answer, {**result(1), "content": str(number)}]) for number in range(2)]
    assert [turn.parent for turn in both] == [first, first]
    ends = [agent.answer(turn, calls=[call(2)]) for turn in both]
    for number, (name, last) in enumerate(ends):
        history = [*FIRST, answer, {**result(1), "content": str(number)}, last, result(2)]
        assert agent.ask(history).parent == name


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), name=st.sampled_from(FAMILIES))
def test_random_trees_never_mix_tokens(seed: int, name: str) -> None:
    """Every prompt begins with its parent's tokens as far as it says; `_ask` checks this for each call."""
    template = BundledTemplates()[name]
    agent = Agent(name, template, Turns(template, LocalSessionStore(), 60.0))
    draw, histories = random.Random(seed), [list(FIRST)]
    for number in range(12):
        history = list(draw.choice(histories))
        kind = draw.random()
        if kind < 0.15 and len(history) > 3:
            at = draw.randrange(2, len(history))
            history[at] = {**history[at], "content": f"changed {number}"}
        elif kind < 0.25:
            history = [{"role": "user", "content": f"title {number}"}]
        turn = agent.ask(history)
        assert turn.branch in BRANCHES
        calls = [call(number)] if draw.random() < 0.6 else []
        reasoning = "Hm. " if draw.random() < 0.3 else ""
        _, answer = agent.answer(
            turn, "" if calls else f"said {number}", calls=calls, reasoning=reasoning, closed=draw.random() < 0.9
        )
        follow = result(number) if calls else {"role": "user", "content": f"more {number}"}
        histories.append([*history, answer, follow])
