"""Grammars: bounded before a request enters the batch, kept by it, and valid JSON at the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import jsonschema_rs
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from contracts.errors import GrammarStuck, InvalidRequest, InvalidSchema, Unsupported
from services.engine.engine import Engine
from services.engine.grammars import Grammars, json_grammar
from services.engine.sampling import GenerateRequest
from services.engine.settings import EngineSettings
from services.http import read_json
from tests.unit.services.engine.memory_store import POLICY
from tests.unit.services.engine.policy_world import END_ID, TOKENIZER, policy_engine, policy_store, request
from tests.unit.services.engine.world import complete, make_engine, make_store, until

PROMPT = [2, 40, 41]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b", None]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
CHOICE = {"anyOf": [{"const": "yes"}, {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}]}
ENDLESS: dict[str, Any] = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
CHAIN = "start: r0\n" + "\n".join(f'r{i}: r{i + 1} | r{i * 7 % 5000} "{i}"' for i in range(5000)) + '\nr5000: "x"'
QUICK = 1.0


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    settings = EngineSettings(max_batch_tokens=256, cache_tokens=8192, grammar_seconds=QUICK)
    engine = policy_engine("llama", policy_store("llama", 1), settings=settings)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    grammars = Grammars(TOKENIZER, 704, frozenset({END_ID}), QUICK)
    yield grammars
    grammars.close()


@pytest.mark.parametrize("schema", [PERSON, CHOICE, pytest.param({"type": "object"}, marks=pytest.mark.slow)], ids=str)
async def test_an_answer_under_a_schema_parses_and_is_valid(engine: Engine, schema: dict[str, Any]) -> None:
    assert "constraints" in engine.abilities
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    asked = [
        request(PROMPT, max_tokens=200, seed=seed, temperature=0.7, structured_outputs={"json": schema})
        for seed in range(16)
    ]
    answers = await asyncio.gather(*(complete(engine, one) for one in asked))
    whole = [answer for answer in answers if answer.finish_reason == "stop"]
    assert len(whole) > 4
    for answer in whole:
        assert answer.token_ids[-1] == END_ID
        jsonschema_rs.validate(schema, json.loads(tokenizer.decode(answer.token_ids[:-1])))


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ({"json": {"type": "strange"}}, "strange"),
        ({"json": {"type": "string", "minLength": 5, "maxLength": 2}}, "minLength"),
        ({"json": {"allOf": [{"type": "string"}, {"type": "integer"}]}}, "incompatible"),
        ({"json": {"type": "object", "properties": {"a": False}, "required": ["a"]}}, "unsatisfiable"),
        ({"json": False}, "false"),
        ({"json": ENDLESS}, "refused"),
        ({"json": {"not": {"type": "string"}}}, "not"),
        ({"json": {"$ref": "http://127.0.0.1/x"}}, "not present"),
        ({"json": {"type": "integer", "multipleOf": 999983}}, "longer than"),
        ({"grammar": CHAIN}, "nested too deep"),
        ({"grammar": "start: nothing"}, "nothing"),
        ({"grammar": "start: start"}, "refused"),
        ({"grammar": "start: " + "(" * 1000 + '"a"' + ")" * 1000}, "nested"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_grammar_that_cannot_be_used_is_refused_before_it_enters(
    engine: Engine, outputs: dict[str, Any], words: str
) -> None:
    started = monotonic()
    with pytest.raises(InvalidSchema) as caught:
        await engine.resolve(POLICY).open(request(PROMPT, structured_outputs=outputs))
    assert monotonic() - started < 30  # of which the limit is one, the rest is a process that starts on a busy machine
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "invalid_schema", "structured_outputs")
    assert words in caught.value.message
    assert len(caught.value.message) < 700
    assert engine.resolve(POLICY).num_in_flight == 0
    answer = await complete(engine, request(PROMPT, structured_outputs={"json_object": True}, max_tokens=2))
    assert len(answer.token_ids) == 2, "the next request is served"


@pytest.mark.parametrize("depth", [1000, 100_000])
async def test_a_schema_that_nests_deep_is_refused(engine: Engine, depth: int) -> None:
    schema = '{"type":"array","items":' * depth + "{}" + "}" * depth
    body = b'{"model":"%s","token_ids":[2],"sampling_params":{"structured_outputs":{"json":%s}}}'
    with pytest.raises(InvalidRequest) as caught:
        await engine.resolve(POLICY).open(read_json(GenerateRequest, body % (POLICY.encode(), schema.encode())))
    assert caught.value.status == 400


async def test_structured_outputs_take_exactly_one_kind(engine: Engine) -> None:
    for outputs in ({}, {"json_object": False}, {"json_object": True, "grammar": 'start: "a"'}):
        with pytest.raises(InvalidRequest):
            await engine.resolve(POLICY).open(request(PROMPT, structured_outputs=outputs))
    assert engine.resolve(POLICY).num_in_flight == 0


async def test_tokens_that_do_not_follow_the_grammar_cannot_be_continued(engine: Engine) -> None:
    with pytest.raises(InvalidSchema, match="do not follow"):
        await engine.resolve(POLICY).open(
            request(PROMPT, num_made=2, structured_outputs={"grammar": 'start: "zzz"'}),
        )


async def test_a_policy_without_a_tokenizer_refuses_grammars_by_name() -> None:
    engine = make_engine(make_store(1))
    engine.update("live", 1)
    assert "constraints" not in engine.abilities
    with pytest.raises(Unsupported):
        await engine.resolve(POLICY).open(request(PROMPT, structured_outputs={"json_object": True}))
    engine.close()


def test_a_tokenizer_that_cannot_be_read_for_grammars_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(path))  # noqa: S106 not a secret
    grammars = Grammars(path, 2, frozenset({1}), QUICK)
    with pytest.raises(Unsupported, match="tokenizer"):
        grammars.matcher(json_grammar("{}"))
    grammars.close()


class _Stuck:
    """A matcher that fails at its third token, as llguidance does at one of its limits."""

    def __init__(self) -> None:
        self.num_steps = 0

    def compute_bitmask(self) -> bytes:
        self.num_steps += 1
        return b"\xff" * 88

    def consume_token(self, sampled_token: int) -> bool:  # noqa: ARG002 the name is the protocol's
        return self.num_steps < 3

    def get_error(self) -> str:
        return "ParserTooComplex" if self.num_steps >= 3 else ""


async def test_a_grammar_that_gets_stuck_ends_its_answer_alone(engine: Engine) -> None:
    arm = engine.resolve(POLICY)
    restarts = arm.restarts
    beside = asyncio.create_task(complete(engine, request(PROMPT, max_tokens=60, seed=1)))
    asked = request(PROMPT, max_tokens=60, stream=True)
    active = arm._reserve(asked)
    arm._enter(active, asked, _Stuck())
    with pytest.raises(GrammarStuck, match="ParserTooComplex") as caught:
        async for _ in active.chunks():
            pass
    assert (caught.value.status, caught.value.code) == (400, "grammar_stuck")
    assert len((await beside).token_ids) == 60
    assert arm.restarts == restarts
    await until(lambda: arm.num_in_flight == 0)


def test_a_grammar_is_compiled_once(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    grammar = json_grammar(json.dumps(PERSON))
    first = grammars.matcher(grammar)
    assert first.consume_token(first.compute_ff_tokens()[0]) if first.compute_ff_tokens() else True
    assert grammars._checker is not None
    monkeypatch.setattr(grammars._checker, "check", lambda _grammar: pytest.fail("compiled a second time"))
    assert grammars.matcher(grammar).compute_bitmask() != b""


def test_a_checker_that_died_is_started_again(grammars: Grammars) -> None:
    grammars.matcher(json_grammar('{"type": "boolean"}'))
    checker = grammars._checker
    assert checker is not None
    assert checker._process is not None
    checker._process.kill()
    checker._process.wait()
    grammars.matcher(json_grammar('{"type": "null"}'))


def test_several_end_tokens_all_end_an_answer() -> None:
    grammars = Grammars(Path(TOKENIZER), 704, frozenset({END_ID, 0}), QUICK)
    matcher = grammars.matcher(json_grammar('{"enum": [1]}'))
    assert matcher.consume_tokens(Tokenizer.from_file(str(TOKENIZER)).encode("1", add_special_tokens=False).ids)
    mask = matcher.compute_bitmask()
    assert mask[0] & 0b11 == 0b11
    grammars.close()
