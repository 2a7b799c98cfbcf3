"""What `decode` refuses by name, because no process can store it or compute with it."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
import zstandard

from contracts.errors import InvalidRecord, NewerSchema
from contracts.packing import pack_experts
from contracts.records import (
    MAX_BODY_BYTES,
    Episode,
    Experience,
    Generation,
    GenerationBody,
    Outcome,
    Signal,
    decode,
    decode_shape,
    encode,
    open_body,
    pack_body,
    pack_floats,
    pack_ids,
)
from contracts.sampling import ExpertShape, Span
from contracts.wire import SCHEMA, packed
from tests.each_case import each_case
from tests.fakes import a_generation, a_signal
from tests.hostile import BOMB, an_experience

ABOUT = a_generation()
SOUND: dict[type, Any] = {
    Generation: ABOUT,
    Signal: a_signal(ABOUT),
    Episode: Episode(key=ABOUT.key, revision=1, reason="window", turns=(ABOUT,), signals=(), closed_at=1.0),
    Experience: an_experience(),
    Outcome: Outcome(key=ABOUT.key, revision=1, epoch=0, state="unlabelled", writer="rewards", at=1.0),
}


@pytest.mark.parametrize("kind", SOUND)
def test_what_is_sound_is_read_as_it_was(kind: type[Any]) -> None:
    assert decode(kind, encode(SOUND[kind])) == SOUND[kind]


@each_case(
    ("kind", "changes", "field"),
    [
        (Generation, {"task": "a\0"}, "task: .* NUL"),
        (Generation, {"tenant": "x" * 65}, "tenant: 65 characters, up to 64"),
        (Generation, {"arm": "x" * 17}, "arm"),
        (Generation, {"completion_id": "chatcmpl-1"}, "completion_id"),
        (Generation, {"choice": 2**31}, "choice"),
        (Generation, {"choice": -1}, "choice"),
        (Generation, {"created_at": 1e300}, "created_at"),
        (Generation, {"finished_at": math.nan}, "finished_at"),
        (Generation, {"arm_probability": math.inf}, "arm_probability"),
        (Generation, {"ask_probability": -0.1}, "ask_probability"),
        (Generation, {"spans": (Span(0, 2**31),)}, "spans"),
        (Signal, {"id": "\0"}, "id"),
        (Signal, {"id": "x" * 129}, "id"),
        (Signal, {"at": -math.inf}, "at"),
        (Signal, {"received_at": 1e12}, "received_at"),
        (Signal, {"value": math.nan}, "value"),
        (Signal, {"value": 2**64 - 1}, "value"),
        (Signal, {"completion_id": ""}, "completion_id"),
        (Episode, {"key": f"{ABOUT.completion_id}:1_0"}, "key"),
        (Episode, {"key": f"{ABOUT.completion_id}:\u0663"}, "key"),
        (Episode, {"turns": (a_generation(task="\0"),)}, r"turns\[0\].task"),
        (Episode, {"signals": (a_signal(ABOUT, at=1e300),)}, r"signals\[0\].at"),
        (Episode, {"closed_at": 1e300}, "closed_at"),
        (Experience, {"key": "anything"}, "key"),
        (Experience, {"revision": 2**40}, "revision"),
        (Experience, {"scored_at": math.inf}, "scored_at"),
        (Outcome, {"epoch": 2**31}, "epoch"),
        (Outcome, {"reason": "x" * 129}, "reason"),
        (Outcome, {"version": 2**31}, "version"),
        (Outcome, {"key": ""}, "key"),
    ],
)
def test_what_nobody_can_process_is_refused_by_field(kind: type[Any], changes: dict[str, Any], field: str) -> None:
    wire = encode(msgspec.structs.replace(SOUND[kind], **changes))
    with pytest.raises(InvalidRecord, match=f"not a {kind.__name__} that can be processed: {field}"):
        decode(kind, wire)
    assert decode_shape(kind, wire) is not None


@pytest.mark.parametrize("at", [0.0, -1e9, 1_790_000_000.0 + 400 * 86_400])
def test_a_clock_that_is_far_off_is_no_reason_to_lose_a_record(at: float) -> None:
    assert decode(Signal, encode(a_signal(ABOUT, at=at))).at == at


def test_a_reward_that_is_not_finite_has_a_name_already_and_is_read() -> None:
    assert math.isnan(decode(Experience, encode(an_experience(reward=math.nan))).reward or 0.0)


@pytest.mark.parametrize("name", ["token_ids", "logprobs"])
def test_bytes_that_are_no_array_are_refused(name: str) -> None:
    [segment] = an_experience().segments
    broken = msgspec.structs.replace(segment, **{name: b"12345"})
    with pytest.raises(InvalidRecord, match=rf"segments\[0\].{name}: 5 bytes"):
        decode(Experience, encode(an_experience(segments=(broken,))))


NOT_TEXT = msgspec.msgpack.encode(ABOUT).replace(b"default", b"def\xed\xa0\x80t", 1)


@pytest.mark.parametrize("wire", [b"\x91" * 100_000, NOT_TEXT, packed(NOT_TEXT), b""])
def test_bytes_that_no_decoder_takes_are_refused_and_nothing_else_is_raised(wire: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode(Generation, wire)


def test_a_schema_that_nobody_ever_wrote_stops_no_worker() -> None:
    for schema, error in ((SCHEMA + 1, NewerSchema), (2**40, InvalidRecord), (-1, InvalidRecord)):
        with pytest.raises(error) as raised:
            decode(Signal, encode(a_signal(ABOUT, schema=schema)))
        assert type(raised.value) is error


@pytest.mark.parametrize("sealed", [BOMB, zstandard.compress(b"\x91" * 100_000), b""])
def test_a_body_that_would_fill_the_memory_is_refused_before_it_does(sealed: bytes) -> None:
    assert len(BOMB) < MAX_BODY_BYTES / 1000
    with pytest.raises(InvalidRecord, match="damaged GenerationBody"):
        open_body(GenerationBody, sealed)


def body_with(experts: bytes, shape: ExpertShape | None) -> bytes:
    return pack_body(
        GenerationBody(
            messages=[], text="", prompt_ids=pack_ids([1, 2]), completion_ids=pack_ids([3]), logprobs=pack_floats([-1.0]),
            experts=pack_experts(experts) if experts else b"", expert_shape=shape,
        )
    )  # fmt: skip


def test_recorded_experts_are_those_of_all_tokens_but_the_last() -> None:
    assert open_body(GenerationBody, body_with(bytes(24), ExpertShape(2, 3, 2))).experts == pack_experts(bytes(24))


@pytest.mark.parametrize(
    ("experts", "shape"),
    [
        (bytes(24), None),
        (bytes(22), ExpertShape(2, 3, 2)),
        (bytes(36), ExpertShape(3, 3, 2)),
        (b"", ExpertShape(2, 0, 2)),
    ],
)
def test_experts_that_do_not_fit_the_tokens_are_refused(experts: bytes, shape: ExpertShape | None) -> None:
    with pytest.raises(InvalidRecord, match="damaged GenerationBody: experts"):
        open_body(GenerationBody, body_with(experts, shape))
