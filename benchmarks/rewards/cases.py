"""What each kind of verifier is fed, and the plain call of the same library that it is held against.

A pair is fair: both parse the answer, both look at all of it, both say yes or no. Answers alternate between right and
wrong, and no two are equal, so that no cache can help.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jsonschema_rs
import re2

from rewards.verifiers.check import Answer

SCHEMA = {
    "type": "object",
    "required": ["party", "time", "name"],
    "additionalProperties": False,
    "properties": {
        "party": {"type": "integer", "minimum": 1, "maximum": 20},
        "time": {"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"},
        "name": {"type": "string", "minLength": 1, "maxLength": 40},
    },
}
PATTERN = r"^\{.*\"time\":\"([01][0-9]|2[0-3]):[0-5][0-9]\".*\}$"
DATABASES = (
    "create table booking (party int, name text); insert into booking values (2, 'Lee'), (4, 'Kim'), (90000, 'Ann');",
    "create table booking (party int, name text); insert into booking values (1, 'Bo'), (7, 'Cy');",
)


class GraderCase(NamedTuple):
    """One kind: its config, its answers, and the plain call."""

    kind: str
    config: Mapping[str, Any]
    answers: Sequence[Answer]
    plain: Callable[[Answer], object]
    num_plain: int | None = None
    """How many answers the plain call is timed on, where it is slow."""


def cases(num: int) -> list[GraderCase]:
    """The cheap kinds with `num` answers each, the dear ones with fewer."""
    bookings = [_booking(number) for number in range(num)]
    validator = jsonschema_rs.validator_for(SCHEMA)
    pattern = re2.compile(PATTERN)
    return [
        GraderCase(
            "json_schema", {"schema": SCHEMA}, bookings, lambda answer: validator.is_valid(json.loads(answer.text))
        ),
        GraderCase(
            "json_exact", {}, bookings, lambda answer: json.loads(answer.text) == json.loads(answer.reference or "")
        ),
        GraderCase("regex", {"pattern": PATTERN}, bookings, lambda answer: pattern.search(answer.text) is not None),
        GraderCase("exact", {}, bookings, lambda answer: answer.text.strip() == (answer.reference or "").strip()),
        GraderCase("math", {}, [_sum(number) for number in range(max(20, num // 20))], _plain_math),
        GraderCase(
            "sql", {"setup": list(DATABASES)}, [_query(number) for number in range(max(20, num // 20))], _plain_sql
        ),
    ]


def _booking(number: int) -> Answer:
    text = json.dumps({"party": number % 20 + 1, "time": f"{number % 24:02}:00", "name": f"Guest {number}"})
    other = text.replace("Guest", "Other") if number % 2 else text
    return Answer(text, {"reference": other})


def _sum(number: int) -> Answer:
    right = number % 2 == 0
    text = rf"Adding up, we get $\boxed{{\frac{{{2 * number + (not right)}}}{{{2 * 7}}}}}$."
    return Answer(text, {"reference": rf"\frac{{{number}}}{{7}}"})


def _query(number: int) -> Answer:
    gold = f"select name from booking where party > {number}"  # noqa: S608 numbers of our own
    return Answer(gold if number % 2 == 0 else gold.replace(">", "<"), {"reference": gold})


def _plain_math(answer: Answer) -> object:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify  # noqa: PLC0415 seconds to import

    extraction = [LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)]
    gold = parse(f"${answer.reference}$", [LatexExtractionConfig(), ExprExtractionConfig()], parsing_timeout=None)
    return verify(gold, parse(answer.text, extraction, parsing_timeout=None), timeout_seconds=None)


def _plain_sql(answer: Answer) -> object:
    same = True
    for script in DATABASES:
        database = sqlite3.connect(":memory:")
        database.executescript(script)
        found = [sorted(database.execute(query).fetchall()) for query in (answer.text, str(answer.reference))]
        same = same and found[0] == found[1]
        database.close()
    return same
