from __future__ import annotations

import time
from typing import Any

import pytest

from contracts.errors import InvalidTask
from rewards.verifiers import json_exact, json_schema
from rewards.verifiers.check import Answer
from rewards.verifiers.strict_json import MAX_DEPTH, NotJson, read_json
from tests.each_case import each_case

ANYTHING: dict[str, Any] = {"schema": {}}


@each_case(
    ("text", "says"),
    [
        ('{"a":1,"a":2}', "occurs twice"),
        ('[{"b":{"a":1,"a":1}}]', "occurs twice"),
        ("[1e999]", "does not fit"),
        ("[-1e999]", "does not fit"),
        ("[NaN]", "NaN"),
        ("[-Infinity]", "Infinity"),
        (f"[{'9' * 5000}]", "digits"),
        ('"\\ud800"', "surrogate"),
        ('{"\\uDEAD":1}', "surrogate"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "too deep"),
        ("[" * 100_000, "too deep"),
        ('{"a":' * 100_000, "too deep"),
        ("[1] [2]", "follows the value"),
        ("[1]\u00a0", "follows the value"),
        ("\ufeff[1]", "Expecting"),
        ("[01]", "Expecting"),
        ("", "Expecting"),
        ("{'a':1}", "Expecting"),
    ],
)
def test_what_two_readers_could_read_differently_is_the_models_fault(text: str, says: str) -> None:
    with pytest.raises(NotJson, match=says):
        read_json(text)
    check = json_schema.build(ANYTHING)(Answer(text))
    assert (check.value, check.status, check.fault) == (0.0, "scored", "model")
    assert says in check.reason


@pytest.mark.parametrize(
    "text",
    [
        "[" * MAX_DEPTH + "]" * MAX_DEPTH,
        f"[{'9' * 4000}]",
        '"\\ud83d\\ude00"',
        " \n[1.5e3]\t",
        "[" + "[]," * 500 + "[]]",
    ],
)
def test_what_is_unusual_but_plain_is_read(text: str) -> None:
    assert json_schema.build(ANYTHING)(Answer(text)).value == 1.0


def test_a_key_that_stands_twice_among_many_is_found_at_once() -> None:
    text = "{" + ",".join(f'"{number}":1' for number in range(50_000)) + ',"z":1,"z":2}'
    started = time.process_time()
    with pytest.raises(NotJson, match="'z' occurs twice"):
        read_json(text)
    assert time.process_time() - started < 10.0


def test_an_overflow_does_not_pass_for_the_null_that_some_readers_make_of_it() -> None:
    check = json_schema.build({"schema": {"type": ["null", "number"]}})(Answer("1e999"))
    assert (check.value, check.fault) == (0.0, "model")


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|aa)+$", "^(.*a){20}$"])
def test_a_pattern_of_a_schema_takes_linear_time(pattern: str) -> None:
    verifier = json_schema.build({"schema": {"type": "string", "pattern": pattern}})
    started = time.process_time()
    assert verifier(Answer(f'"{"a" * 20_000}!"')).value == 0.0
    assert time.process_time() - started < 10.0


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"pattern": "^(?=a)b"}, "no lookaround"),
        ({"pattern": "(a*)\\1"}, "no lookaround"),
        ({"pattern": "("}, "regex"),
        ({"$ref": "http://127.0.0.1:9/schema.json"}, "disabled"),
        ({"$ref": "file:///etc/hostname"}, "disabled"),
        ({"type": "nosuch"}, "schema itself"),
        ({"minimum": "x"}, "schema itself"),
    ],
)
def test_a_schema_that_fetches_or_runs_for_ever_is_refused(schema: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidTask, match=says) as caught:
        json_schema.build({"schema": schema})
    assert caught.value.param == "schema"


def test_a_schema_too_deep_to_compile_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(3000):
        schema = {"not": schema}
    with pytest.raises(InvalidTask, match="schema itself"):
        json_schema.build({"schema": schema})


@pytest.mark.parametrize(
    ("schema", "text", "says"),
    [
        ({"properties": {"a": {"items": {"type": "integer"}}}}, '{"a": [1, "x"]}', 'a.1: "x" is not of type "integer"'),
        ({"required": ["a"]}, "{}", '"a" is a required property'),
        ({"additionalProperties": False}, '{"a": 5}', "False schema does not allow 5 (additionalProperties)"),
    ],
)
def test_a_refused_value_is_named_with_its_place(schema: dict[str, Any], text: str, says: str) -> None:
    assert json_schema.build({"schema": schema})(Answer(text)).reason == says


def test_another_field_beside_the_schema_is_refused() -> None:
    with pytest.raises(InvalidTask) as caught:
        json_schema.build({"schema": {}, "shema": {}})
    assert caught.value.param == "shema"


@pytest.mark.parametrize("text", ['{"party":9,"party":2}', '{"party":2,"x":1e999}', "[" * 100_000])
def test_json_exact_is_not_fooled_by_a_second_key(text: str) -> None:
    check = json_exact.build({})(Answer(text, {"reference": '{"party":2}'}))
    assert (check.value, check.fault) == (0.0, "model")


@pytest.mark.parametrize("reference", ["[" * 100_000, '{"a":1,"a":2}', "NaN", ""])
def test_a_reference_that_is_no_json_is_the_apps_mistake(reference: str) -> None:
    check = json_exact.build({})(Answer("{}", {"reference": reference}))
    assert (check.value, check.status, check.fault) == (None, "unscored", "user")


NUMBER: dict[str, Any] = {"type": "object", "required": ["b"], "properties": {"b": {"type": "integer"}}}


@each_case(
    ("schema", "text", "fenced", "value"),
    [
        (NUMBER, '<think>y</think>\n{"b": 2}', False, 1.0),
        (NUMBER, '<think>{"b": 2}', False, 0.0),
        (NUMBER, '{"b": 2.0}', False, 1.0),
        (NUMBER, '{"b": true}', False, 0.0),
        (NUMBER, '{"b": NaN}', False, 0.0),
        (NUMBER, '{"b": 2, "b": 3}', False, 0.0),
        (NUMBER, '{"b": 2} // two', False, 0.0),
        (NUMBER, '```json\n{"b": 2}\n```', False, 0.0),
        (NUMBER, '```JSON\r\n{"b": 2}\n```\n', True, 1.0),
        (NUMBER, '{"b": 2}', True, 1.0),
        (NUMBER, '```json\n{"b": 2}\n```\n```json\n{"b": 3}\n```', True, 0.0),
        (NUMBER, 'Here:\n```json\n{"b": 2}\n```', True, 0.0),
        ({"enum": [1]}, "true", False, 0.0),
        ({"enum": [1]}, "1.0", False, 1.0),
        ({"const": False}, "0", False, 0.0),
    ],
)
def test_json_as_models_write_it(schema: dict[str, Any], text: str, fenced: bool, value: float) -> None:
    check = json_schema.build({"schema": schema, "fenced": fenced})(Answer(text))
    assert check.value == value
