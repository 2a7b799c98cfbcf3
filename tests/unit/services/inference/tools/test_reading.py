"""Calls and reasoning are read from an answer in the form of every family; everything else is text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from contracts.answers.parts import AnswerPart
from contracts.answers.registry import FAMILIES, UNKNOWN, family_of
from services.inference.tools.parser import MarkedParser, parser_maker
from tests.chat_templates import byte_tokenizer
from tests.each_case import each_case
from tests.worlds.tool_calls import (
    DS_CALL,
    DS_SEP,
    SAMPLES,
    TOOLS,
    WEATHER,
    Sample,
    ToolCallsWorld,
    added_tokens,
    calls_of,
    whole,
    world_of,
)

HERMES, QWEN, HARMONY, LLAMA = (
    next(s for s in SAMPLES if s.name == name) for name in ("hermes", "qwen_xml", "harmony", "llama")
)
WORLDS = {
    (place, tokens): world_of(sample, tokens=tokens) for place, sample in enumerate(SAMPLES) for tokens in (True, False)
}
EACH = [
    pytest.param(sample, WORLDS[place, tokens], id=f"{sample.name}-{place}-{'tokens' if tokens else 'text'}")
    for place, sample in enumerate(SAMPLES)
    for tokens in (True, False)
]


@each_case(("sample", "world"), EACH)
def test_calls_are_read(sample: Sample, world: ToolCallsWorld) -> None:
    assert world.family.name == sample.name
    part = world.read(sample.calls)
    assert [name for name, _ in calls_of(part)] == ["get_weather", "ping"][: sample.num_calls]
    assert [json.loads(arguments) for _, arguments in calls_of(part)] == [WEATHER, {}][: sample.num_calls]
    assert part.content == ""
    ids = [call.id for call in part.calls if call.id is not None]
    assert len(set(ids)) == sample.num_calls
    assert all(name.startswith("call_") or world.family.short_ids for name in ids)


@each_case(("sample", "world"), EACH)
def test_what_is_no_call_is_text(sample: Sample, world: ToolCallsWorld) -> None:
    for text in sample.broken:
        part = world.read(text)
        assert calls_of(part) == [], text
        shown = (
            text
            if world.family.channels is None
            else text.rpartition("<|message|>")[2].replace("<|eot|>", "").replace("<|call|>", "")
        )
        assert shown.strip() in part.content, text


@each_case(("sample", "world"), EACH)
def test_without_tools_the_same_answer_is_text(sample: Sample, world: ToolCallsWorld) -> None:
    part = world.read(sample.calls, [])
    assert part.calls == ()
    assert "get_weather" in part.content


@each_case(("sample", "world"), EACH)
def test_only_the_first_call_counts_if_calls_are_not_parallel(sample: Sample, world: ToolCallsWorld) -> None:
    assert [name for name, _ in calls_of(world.read(sample.calls, parallel=False))] == ["get_weather"]


@each_case(("sample", "world"), EACH)
def test_an_answer_that_is_cut_gives_no_other_call(sample: Sample, world: ToolCallsWorld) -> None:
    text = world.family.marks.all(sample.calls)
    wanted = calls_of(fed(world, [text]))
    for end in range(len(text)):
        assert calls_of(fed(world, [text[:end]])) in ([], wanted[:1], wanted), text[:end]


AS_WRITTEN = [
    ("hermes", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "a\nb"}}\n</tool_call>', "a\nb"),
    ("hermes", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "b"}}', "b"),
    ("hermes", '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"b\\"}"}', "b"),
    (
        "hermes",
        '<tool_call>{"type": "function", "function": {"name": "get_weather", "parameters": {"city": "b"}}}',
        "b",
    ),
    ("llama", '<|python_tag|>{"name": "get_weather", "parameters": {"city": "b"}}', "b"),
    ("llama", '{"name": "get_weather", "arguments": "{\\"city\\": \\"b\\"}"}', "b"),
    ("mistral", '[TOOL_CALLS]get_weather{"city": "a\nb"}', "a\nb"),
    ("deepseek_v3_1", f'{DS_CALL}get_weather{DS_SEP}{{"city": "a\nb"}}', "a\nb"),
    ("qwen_xml", "<tool_call>\n<function=get_weather>\n<parameter=city>\na\nb\n</parameter>\n</function>", "a\nb"),
    ("harmony", '<|channel|>commentary to=functions.get_weather<|message|>{"city": "a\nb"}', "a\nb"),
    ("gemma4", '<|tool_call>call:get_weather{city:<|"|>a\nb<|"|>}', "a\nb"),
]


@each_case(("name", "text", "city"), AS_WRITTEN)
@each_case("tokens", [True, False])
def test_calls_are_read_as_models_write_them(name: str, text: str, city: str, tokens: bool) -> None:
    world = WORLDS[next(place for place, sample in enumerate(SAMPLES) if sample.name == name), tokens]
    part = world.read(text)
    assert [(called, json.loads(written)) for called, written in calls_of(part)] == [("get_weather", {"city": city})]
    assert part.content == ""


@pytest.mark.parametrize(("sample", "world"), EACH)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_where_the_pieces_end_does_not_matter(sample: Sample, world: ToolCallsWorld, data: st.DataObject) -> None:
    options = (sample.calls, *sample.broken, "Hello ", " < {", "[", "<think>I think.</think>\n\n", "\n", "<", "}")
    text = "".join(data.draw(st.lists(st.sampled_from(options), max_size=5)))
    marked = world.family.marks.all(text)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(marked)), max_size=12)))
    pieces = [marked[start:end] for start, end in zip([0, *cuts], [*cuts, len(marked)], strict=True)]

    split = fed(world, pieces)
    assert without_ids(split) == without_ids(fed(world, [marked]))
    assert without_ids(split) == without_ids(fed(world, list(marked)))
    for _, arguments in calls_of(split):
        assert isinstance(json.loads(arguments), dict)


def fed(world: ToolCallsWorld, pieces: list[str]) -> AnswerPart:
    parser = parser_maker(world.family, world.tokenizer, [], TOOLS)()
    assert isinstance(parser, MarkedParser)
    parts = []
    for piece in pieces:
        parser.feed(piece)
        parts.append(parser.take())
    return whole([*parts, parser.flush()])


def without_ids(part: AnswerPart) -> tuple[str, str, list[tuple[str, str]]]:
    return part.content, part.reasoning, calls_of(part)


def test_text_around_calls_is_kept_and_white_space_beside_them_dropped() -> None:
    world = WORLDS[SAMPLES.index(HERMES), True]
    part = world.read(f"Let me look.\n\n{HERMES.calls}\nDone. \n")
    assert part.content == "Let me look.Done. \n"
    assert len(calls_of(part)) == 2


def test_a_broken_call_does_not_hide_the_next_one() -> None:
    world = WORLDS[SAMPLES.index(HERMES), True]
    part = world.read('<tool_call>oops</tool_call> <tool_call>\n{"name": <tool_call>{"name": "ping"}</tool_call>')
    assert calls_of(part) == [("ping", "{}")]
    assert part.content.startswith("<tool_call>oops</tool_call>")


def test_a_marker_made_of_other_tokens_is_text() -> None:
    world = WORLDS[SAMPLES.index(HERMES), True]
    spelled = [
        number for letter in '<tool_call>{"name": "ping"}</tool_call>' for number in world.tokenizer.encode(letter).ids
    ]
    parser = parser_maker(world.family, world.tokenizer, [], TOOLS)()
    part = whole([*(parser.push(number) for number in spelled), parser.flush()])
    assert part == AnswerPart('<tool_call>{"name": "ping"}</tool_call>')


def test_a_marker_inside_of_an_argument_is_a_part_of_it() -> None:
    world = WORLDS[SAMPLES.index(HERMES), True]
    part = world.read('<tool_call>{"name": "get_weather", "arguments": {"city": "a</tool_call>b<think>"}}</tool_call>')
    assert calls_of(part) == [("get_weather", '{"city": "a</tool_call>b<think>"}')]


@each_case("name", ["hermes", "qwen_xml", "glm", "lfm2"])
@each_case("tokens", [True, False])
def test_reasoning_stands_apart(name: str, tokens: bool) -> None:
    sample = next(sample for sample in SAMPLES if sample.name == name)
    world = WORLDS[SAMPLES.index(sample), tokens]
    part = world.read(f"<think>\nI think: <tool_call>?\n</think>\n\nAnswer {sample.calls}")
    assert part.reasoning == "I think: <tool_call>?"
    assert part.content == "Answer"
    assert len(calls_of(part)) == sample.num_calls
    assert world.read("<think>\n\n</think>\n\nyes", []) == AnswerPart("yes")
    assert world.read("<think>\nstill at it ", []) == AnswerPart(reasoning="still at it")


def test_reasoning_that_the_prompt_opened_needs_no_opener() -> None:
    world = WORLDS[SAMPLES.index(QWEN), True]
    opened = world.tokenizer.encode("<|assistant|>\n<think>\n").ids
    closed = world.tokenizer.encode("<|assistant|>\n<think>\n\n</think>\n\n").ids
    assert world.read("hm\n</think>\n\nyes", prompt=opened) == AnswerPart("yes", "hm")
    assert world.read("hm, cut", prompt=opened) == AnswerPart("", "hm, cut")
    assert world.read("yes", prompt=closed) == AnswerPart("yes")


@pytest.mark.parametrize("tokens", [True, False])
def test_channels_are_told_apart(tokens: bool) -> None:
    world = WORLDS[SAMPLES.index(HARMONY), tokens]
    final = "<|start|>assistant<|channel|>final<|message|>It rains.<|return|>"
    part = world.read(f"<|channel|>analysis<|message|>I think.<|end|>{final}", [])
    assert part == AnswerPart("It rains.", "I think.")
    preamble = "<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant to=functions.ping<|channel|>commentary json<|message|>{}<|call|>"
    part = world.read(preamble)
    assert (part.content, calls_of(part)) == ("Let me look.", [("ping", "{}")])
    assert world.read("<|channel|>analysis<|message|>cut ", []) == AnswerPart(reasoning="cut")


def test_values_mean_what_the_schema_says() -> None:
    world = WORLDS[SAMPLES.index(QWEN), True]
    properties: dict[str, Any] = {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "share": {"type": "number"},
        "flag": {"type": "boolean"},
        "names": {"type": "array", "items": {"type": "string"}},
        "where": {"$ref": "#/$defs/Where"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "kind": {"enum": ["1", "2"]},
    }
    defs = {"Where": {"type": "object", "properties": {"x": {"type": "integer"}}}}
    tool = {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": properties, "$defs": defs}},
    }
    given = {
        "text": "12", "count": "12", "share": "1.5", "flag": "True", "names": '["a"]', "where": '{"x": 1}', "maybe": "null",
        "kind": "1", "free": "7", "other": "seven", "quoted": '"seven"',
    }  # fmt: skip
    text = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in given.items())
    [(_, arguments)] = calls_of(world.read(f"<tool_call>\n<function=f>\n{text}</function>\n</tool_call>", [tool]))
    assert json.loads(arguments) == {
        "text": "12", "count": 12, "share": 1.5, "flag": True, "names": ["a"], "where": {"x": 1}, "maybe": None,
        "kind": "1", "free": 7, "other": "seven", "quoted": '"seven"',
    }  # fmt: skip


def test_what_a_model_writes_for_nothing_is_no_arguments() -> None:
    world = WORLDS[SAMPLES.index(HERMES), True]
    for arguments in ("", ', "arguments": null', ', "arguments": {}', ', "arguments": "{}"', ', "parameters": {}'):
        assert calls_of(world.read(f'<tool_call>{{"name": "ping"{arguments}}}</tool_call>')) == [("ping", "{}")]


@pytest.mark.slow
def test_deep_and_long_arguments_are_text_or_calls_and_never_an_error() -> None:
    for sample in SAMPLES:
        world = WORLDS[SAMPLES.index(sample), True]
        deep = sample.calls.replace("2", "[" * 5000 + "]" * 5000, 1)
        answer = world.read(deep)
        assert answer.content or answer.reasoning or answer.calls


def test_a_family_is_recognised_by_its_template_and_the_rest_is_unknown() -> None:
    tokenizer: Tokenizer = byte_tokenizer()
    assert {sample.name for sample in SAMPLES} < set(FAMILIES)
    family = family_of("{{ messages[0].content }}", added_tokens(tokenizer))
    assert (family.name, family.reads_calls, family.reads_reasoning) == (UNKNOWN, False, False)
    assert "stay text" in family.description
    assert "reasoning apart" in family_of("<think></think>", added_tokens(tokenizer)).description


@pytest.mark.parametrize("sample", [HERMES, LLAMA, HARMONY], ids=lambda sample: sample.name)
def test_a_forced_call_is_shown_as_it_grows(sample: Sample) -> None:
    world = WORLDS[SAMPLES.index(sample), True]
    parser = parser_maker(world.family, world.tokenizer, [], TOOLS, is_forced=True)()
    parts = [parser.push(number) for number in world.tokenizer.encode(sample.calls).ids]
    parts.append(parser.flush())
    calls = [call for part in parts for call in part.calls]
    assert calls[0].name == "get_weather"
    assert calls[0].arguments == ""
    assert sum(call.number == 0 for call in calls) > 10
    assert [json.loads(arguments) for _, arguments in calls_of(whole(parts))] == [WEATHER, {}][: sample.num_calls]


def test_a_forced_call_that_is_cut_keeps_what_was_shown() -> None:
    world = WORLDS[SAMPLES.index(HERMES), True]
    part = world.read('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bo', is_forced=True)
    assert (part.content, calls_of(part)) == ("", [("get_weather", '{"city": "Bo')])
