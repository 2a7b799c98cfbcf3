"""The grammar of every family compiles, and all that it allows is read as calls of the offered tools."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import jsonschema_rs
import llguidance
import numpy as np
import pytest

from contracts.answers.grammar import spaced
from services.inference.tools.forcing import answer_grammar, reasoning_budget
from services.inference.tools.parser import schemas_of
from tests.each_case import each_case
from tests.worlds.tool_calls import END, SAMPLES, TOOLS, Sample, ToolCallsWorld, calls_of, world_of

WORLDS = [
    pytest.param(sample, world_of(sample, tokens=tokens), id=f"{sample.name}-{place}-{'tokens' if tokens else 'text'}")
    for place, sample in enumerate(SAMPLES)
    for tokens in (True, False)
]
MOST_TOKENS = 1500


class Drawn:
    """Answers that a grammar allows, drawn at random."""

    def __init__(self, world: ToolCallsWorld, grammar: str) -> None:
        self._tokenizer = world.tokenizer
        self._end = world.tokenizer.token_to_id(END) or 0
        self._llguidance = llguidance.LLTokenizer(world.tokenizer.to_str(), eos_token=self._end)
        self._grammar = grammar
        self.problem = llguidance.LLMatcher.validate_grammar(grammar, self._llguidance)

    def answer(self, seed: int) -> str | None:
        """One answer; None if it grew too long."""
        draw, ids = random.Random(seed), list[int]()
        matcher = llguidance.LLMatcher(self._llguidance, self._grammar, log_level=0)
        while len(ids) < MOST_TOKENS and not matcher.is_stopped():
            allowed = self._allowed(matcher)
            assert allowed
            if self._end in allowed and draw.random() < 0.5:
                break
            others = [number for number in allowed if number != self._end]
            closing = [
                number for number in others if (self._tokenizer.id_to_token(number) or " ")[0] in "\"}]'<>/0123456789"
            ]
            chosen = draw.choice(closing if closing and draw.random() < 0.7 else others)
            ids.append(chosen)
            matcher.consume_token(chosen)
        text = str(self._tokenizer.decode(ids, skip_special_tokens=False))
        return text if len(ids) < MOST_TOKENS else None

    def allows(self, text: str) -> bool:
        matcher = llguidance.LLMatcher(self._llguidance, self._grammar, log_level=0)
        ids = self._tokenizer.encode(text).ids
        return matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting()

    def tokens_of(self, opening: str, rest: str) -> int:
        """How many tokens of `opening`, and then of `rest` again and again, it allows; fails if the rest is never forbidden."""
        matcher = llguidance.LLMatcher(self._llguidance, self._grammar, log_level=0)
        ids = [*self._tokenizer.encode(opening).ids, *self._tokenizer.encode(rest).ids * 100]
        return next(place for place, number in enumerate(ids) if not matcher.consume_token(number))

    def _allowed(self, matcher: Any) -> Sequence[int]:
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        return [int(number) for number in np.nonzero(np.unpackbits(mask, bitorder="little"))[0]]


@pytest.mark.slow
@pytest.mark.parametrize(("sample", "world"), WORLDS)
def test_what_is_forced_is_read(sample: Sample, world: ToolCallsWorld) -> None:
    schemas = schemas_of(TOOLS)
    drawn = Drawn(world, answer_grammar(world.family, schemas, is_required=True))
    assert drawn.problem == ""
    answers = [answer for seed in range(3) if (answer := drawn.answer(seed)) is not None]
    for answer in answers:
        for is_forced in (True, False):
            part = world.read(answer, is_forced=is_forced)
            assert part.content == "", answer
            assert part.calls, answer
            for name, arguments in calls_of(part):
                assert jsonschema_rs.is_valid(dict(schemas[name]), json.loads(arguments)), answer
    assert not drawn.allows("It is sunny.")
    for broken in sample.broken:
        assert not drawn.allows(broken), broken


@each_case(("sample", "world"), WORLDS)
def test_strict_tools_leave_text_free(sample: Sample, world: ToolCallsWorld) -> None:
    drawn = Drawn(world, answer_grammar(world.family, schemas_of(TOOLS)))
    assert drawn.problem == ""
    text = {
        "harmony": "<|channel|>final<|message|>It is sunny.<|return|>",
        "muse": " to=user<|message|>It is sunny.<|eot|>",
    }.get(sample.name, "It is sunny.")
    assert drawn.allows(text)
    assert not drawn.allows(sample.broken[0])


def test_a_format_holds_behind_the_reasoning() -> None:
    for sample in SAMPLES:
        world = world_of(sample, tokens=True)
        if world.family.reasoning is None:
            continue
        opener, closer = world.family.reasoning.opener, world.family.reasoning.closer
        drawn = Drawn(world, answer_grammar(world.family, {}, content={"type": "object"}, in_reasoning=True))
        assert drawn.allows(f"hm\n{closer}\n\n{{}}")
        assert not drawn.allows(f"hm\n{closer}\n\nyes")
        drawn = Drawn(world, answer_grammar(world.family, {}, content={"type": "object"}))
        assert drawn.allows("{}")
        assert drawn.allows(f"{opener}hm{closer}{{}}")
        assert not drawn.allows("yes")


def test_one_call_is_forced_if_calls_are_not_parallel() -> None:
    world = world_of(SAMPLES[0], tokens=True)
    ping = {"ping": schemas_of(TOOLS)["ping"]}
    drawn = Drawn(world, answer_grammar(world.family, ping, is_required=True, parallel=False))
    call = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
    assert drawn.allows(call)
    assert not drawn.allows(f"{call}\n{call}")
    assert not drawn.allows(call.replace("ping", "get_weather"))


@pytest.mark.parametrize("in_reasoning", [True, False])
def test_reasoning_ends_in_time_for_what_is_forced(in_reasoning: bool) -> None:
    """A model that would reason forever is made to close its reasoning while there is room for the call."""
    for sample in SAMPLES:
        world = world_of(sample, tokens=True)
        family = world.family
        opening = ""
        if family.channels is not None:
            opening = " to=self<|message|>" if sample.name == "muse" else "<|channel|>analysis<|message|>"
        elif family.reasoning is None:
            continue
        elif not in_reasoning:
            opening = family.reasoning.opener
        grammar = answer_grammar(family, schemas_of(TOOLS), is_required=True, in_reasoning=in_reasoning, max_tokens=100)
        drawn = Drawn(world, grammar)
        assert drawn.problem == ""
        used = drawn.tokens_of(opening, "wait ")
        assert 8 <= used <= reasoning_budget(100) + len(world.tokenizer.encode(opening).ids), sample.name


def test_a_budget_of_reasoning_leaves_room_and_repeats() -> None:
    assert [reasoning_budget(count) for count in (1, 2, 3, 4, 100, 127, 128, 4000)] == [1, 1, 1, 2, 32, 32, 64, 1024]


def test_json_has_one_way_to_write_white_space() -> None:
    world = world_of(SAMPLES[0], tokens=True)
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "x-guidance": {}}
    drawn = Drawn(world, llguidance.LLMatcher.grammar_from_json_schema(json.dumps(spaced(schema))))
    assert drawn.problem == ""
    assert drawn.allows('{"a": [1, 2]}')
    for free in (' {"a": [1]}', '{"a":[1]}', '{\n "a": [1]}', '{"a": [1,  2]}', '{"a": [1]} '):
        assert not drawn.allows(free), free
