"""SQL of the shadow: recent prompts that may be asked again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from contracts.arms import unit_of
from contracts.errors import InvalidRecord
from contracts.gating import Sentinel, seed_from
from contracts.records import Generation, GenerationBody, decode_shape
from contracts.tables import generation

PER_UNIT = 3
"""Most prompts of one person, as long as there are enough others."""
_ERASED = "erased"
_PAGE, _LOOKED_FOR_EACH = 500, 20


class ShadowPrompt(NamedTuple):
    """A user's prompt that both versions answer, and the unit that sent it."""

    question: Sentinel
    unit: str
    tools: list[dict[str, Any]]


def read_prompts(connection: Connection, policy: str, num: int, tasks: Collection[str]) -> list[ShadowPrompt]:
    """Up to `num` prompts of users, newest first, of many people.

    Only what was logged is here, so everybody consented. Erased bodies, and records and bodies that cannot be read, are left out.
    """
    found, more = list[ShadowPrompt](), list[ShadowPrompt]()
    taken = Counter[str]()
    for record in _newest(connection, policy, num * _LOOKED_FOR_EACH):
        if len(found) >= num:
            break
        if record.task not in tasks or (prompt := _prompt_of(record)) is None:
            continue
        taken[prompt.unit] += 1
        (found if taken[prompt.unit] <= PER_UNIT else more).append(prompt)
    return [*found, *more][:num]


def _newest(connection: Connection, policy: str, most: int) -> Iterator[Generation]:
    columns = generation.c
    statement = (
        select(columns.record)
        .where(columns.policy == policy, columns.purpose == "user", columns.choice == 0, columns.state != _ERASED)
        .order_by(columns.created_at.desc(), columns.completion_id.desc())
    )
    for start in range(0, most, _PAGE):
        page = connection.execute(statement.limit(min(_PAGE, most - start)).offset(start)).scalars().all()
        for wire in page:
            try:
                yield decode_shape(Generation, wire)
            except InvalidRecord:  # one damaged row must not end the train
                continue
        if len(page) < _PAGE:
            return


def _prompt_of(record: Generation) -> ShadowPrompt | None:
    try:
        body = record.open()
    except InvalidRecord:
        return None
    if not body.messages:  # a prompt that is no chat
        return None
    unit = unit_of(
        "user",
        tenant=record.tenant,
        person=record.person,
        session_id=record.session_id,
        completion_id=record.completion_id,
    )
    # What the app says about its answer would name a session or join a signal: only the task is sent.
    question = Sentinel(
        record.task, body.messages, body.metadata, seed_from(record.key.encode()), record.key, _options(body)
    )
    return ShadowPrompt(question, unit.name, body.tools)


def _options(body: GenerationBody) -> dict[str, Any]:
    """The fields of the request that decide the form of its answer. `store`: an answer that nobody saw is not logged."""
    found: dict[str, Any] = {"store": False}
    if body.tools:
        found |= {"tools": body.tools, "tool_choice": body.tool_choice}
    if body.response_format is not None:
        found["response_format"] = body.response_format
    return found
