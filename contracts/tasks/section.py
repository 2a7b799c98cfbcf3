"""The base of every table of a task file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict


class TaskSection(BaseModel):
    """Frozen, no extras, documented by the line under each field."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class Misplaced(ValueError):
    """A mistake that a whole table makes, with the field of it that a person should look at."""

    def __init__(self, message: str, *location: int | str) -> None:
        super().__init__(message)
        self.location = location


_IN_OTHER_WORDS = {
    "extra_forbidden": "not permitted: there is no such field; take it out, or mend its name",
    "tuple_type": 'it takes a list, for example ["a", "b"]',
    "frozen_set_type": 'it takes a list, for example ["a", "b"]',
}
"""By pydantic's types of error: where its own words do not say what to do."""


def mistake_of(error: Mapping[str, Any]) -> str:
    """What is wrong, in words for who writes a task file. `error`: one of pydantic's."""
    return _IN_OTHER_WORDS.get(error["type"]) or str(error["msg"]).removeprefix("Value error, ")
