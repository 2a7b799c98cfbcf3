"""Section [credit] of a task file: which calls of a session learn from what is said of the session as a whole."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from contracts.tasks.section import Misplaced, TaskSection

DEFAULT_DISCOUNT = 0.9


class CreditRule(TaskSection):
    """How a signal about a session is shared among the calls that led to its last answer."""

    rule: Literal["last", "equal", "discounted"] = "equal"
    """`last`: only the last call learns from it; `equal`: all calls, each fully; `discounted`: each call `discount` times as much as
    the one after it."""
    discount: float | None = Field(default=None, gt=0, le=1)
    """Of `discounted`: 0.9 if it is not set."""
    longest_seconds: float = Field(default=86_400.0, gt=0)
    """Calls this much older than the signal are not reached. A session that goes on also keeps its calls waiting no longer than this."""

    @model_validator(mode="after")
    def _discounts(self) -> Self:
        if self.discount is not None and self.rule != "discounted":
            raise Misplaced(
                f'`rule = "{self.rule}"` discounts nothing; remove `discount`, or set `rule = "discounted"`', "discount"
            )
        return self

    def of(self, index: int, calls: int) -> float:
        """The credit of a call: in [0, 1]. `index`: its place among the `calls` that led to the last answer, from 0."""
        behind = calls - 1 - index
        if self.rule == "discounted":
            return float((self.discount or DEFAULT_DISCOUNT) ** behind)
        return 1.0 if self.rule == "equal" or behind == 0 else 0.0
