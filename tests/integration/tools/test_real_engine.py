"""Tools, formats and reasoning of a started Millrace with its real engine, for two families: Qwen 3 and gpt-oss.

The policy's answers are random walks over known pieces (chain_policy.py), so every answer is compared with what its pieces mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jsonschema_rs
import pytest

from tests.worlds.policies.served import (
    BROKEN,
    HARMONY,
    HEADER,
    ODD,
    OTHER,
    RIGHT,
    SAID,
    SCHEMAS,
    THOUGHT,
    TOOLS,
    Served,
    qwen_call,
    serve_chain,
)

pytestmark = pytest.mark.slow


class Meaning(NamedTuple):
    """What an answer must be for its caller."""

    content: str
    reasoning: str
    calls: list[str]


def meaning_of_qwen(pieces: Sequence[str], *, strict: bool = False) -> Meaning:
    """Read from whole pieces, of which each means one thing."""
    content, reasoning, calls = "", "", list[str]()
    for place, piece in enumerate(pieces):
        if piece == f"\n{THOUGHT}\n":
            reasoning += THOUGHT
        elif piece == SAID:
            content += SAID
        elif piece in (qwen_call(RIGHT), qwen_call(ODD), BROKEN):
            closed = pieces[place + 1 : place + 2] == ["</tool_call>"]
            arguments = RIGHT if piece == qwen_call(RIGHT) else ODD
            if closed and piece != BROKEN and not (strict and arguments == ODD):
                calls.append(arguments)
            else:
                content += f"<tool_call>{piece}" + ("</tool_call>" if closed else "")
    return Meaning(content, reasoning, calls)


@pytest.fixture(scope="module")
def harmony(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from serve_chain(tmp_path_factory.mktemp("harmony"), "gptoss", HARMONY)


def squeezed(text: str) -> str:
    return "".join(text.split())


def arguments_of(message: Any) -> list[str]:
    return [call.function.arguments for call in message.tool_calls or []]


@pytest.mark.parametrize("strict", [False, True])
def test_free_answers_mean_what_their_pieces_say(qwen: Served, strict: bool) -> None:
    """Content, reasoning, one call, several calls, broken calls, and calls that a strict tool refuses."""
    tools = [{**tool, "function": {**tool["function"], "strict": strict}} for tool in TOOLS]
    seen: set[tuple[bool, bool, int]] = set()
    for seed in range(6):
        answer = qwen.ask("§go", tools=tools, n=8, seed=seed, max_tokens=60)
        assert answer.model_extra["sampling"]["constraint"] == ""
        for choice in answer.choices:
            pieces = qwen.pieces_of(choice)
            expected = meaning_of_qwen(pieces, strict=strict)
            message = choice.message
            assert arguments_of(message) == expected.calls, pieces
            assert squeezed(message.content or "") == squeezed(expected.content), pieces
            assert (message.model_extra or {}).get("reasoning_content", "") == expected.reasoning, pieces
            if choice.finish_reason != "length":
                assert choice.finish_reason == ("tool_calls" if expected.calls else "stop")
            seen.add((bool(expected.content), bool(expected.reasoning), min(len(expected.calls), 2)))
    # A strict tool refuses half of the calls that could be read, so some mixtures are too rare here.
    usual = {(False, False, 1), (True, True, 0), (True, False, 0)}
    assert usual | (set() if strict else {(False, False, 2), (False, True, 1)}) <= seen


def test_streams_say_the_same_as_whole_answers(qwen: Served) -> None:
    for seed in range(4):
        options: dict[str, Any] = {"tools": TOOLS, "seed": seed, "max_tokens": 60}
        [whole] = qwen.ask("§go", **options).choices
        content, reasoning, calls = "", "", dict[int, str]()
        for chunk in qwen.ask("§go", stream=True, **options):
            for choice in chunk.choices:
                content += choice.delta.content or ""
                reasoning += (choice.delta.model_extra or {}).get("reasoning_content") or ""
                for call in choice.delta.tool_calls or []:
                    calls[call.index] = calls.get(call.index, "") + (call.function.arguments or "")
        assert list(calls.values()) == arguments_of(whole.message)
        assert (content, reasoning) == (
            whole.message.content or "",
            (whole.message.model_extra or {}).get("reasoning_content", ""),
        )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_weather", "count_days"}),
        ({"type": "function", "function": {"name": "count_days"}}, {"count_days"}),
    ],
)
@pytest.mark.parametrize("family", ["qwen", "harmony"])
def test_forced_calls_satisfy_their_schemas(
    request: pytest.FixtureRequest,
    family: str,
    choice: Any,
    names: set[str],
    stream: bool,
) -> None:
    served: Served = request.getfixturevalue(family)
    answer = served.ask("§go", tools=TOOLS, tool_choice=choice, n=2, seed=3, max_tokens=1500, stream=stream)
    calls: dict[tuple[int, int], list[str]] = {}
    if stream:
        reasons = dict[int, str]()
        for chunk in answer:
            for one in chunk.choices:
                reasons[one.index] = one.finish_reason or reasons.get(one.index, "")
                for call in one.delta.tool_calls or []:
                    told = calls.setdefault((one.index, call.index), ["", ""])
                    told[0] += call.function.name or ""
                    told[1] += call.function.arguments or ""
        assert set(reasons.values()) == {"tool_calls"}
    else:
        for one in answer.choices:
            assert one.finish_reason == "tool_calls"
            for place, call in enumerate(one.message.tool_calls):
                calls[one.index, place] = [call.function.name, call.function.arguments]
        assert answer.model_extra["sampling"]["constraint"] == "tool"
    assert {index for index, _ in calls} == {0, 1}
    for name, arguments in calls.values():
        assert name in names
        assert jsonschema_rs.is_valid(SCHEMAS[name], json.loads(arguments)), arguments


def test_without_calls_the_model_does_not_see_tools(qwen: Served) -> None:
    with_tools = qwen.ask("§go", tools=TOOLS, tool_choice="none", seed=1, n=8, max_tokens=60)
    without = qwen.ask("§go", seed=1, n=8, max_tokens=60)
    assert with_tools.usage.prompt_tokens == without.usage.prompt_tokens
    known = (without.usage.prompt_tokens - 1) // 16 * 16
    assert without.usage.prompt_tokens_details.cached_tokens == known, "the engine has just computed this prompt"
    assert all(not choice.message.tool_calls for choice in with_tools.choices)
    assert [choice.message.content for choice in with_tools.choices] == [
        choice.message.content for choice in without.choices
    ]


def test_one_call_if_calls_are_not_parallel(qwen: Served) -> None:
    for forced in ("auto", "required"):
        answer = qwen.ask(
            "§go", tools=TOOLS, tool_choice=forced, parallel_tool_calls=False, n=8, seed=5, max_tokens=200
        )
        assert max(len(choice.message.tool_calls or []) for choice in answer.choices) == 1


def test_a_format_is_kept_whole_and_streamed(qwen: Served) -> None:
    free = {choice.message.content for choice in qwen.ask("§json", n=8, seed=2, max_tokens=20).choices}
    assert free == {"{}", SAID}
    objects = qwen.ask("§json", n=8, seed=2, max_tokens=20, response_format={"type": "json_object"}).choices
    assert {choice.message.content for choice in objects} == {"{}"}
    shape = {"type": "json_schema", "json_schema": {"name": "days", "schema": OTHER}}
    for choice in qwen.ask("§json", n=8, seed=2, max_tokens=200, response_format=shape).choices:
        assert choice.finish_reason == "stop"
        assert jsonschema_rs.is_valid(OTHER, json.loads(choice.message.content))
    for seed in range(4):
        text, reason = "", ""
        for chunk in qwen.ask("§json", seed=seed, max_tokens=200, response_format=shape, stream=True):
            for choice in chunk.choices:
                text, reason = text + (choice.delta.content or ""), choice.finish_reason or reason
        assert (reason, jsonschema_rs.is_valid(OTHER, json.loads(text))) == ("stop", True)


def test_what_is_cut_says_so(qwen: Served) -> None:
    """Too few tokens for the call: the answer is honest, and what came of the call is no whole JSON."""
    [choice] = qwen.ask("§on", tools=TOOLS, tool_choice="required", max_tokens=8, seed=1).choices
    assert choice.finish_reason == "length"
    for arguments in arguments_of(choice.message):
        with pytest.raises(ValueError, match=r"."):
            json.loads(arguments)


def test_gpt_oss_ends_with_its_call(harmony: Served) -> None:
    """`<|call|>` is an end token: it ends the answer, and what stands before it is a call if its message is one."""
    seen = set()
    for seed in range(6):
        for choice in harmony.ask("§go", tools=TOOLS, n=8, seed=seed, max_tokens=60).choices:
            pieces = harmony.pieces_of(choice)
            head = pieces[-6:-2]
            is_call = pieces[-2:] == [RIGHT, "<|call|>"] and head == [HEADER, "<|constrain|>", "json", "<|message|>"]
            calls = arguments_of(choice.message)
            if is_call:
                assert calls == [RIGHT], pieces
                assert choice.finish_reason == "tool_calls"
            else:
                assert calls == [], pieces
            said = [text for text in (THOUGHT, SAID, RIGHT) if text in pieces]
            shown = (
                (choice.message.content or "")
                + str((choice.message.model_extra or {}).get("reasoning_content", ""))
                + "".join(calls)
            )
            assert all(text in shown for text in said), pieces
            assert "<|" not in shown, pieces
            seen.add((is_call, choice.finish_reason))
    assert {(True, "tool_calls"), (False, "stop")} <= seen
