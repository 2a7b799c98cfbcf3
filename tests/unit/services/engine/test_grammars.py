"""Grammars: bounded before a request enters the batch, kept by it, and valid JSON at the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, cast

import jsonschema_rs
import psutil
import pytest
from llguidance import LLMatcher
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from contracts.errors import GrammarStuck, InvalidRequest, InvalidSchema, Overloaded, Unavailable, Unsupported
from services.engine.engine import Engine
from services.engine.grammar_queue import QueueBounds
from services.engine.grammars import Grammars, json_grammar
from services.engine.sampling import GenerateRequest
from services.engine.settings import EngineSettings
from services.http import read_json
from tests.worlds.engines.memory_store import POLICY
from tests.worlds.engines.policies import END_ID, TOKENIZER, policy_engine, policy_store, request
from tests.worlds.engines.tiny import complete, make_engine, make_store, until

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
SLOW = {"type": "string", "allOf": [{"pattern": f"[{chr(97 + place)}0].{{{place}}}$"} for place in range(24)]}
"""It takes minutes."""
QUICK = 1.0


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    settings = EngineSettings(max_batch_tokens=256, cache_tokens=8192, grammar_seconds=QUICK)
    engine = policy_engine("llama", policy_store("llama", 1), settings=settings)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    grammars = Grammars(TOKENIZER, 704, frozenset({END_ID}), QUICK, num_workers=1)
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
        ({"json": SLOW}, "longer than"),
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


async def test_a_tokenizer_that_cannot_be_read_for_grammars_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(path))  # noqa: S106 not a secret
    grammars = Grammars(path, 2, frozenset({1}), QUICK, num_workers=1)
    with pytest.raises(Unsupported, match="tokenizer"):
        await grammars.matcher(json_grammar("{}"))
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
    active = arm.submit(request(PROMPT, max_tokens=60, stream=True), cast("LLMatcher", _Stuck()))
    with pytest.raises(GrammarStuck, match="ParserTooComplex") as caught:
        async for _ in active.chunks():
            pass
    assert (caught.value.status, caught.value.code) == (400, "grammar_stuck")
    assert len((await beside).token_ids) == 60
    assert arm.restarts == restarts
    await until(lambda: arm.num_in_flight == 0)


async def test_a_kept_grammar_needs_no_worker() -> None:
    grammars = Grammars(TOKENIZER, 704, frozenset({END_ID}), QUICK, num_workers=1)
    grammar, refused = json_grammar(json.dumps(PERSON)), json_grammar("false")
    first = await grammars.matcher(grammar)
    assert first.consume_tokens(Tokenizer.from_file(str(TOKENIZER)).encode("{", add_special_tokens=False).ids)
    with pytest.raises(InvalidSchema, match="false"):
        await grammars.matcher(refused)
    grammars.close()
    assert (await grammars.matcher(grammar)).compute_bitmask() != first.compute_bitmask(), "each answer has its own"
    with pytest.raises(InvalidSchema, match="false"):
        await grammars.matcher(refused)
    with pytest.raises(Unavailable, match="stopping"):
        await grammars.matcher(json_grammar("{}"))


async def test_a_tenants_slow_grammars_hold_nobody_else_up_and_end_when_it_leaves() -> None:
    others = set(_checkers())
    grammars = Grammars(TOKENIZER, 704, frozenset({END_ID}), seconds=600.0)
    known = json_grammar('{"type": "boolean"}')
    await grammars.matcher(known, tenant="other")
    slow = [json_grammar(json.dumps({"type": "object", "properties": {f"a{number}": SLOW}})) for number in range(6)]
    asked = [asyncio.create_task(grammars.matcher(grammar, tenant="one")) for grammar in slow]
    await until(lambda: len(grammars._running) == 1)
    await until(lambda: len(set(_checkers()) - others) == 2)
    held = set(_checkers()) - others
    await grammars.matcher(known, tenant="other")
    await grammars.matcher(json_grammar('{"type": "null"}'), tenant="other")
    assert not any(task.done() for task in asked)

    for task in asked[1:]:
        task.cancel()
    joined = asyncio.create_task(grammars.matcher(slow[0], tenant="other"))
    await until(lambda: [len(one.waiters) for one in list(grammars._running)] == [2])
    asked[0].cancel()
    await asyncio.wait(asked)
    assert set(_checkers()) - others == held, "another tenant waits for the one that runs"
    joined.cancel()
    await until(lambda: not grammars._running and len(held & set(_checkers())) == 1)
    assert not grammars._queue._open
    await grammars.matcher(json_grammar('{"type": "string"}'), tenant="one")
    grammars.close()


async def test_a_tenant_beyond_its_seconds_is_refused_and_what_is_kept_works() -> None:
    bounds = QueueBounds(seconds_per_minute=QUICK)
    grammars = Grammars(TOKENIZER, 704, frozenset({END_ID}), QUICK, num_workers=1, bounds=bounds)
    with pytest.raises(InvalidSchema):
        await grammars.matcher(json_grammar(json.dumps(SLOW)), tenant="one")
    await until(lambda: not grammars._queue._working)
    small = json_grammar('{"type": "boolean"}')
    with pytest.raises(Overloaded, match="your new schemas and grammars took more than 1 s") as caught:
        await grammars.matcher(small, tenant="one")
    assert 50 < int(caught.value.headers["retry-after"]) <= 60
    await grammars.matcher(small, tenant="other")
    await grammars.matcher(small, tenant="one")
    with pytest.raises(InvalidSchema, match="longer than 1 s"):
        await grammars.matcher(json_grammar(json.dumps(SLOW)), tenant="one")
    grammars.close()


async def test_one_tenants_grammars_do_not_drive_out_anothers() -> None:
    bounds = QueueBounds(600.0, num_requests=300)
    grammars = Grammars(TOKENIZER, 704, frozenset({END_ID}), 30.0, num_workers=1, bounds=bounds)
    known, first = json_grammar('{"type": "boolean"}'), json_grammar('{"const": 0}')
    await grammars.matcher(known, tenant="other")
    await asyncio.gather(
        *(grammars.matcher(json_grammar(json.dumps({"const": number})), tenant="one") for number in range(300))
    )
    grammars.close()
    await grammars.matcher(known, tenant="other")
    with pytest.raises(Unavailable):
        await grammars.matcher(first, tenant="one")


async def test_a_checker_that_died_is_started_again(grammars: Grammars) -> None:
    await grammars.matcher(json_grammar('{"type": "boolean"}'))
    for process in map(psutil.Process, _checkers()):
        process.kill()
        process.wait()  # one that is still ending could take the next grammar, and refuse it
    await grammars.matcher(json_grammar('{"type": "null"}'))


async def test_several_end_tokens_all_end_an_answer() -> None:
    grammars = Grammars(TOKENIZER, 704, frozenset({END_ID, 0}), QUICK, num_workers=1)
    matcher = await grammars.matcher(json_grammar('{"enum": [1]}'))
    assert matcher.consume_tokens(Tokenizer.from_file(str(TOKENIZER)).encode("1", add_special_tokens=False).ids)
    mask = matcher.compute_bitmask()
    assert mask[0] & 0b11 == 0b11
    grammars.close()


def _checkers() -> list[int]:
    """The checking processes of this process."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if child.status() != psutil.STATUS_ZOMBIE and "runtime.killable" in " ".join(child.cmdline()):
                found.append(child.pid)
    return found
