"""The base class of every section of a task file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict


class TaskSection(BaseModel):
    """Frozen, without unknown fields; the line under each field documents it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class Misplaced(ValueError):
    """A mistake of a whole section, with the location of the field to change."""

    def __init__(self, message: str, *location: int | str) -> None:
        super().__init__(message)
        self.location = location


_MESSAGES = {
    "extra_forbidden": "this field does not exist; remove it, or correct its name",
    "tuple_type": 'it takes a list, for example ["a", "b"]',
    "frozen_set_type": 'it takes a list, for example ["a", "b"]',
}
"""Better messages for some of pydantic's error types."""


def mistake_of(error: Mapping[str, Any]) -> str:
    """A message for the author of a task file. `error`: one of pydantic's."""
    return _MESSAGES.get(error["type"]) or str(error["msg"]).removeprefix("Value error, ")
