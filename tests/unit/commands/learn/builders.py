"""Answers that were spoken of."""

from __future__ import annotations

from typing import Any

from commands.learn.selection import Remark
from contracts.records import GenerationBody, pack_body
from contracts.tasks import Task
from tests.fakes import a_generation

TASK = Task.model_validate(
    {
        "name": "booking",
        "signals": {
            "edited": {"means": "edit"},
            "accepted": {"type": "bool", "labels": {"true": 1.0, "false": 0.0}},
            "rated": {"means": "thumbs"},
            "stars": {"type": "number", "minimum": 1, "maximum": 5, "decisive": False},
        },
        "reward": {"low": -1.0, "high": 1.0},
    }
)


def body_of(prompt: str, answer: str) -> GenerationBody:
    """Without tokens, as a provider's."""
    messages = [{"role": "user", "content": prompt}]
    return GenerationBody(messages=messages, text=answer, prompt_ids=b"", completion_ids=b"", logprobs=b"")


def answered(prompt: str = "a table for two", answer: str = '{"party": 2}', **changes: Any) -> Any:
    """A generation with this prompt and answer."""
    return a_generation(body=pack_body(body_of(prompt, answer)), **changes)


def remark(prompt: str, chosen: str, rejected: str | None = None, *, person: str = "", **changes: Any) -> Remark:
    """An edit, if there is a rejected text."""
    values: dict[str, Any] = {"kind": "accepted" if rejected is None else "edit"}
    body = body_of(prompt, rejected or chosen)
    record = a_generation(body=b"", **{name: changes.pop(name) for name in ("task", "created_at") if name in changes})
    return Remark(record=record, body=body, chosen=chosen, rejected=rejected, person=person, **(values | changes))
