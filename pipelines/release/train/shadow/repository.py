"""SQL of the shadow: recent prompts that may be asked again, and the pairs of answers that were marked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, select

from contracts.arms import Unit, unit_of
from contracts.draws import UnitKind, hash_of
from contracts.errors import InvalidRecord
from contracts.gating import Sentinel, seed_from
from contracts.records import Generation, GenerationBody, decode_shape
from contracts.tables import generation, shadow_pair, train
from contracts.tables.statements import insert_all_new
from pipelines.release.asking import SentinelAnswer
from pipelines.release.train.words import UnitPace
from runtime.train_settings import TrainSettings

PER_UNIT = 3
"""Most prompts of one person, as long as there are enough others."""
_ERASED = "erased"
_PAGE, _LOOKED_FOR_EACH = 500, 20
_PACE_ANSWERS, _LEAST_ANSWERS = 5_000, 20
"""Answers by which the pace of users is told: the newest ones, and at least so many."""


class ShadowPrompt(NamedTuple):
    """A user's prompt that both versions answer."""

    question: Sentinel
    unit: str
    """Hash of the unit that sent it."""
    tools: list[dict[str, Any]]
    seconds: float
    """How long the user waited for the answer."""
    said: SentinelAnswer
    """What the user got."""


class ShadowPair(NamedTuple):
    """The marks of both answers to one prompt, without their text."""

    key: str
    unit: str
    canary: dict[str, float]
    live: dict[str, float]
    left_out: str
    """Why the pair, or its grades, are not compared; empty: they are."""


def read_prompts(
    connection: Connection,
    policy: str,
    num: int,
    tasks: Collection[str],
    done: Collection[ShadowPair] = (),
    *,
    provided: bool = False,
) -> list[ShadowPrompt]:
    """Up to `num` prompts of users, newest first, of many people, without those of the pairs that are `done`.

    `provided`: only those that a provider answered to the end, and of which the log has all. Only what was logged is here, so everybody
    consented. Erased bodies, and records and bodies that cannot be read, are left out.
    """
    found, more = list[ShadowPrompt](), list[ShadowPrompt]()
    taken, asked = Counter(pair.unit for pair in done), {pair.key for pair in done}
    for record in _newest(connection, policy, (num + len(asked)) * _LOOKED_FOR_EACH):
        if len(found) >= num:
            break
        if record.task not in tasks or record.key in asked:
            continue
        if provided and not _is_comparable(record):
            continue
        if (prompt := _prompt_of(record)) is None:
            continue
        taken[prompt.unit] += 1
        (found if taken[prompt.unit] <= PER_UNIT else more).append(prompt)
    return [*found, *more][:num]


def read_pace(connection: Connection, policy: str, settings: TrainSettings, now: float) -> UnitPace | None:
    """How many units came before `now`, in a train's patience or in the newest answers; None if too few are logged."""
    since = now - settings.patience_seconds
    units, oldest, num = set[str](), now, 0
    for record in _newest(connection, policy, _PACE_ANSWERS):
        if record.created_at < since:
            oldest = since
            break
        units.add(_unit_of(record, settings.unit).name)
        oldest, num = min(oldest, record.created_at), num + 1
    return UnitPace(len(units), now - oldest) if num >= _LEAST_ANSWERS and now > oldest else None


def read_pairs(connection: Connection, train_id: int) -> list[ShadowPair]:
    """The pairs of a train's shadow so far."""
    columns = [shadow_pair.c[name] for name in ShadowPair._fields]
    found = connection.execute(select(*columns).where(shadow_pair.c.train == train_id).order_by(shadow_pair.c.key))
    return [ShadowPair(*row) for row in found]


def add_pairs(connection: Connection, train_id: int, pairs: Iterable[ShadowPair]) -> None:
    """Store pairs; those that another process stored first stay."""
    insert_all_new(connection, shadow_pair, [{"train": train_id, **pair._asdict()} for pair in pairs])


def forget_pairs(connection: Connection, policy: str) -> None:
    """Delete the pairs of trains that have left their shadow: what it found stands in their evidence."""
    columns = train.c
    running = select(columns.id).where(columns.policy == policy, columns.ended_at.is_(None), columns.stage < 0)
    mine = select(columns.id).where(columns.policy == policy, columns.id.not_in(running))
    connection.execute(delete(shadow_pair).where(shadow_pair.c.train.in_(mine)))


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


def _is_comparable(record: Generation) -> bool:
    is_whole = record.provided is not None and not record.provided.is_partial
    return is_whole and record.finish_reason in {"stop", "length"}


def _prompt_of(record: Generation) -> ShadowPrompt | None:
    try:
        body = record.open()
    except InvalidRecord:
        return None
    if not body.messages:  # a prompt that is no chat
        return None
    # What the app says about its answer would name a session or join a signal: only the task is sent.
    seed = seed_from(record.key.encode())
    options = _options(body)
    if record.provided is not None and record.finish_reason == "length" and record.sampling.max_tokens:
        options["max_tokens"] = record.sampling.max_tokens  # it cut the answer that is compared
    question = Sentinel(record.task, body.messages, body.metadata, seed, record.key, options)
    seconds = max(0.0, record.finished_at - record.created_at)
    said = SentinelAnswer(body.text_with_calls, record.finish_reason, finite=True)
    return ShadowPrompt(question, hash_of(_unit_of(record, "user").name), body.tools, seconds, said)


def _unit_of(record: Generation, wanted: UnitKind) -> Unit:
    named = {name: getattr(record, name) for name in ("tenant", "person", "session_id", "completion_id")}
    return unit_of(wanted, **named)


def _options(body: GenerationBody) -> dict[str, Any]:
    """The fields of the request that decide the form of its answer. `store`: an answer that nobody saw is not logged."""
    found: dict[str, Any] = {"store": False}
    if body.tools:
        found |= {"tools": body.tools, "tool_choice": body.tool_choice}
    if body.response_format is not None:
        found["response_format"] = body.response_format
    return found
