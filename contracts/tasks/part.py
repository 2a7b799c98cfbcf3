"""The base of every table of a task file."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """Frozen, no extras, documented by the line under each field."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class Misplaced(ValueError):
    """A mistake that a whole table makes, with the field of it that a person should look at."""

    def __init__(self, message: str, *location: int | str) -> None:
        super().__init__(message)
        self.location = location
