"""Arguments of strict tools: what the schema allows, compared with an independent implementation, and bounded in time."""

from __future__ import annotations

import json
import time
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.answers.strict import KEYWORDS, StrictSchema
from contracts.errors import InvalidSchema
from tests.each_case import each_case

NAMES = st.sampled_from(["a", "b"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([0.5, 1.0, 2.5])
    | st.sampled_from(["", "a", "ab", "é"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=6,
)
SIMPLE: list[st.SearchStrategy[dict[str, Any]]] = [
    st.sampled_from(["object", "array", "string", "number", "integer", "boolean", "null", ["string", "null"]]).map(
        lambda kind: {"type": kind}
    ),
    st.lists(VALUES, min_size=1, max_size=3).map(lambda values: {"enum": values}),
    VALUES.map(lambda value: {"const": value}),
    st.lists(NAMES, unique=True).map(lambda names: {"required": names}),
    st.tuples(
        st.sampled_from([name for name in KEYWORDS if name.startswith(("min", "max", "exclusive"))]), st.integers(0, 3)
    ).map(lambda pair: {pair[0]: pair[1]}),
    st.sampled_from([1, 2, 0.5]).map(lambda bound: {"multipleOf": bound}),
    st.sampled_from(["a", "^a$", "[b-z]"]).map(lambda pattern: {"pattern": pattern}),
    st.just({"$ref": "#/$defs/d"}),
    st.just({}),
]
SCHEMAS = st.recursive(
    st.one_of(SIMPLE),
    lambda inner: st.one_of(
        st.dictionaries(NAMES, inner, max_size=2).map(lambda parts: {"properties": parts}),
        st.tuples(st.dictionaries(NAMES, inner, max_size=1), inner | st.booleans()).map(
            lambda both: {"properties": both[0], "additionalProperties": both[1]}
        ),
        inner.map(lambda part: {"items": part}),
        st.tuples(st.lists(inner, min_size=1, max_size=2), inner).map(
            lambda both: {"prefixItems": both[0], "items": both[1]}
        ),
        st.tuples(st.sampled_from(["anyOf", "oneOf", "allOf"]), st.lists(inner, min_size=1, max_size=3)).map(
            lambda pair: {pair[0]: pair[1]}
        ),
    ),
    max_leaves=5,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(schema=SCHEMAS, definition=st.one_of(SIMPLE[:3]), value=VALUES)
def test_it_agrees_with_another_implementation(schema: dict[str, Any], definition: dict[str, Any], value: Any) -> None:
    schema = {**schema, "$defs": {"d": definition}}
    assert StrictSchema("f", schema).allows(json.dumps(value)) == jsonschema_rs.is_valid(schema, value)


NUMBER = {"type": "integer"}
TREE = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}


def test_a_schema_may_refer_to_itself() -> None:
    tree = StrictSchema("f", TREE)
    assert tree.allows('{"next": {"next": {}}}')
    assert not tree.allows('{"next": {"next": {"other": 1}}}')
    assert not tree.allows("[" * 100_000)
    assert StrictSchema("f", {"$ref": "#"}).allows("{}")


def test_no_schema_takes_long() -> None:
    """Each of these is exponential for a checker that forgets: 2 to the 40 ways to one definition, and to each level of a value."""
    chain: dict[str, Any] = {
        f"n{place}": {"anyOf": [{"$ref": f"#/$defs/n{place + 1}"}, {"$ref": f"#/$defs/n{place + 1}"}]}
        for place in range(40)
    }
    twice = {"anyOf": [{"properties": {"a": {"$ref": "#"}}, "required": ["b"]}, {"properties": {"a": {"$ref": "#"}}}]}
    deep = '{"a":' * 25 + "1" + "}" * 25
    began = time.process_time()
    assert not StrictSchema("f", {"$defs": {**chain, "n40": NUMBER}, "$ref": "#/$defs/n0"}).allows('"x"')
    assert StrictSchema("f", twice).allows(deep)
    assert not StrictSchema("f", {"pattern": "^(a+)+$"}).allows(json.dumps("a" * 40 + "!"))
    many = {"type": "array", "items": {"anyOf": [NUMBER] * 50}}
    assert not StrictSchema("f", many).allows(json.dumps(["x"] * 5000)), "given up"
    assert time.process_time() - began < 2


@each_case(
    ("schema", "message"),
    [
        ({"if": {}}, "keyword 'if'"),
        ({"properties": {"a": {"not": {}}}}, "keyword 'not'"),
        ({"properties": {"a": 1}}, "object, not int"),
        ({"properties": []}, "properties has a value of the wrong type"),
        ({"minItems": True}, "minItems"),
        ({"type": "text"}, "'text' is not a type"),
        ({"type": [["object"]]}, "is not a type"),
        ({"pattern": "("}, "pattern"),
        ({"pattern": "(?=a)"}, "RE2"),
        ({"$ref": "http://127.0.0.1/x"}, "is not a schema in this one"),
        ({"$ref": "#/$defs/none"}, "is not a schema in this one"),
        ({"$ref": "#/default", "default": {"pattern": "a"}}, "is not a schema in this one"),
        ({"anyOf": [{"$ref": "#/properties"}], "properties": {"pattern": {}}}, "is not a schema in this one"),
    ],
)
def test_what_cannot_be_checked_is_refused(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSchema, match=r".") as raised:
        StrictSchema("f", schema)
    assert message in raised.value.message
    assert "'f'" in raised.value.message
