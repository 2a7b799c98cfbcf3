from __future__ import annotations

from typing import Any

import msgspec
import pytest

from contracts.errors import InvalidRecord, NewerSchema
from contracts.records import (
    Generation,
    Record,
    Signal,
    decode,
    encode,
    pack_floats,
    pack_ids,
    unpack_floats,
    unpack_ids,
)
from contracts.wire import SCHEMA, packed, unpacked
from tests.fakes import a_generation, a_signal


def as_map(record: Record) -> dict[str, Any]:
    """The fields that are written."""
    return msgspec.msgpack.decode(unpacked("record", encode(record)), type=dict[str, Any])


def test_a_generation_round_trips_with_its_body() -> None:
    sent = a_generation("a text with ünïcode")
    received = decode(Generation, encode(sent))
    assert received == sent
    assert received.open().text == "a text with ünïcode"
    assert unpack_ids(received.open().completion_ids) == [4, 5]


def test_unknown_fields_are_ignored() -> None:
    signal = a_signal(a_generation())
    wire = as_map(signal) | {"colour": "blue"}
    assert decode(Signal, msgspec.msgpack.encode(wire)) == signal


def test_a_newer_schema_is_refused_by_name() -> None:
    signal = a_signal(a_generation())
    for wire in (as_map(signal), msgspec.msgpack.decode(encode(signal))):
        with pytest.raises(NewerSchema, match=rf"schema {SCHEMA + 1}.*upgrade"):
            decode(Signal, msgspec.msgpack.encode(wire | {"schema": SCHEMA + 1}))


NEW = {"attempt", "num_choices", "key_id", "comment", "metadata"}
"""Fields of heads that records of schema 1 lack."""


@pytest.mark.parametrize("record", [a_generation(), a_signal(a_generation())], ids=["generation", "signal"])
def test_records_of_schema_1_are_read_and_are_not_sealed(record: Generation | Signal) -> None:
    old = {name: value for name, value in as_map(record).items() if name not in NEW}
    found = decode(type(record), msgspec.msgpack.encode(old | {"schema": 1}))
    assert found == msgspec.structs.replace(record, schema=1)
    assert found.key_id is None


def test_the_head_says_which_key_a_body_is_sealed_with() -> None:
    for record in (a_generation(key_id="k1"), a_signal(a_generation(), key_id="k1")):
        assert decode(type(record), encode(record)).key_id == "k1"
    with pytest.raises(InvalidRecord, match="key_id"):
        decode(Generation, encode(a_generation(key_id="k" * 65)))


@pytest.mark.parametrize("wire", [b"", b"garbage", msgspec.msgpack.encode([1, 2])])
def test_garbage_is_refused(wire: bytes) -> None:
    with pytest.raises(InvalidRecord, match="Generation"):
        decode(Generation, wire)


def test_a_wrong_field_is_named() -> None:
    plain = msgspec.msgpack.encode(as_map(a_signal(a_generation())) | {"choice": "zero"})
    for wire in (plain, packed(plain)):
        with pytest.raises(InvalidRecord, match="choice"):
            decode(Signal, wire)


def test_a_damaged_body_is_refused() -> None:
    with pytest.raises(InvalidRecord, match="GenerationBody"):
        a_generation(body=b"not zstd").open()


def test_packed_arrays_round_trip() -> None:
    assert unpack_ids(pack_ids([0, 1, 2**31 - 1])) == [0, 1, 2**31 - 1]
    assert unpack_floats(pack_floats([-0.5, float("-inf")])) == [-0.5, float("-inf")]
