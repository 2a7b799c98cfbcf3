"""SQL of a demo's figures."""

from __future__ import annotations

from sqlalchemy import Connection, select

from contracts.ledger import PENDING, generation_counts
from contracts.records import Generation, decode_shape, unpack_ids
from contracts.tables import generation, swap, verdict
from contracts.turns import CountedCall


def accepted_verdicts(connection: Connection, policy: str) -> list[tuple[int, float, float]]:
    """Version, time and accuracy of each accepted verdict, in order."""
    columns = verdict.c
    rows = connection.execute(
        select(columns.version, columns.at, columns.accuracy)
        .where(columns.policy == policy, columns.accepted)
        .order_by(columns.at)
    )
    return [(row.version, row.at, row.accuracy or 0.0) for row in rows]


def num_untrained(connection: Connection, before: float) -> int:
    """Answers to users that ended before this time (UTC epoch seconds), and whose fate is not decided yet."""
    pending = generation.c.purpose == "user", generation.c.created_at < before
    return generation_counts(connection, *pending).states.get(PENDING, 0)


def accepted_accuracies(connection: Connection, policy: str) -> list[tuple[float, float]]:
    """Time and accuracy of each accepted verdict, in order."""
    columns = verdict.c
    rows = connection.execute(
        select(columns.at, columns.accuracy)
        .where(columns.policy == policy, columns.accepted, columns.accuracy.is_not(None))
        .order_by(columns.at)
    )
    return [(row.at, row.accuracy) for row in rows]


def swaps(connection: Connection, policy: str, arm: str) -> tuple[list[float], dict[int, float]]:
    """Seconds that each swap under load added to an inter-token gap; and by version, seconds for which its swap paused the arm.

    Of several swaps to a version, the newest counts.
    """
    statement = select(swap.c.version, swap.c.gap_seconds, swap.c.pause_seconds).order_by(swap.c.id)
    rows = connection.execute(statement.where(swap.c.policy == policy, swap.c.arm == arm)).all()
    gaps = [row.gap_seconds for row in rows if row.gap_seconds is not None]
    return gaps, {row.version: row.pause_seconds for row in rows}


def provider_dollars(connection: Connection) -> float:
    """US dollars that a provider's answers to users cost, as far as they are still stored."""
    found = connection.execute(select(generation.c.record).where(generation.c.purpose == "user"))
    provided = (decode_shape(Generation, wire).provided for (wire,) in found)
    return sum(about.cost or 0.0 for about in provided if about is not None)


def session_calls(connection: Connection) -> dict[str, list[CountedCall]]:
    """The users' calls of each session, with their lengths, as far as they are still stored."""
    found: dict[str, list[CountedCall]] = {}
    for (wire,) in connection.execute(select(generation.c.record).where(generation.c.purpose == "user")):
        record = decode_shape(Generation, wire)
        if record.session_id is None or record.turn is None:
            continue
        body = record.open()
        lengths = len(unpack_ids(body.prompt_ids)), len(unpack_ids(body.completion_ids))
        found.setdefault(f"{record.tenant}\0{record.session_id}", []).append(
            CountedCall(record.key, record.turn, *lengths)
        )
    return found
