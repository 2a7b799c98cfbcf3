from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from contracts.errors import InvalidTask
from contracts.tasks import Task
from rewards.panel import graders_of
from rewards.verifiers import json_exact, json_schema
from rewards.verifiers.check import Answer
from tests.each_case import each_case

SCHEMA = {"type": "object", "required": ["party"], "properties": {"party": {"type": "integer"}}}


@each_case(
    ("text", "value"),
    [
        ('{"party":2}', 1.0),
        (' {"party": 2} ', 1.0),
        ('{"party":"2"}', 0.0),
        ("{}", 0.0),
        ('{"party":2} and more', 0.0),
        ('{"party":NaN}', 0.0),
        ("", 0.0),
        ("[" * 100_000, 0.0),
    ],
)
def test_json_schema(text: str, value: float) -> None:
    check = json_schema.build({"schema": SCHEMA})(Answer(text, {}))
    assert (check.value, check.fault) == (value, "none" if value else "model")
    assert value or check.reason


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"party":2,"name":"Lee"}', 1.0),
        ('{ "name":"Lee", "party":2 }', 1.0),
        ('{"party":2.0,"name":"Lee"}', 0.0),
        ('{"party":true,"name":"Lee"}', 0.0),
        ('{"party":2,"name":"lee"}', 0.0),
        ("no json", 0.0),
    ],
)
def test_json_exact(text: str, value: float) -> None:
    answer = Answer(text, {"reference": '{"party":2,"name":"Lee"}'})
    assert json_exact.build({})(answer).value == value


@pytest.mark.parametrize(("metadata", "status"), [({}, "unlabelled"), ({"reference": "{"}, "unscored")])
def test_json_exact_without_a_usable_reference_says_nothing(metadata: Mapping[str, str], status: str) -> None:
    check = json_exact.build({})(Answer('{"party":2}', metadata))
    assert (check.value, check.status) == (None, status)


@pytest.mark.parametrize(
    ("kind", "config", "says"),
    [
        ("nosuch", {}, "there are"),
        ("json_schema", {}, "needs"),
        ("json_schema", {"schema": {"type": "nosuch"}}, "schema itself"),
        ("json_exact", {"x": 1}, "no config"),
    ],
)
def test_a_wrong_verifier_is_refused_at_start(kind: str, config: dict[str, Any], says: str) -> None:
    task = Task.model_validate(
        {
            "name": "t",
            "signals": {"a": {"type": "text"}},
            "verifiers": [{"name": "v", "kind": kind, "config": config}],
        }
    )
    with pytest.raises(InvalidTask, match=says):
        graders_of(task)
