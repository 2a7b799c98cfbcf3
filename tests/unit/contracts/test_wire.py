"""Whatever a record says, its packed form says the same; what earlier releases wrote is read; damage has a name."""

from __future__ import annotations

import hashlib
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hypothesis
import msgspec
import pytest
import zstandard
from hypothesis import strategies as st
from msgspec import inspect
from msgspec.structs import replace

from contracts.errors import InvalidRecord, NewerSchema
from contracts.event_log import MAX_RECORD_BYTES
from contracts.records import Episode, Experience, Generation, Outcome, Record, Signal, decode, decode_shape, encode
from contracts.wire import SCHEMA, packed, unpacked
from contracts.wire_dictionary import dictionary
from tests.fakes import a_generation, a_signal
from tests.unit.contracts.frozen_records import RECORDS, SCHEMA_2, SCHEMA_3

KINDS = (Generation, Signal, Episode, Experience, Outcome)
_TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
_PLAIN: dict[type[inspect.Type], st.SearchStrategy[Any]] = {
    inspect.BoolType: st.booleans(),
    inspect.IntType: st.integers(-(2**63), 2**64 - 1),
    inspect.FloatType: st.floats(allow_nan=False),
    inspect.StrType: _TEXT,
    inspect.BytesType: st.binary(max_size=200),
    inspect.NoneType: st.none(),
}


def values(about: inspect.Type) -> st.SearchStrategy[Any]:
    """Any value of a type."""
    match about:
        case inspect.LiteralType():
            return st.sampled_from(about.values)
        case inspect.UnionType():
            return st.one_of(*map(values, about.types))
        case inspect.StructType() | inspect.NamedTupleType():
            given = {field.name: values(field.type) for field in about.fields if field.required}
            other = {field.name: values(field.type) for field in about.fields if not field.required}
            other |= {"schema": st.integers(1, SCHEMA)} if issubclass(about.cls, Record) else {}
            return st.fixed_dictionaries(given, optional=other).map(lambda fields: about.cls(**fields))
        case inspect.VarTupleType():
            return st.lists(values(about.item_type), max_size=3).map(tuple)
        case inspect.DictType():
            return st.dictionaries(values(about.key_type), values(about.value_type), max_size=3)
    return _PLAIN[type(about)]


@pytest.mark.parametrize("kind", KINDS)
@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=8, deadline=None)
def test_a_record_is_read_as_it_was_written(kind: type[Record], data: st.DataObject) -> None:
    record = data.draw(values(inspect.type_info(kind)))
    assert decode_shape(kind, encode(record)) == record


def as_of_schema_2(record: Record) -> Record:
    if isinstance(record, Episode):
        record = replace(record, signals=tuple(replace(said, schema=2) for said in record.signals))
    return replace(record, schema=2)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_what_releases_wrote_is_read(record: Record) -> None:
    kind = type(record)
    assert decode(kind, bytes.fromhex(SCHEMA_2[kind])) == as_of_schema_2(record)
    assert decode(kind, bytes.fromhex(SCHEMA_3[kind])) == record
    assert len(encode(record)) < 0.8 * len(bytes.fromhex(SCHEMA_2[kind]))


def test_the_dictionary_never_changes() -> None:
    assert hashlib.blake2b(dictionary(), digest_size=16).hexdigest() == "06583785706309b0c2048b6f1c5ea260"


def test_a_record_of_an_earlier_release_that_is_written_again_stays_what_it_is() -> None:
    old = decode(Signal, bytes.fromhex(SCHEMA_2[Signal]))
    assert decode(Signal, encode(old)) == old


def test_a_process_of_an_earlier_release_refuses_a_packed_record_by_its_schema() -> None:
    assert msgspec.msgpack.decode(encode(a_signal(a_generation())))["schema"] == SCHEMA
    for head in (b"of another dictionary", "of another type"):
        with pytest.raises(NewerSchema, match="upgrade"):
            decode(Signal, msgspec.msgpack.encode({"schema": SCHEMA + 1, "head": head}))


def test_a_body_is_not_compressed_again() -> None:
    body = random.Random(0).randbytes(100_000)
    wire = encode(a_generation(body=body))
    assert body in wire
    assert len(wire) - len(body) < 250


def test_what_is_too_large_for_the_log_stays_too_large() -> None:
    said = a_signal(a_generation(), comment="x" * MAX_RECORD_BYTES)
    wire = encode(said)
    assert len(wire) > MAX_RECORD_BYTES
    assert decode(Signal, wire) == said


def test_a_head_that_would_not_fit_in_memory_is_refused() -> None:
    bomb = zstandard.compress(bytes(2 * MAX_RECORD_BYTES))
    with pytest.raises(InvalidRecord, match=r"Signal.*claims more than"):
        decode(Signal, msgspec.msgpack.encode({"schema": SCHEMA, "head": bomb}))
    endless = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(2 * MAX_RECORD_BYTES))
    with pytest.raises(InvalidRecord, match="not a Signal"):
        decode(Signal, msgspec.msgpack.encode({"schema": SCHEMA, "head": endless}))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_damaged_bytes_are_another_record_or_are_refused(record: Record) -> None:
    wire, chance = bytes.fromhex(SCHEMA_3[type(record)]), random.Random(0)
    for place in range(len(wire)):
        damaged = bytearray(wire)
        damaged[place] ^= chance.randint(1, 255)
        for content in (bytes(damaged), wire[:place]):
            try:
                found = decode(type(record), content)
            except InvalidRecord:
                continue
            assert type(found) is type(record)


@pytest.mark.parametrize("head", ["text", 5, None, [1]])
def test_a_head_of_another_type_is_refused(head: object) -> None:
    with pytest.raises(InvalidRecord, match="not a Signal"):
        decode(Signal, msgspec.msgpack.encode({"schema": SCHEMA, "head": head}))


def test_what_was_not_packed_is_unpacked_to_itself() -> None:
    plain = msgspec.msgpack.encode(a_signal(a_generation()))
    assert unpacked("Signal", plain) == plain
    assert unpacked("Signal", packed(plain)) == plain
    assert unpacked("Signal", packed(plain, 7)) == plain


def test_threads_pack_and_unpack_side_by_side() -> None:
    records = [a_generation(f"answer {number}") for number in range(400)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda record: decode(Generation, encode(record)), records)) == records
