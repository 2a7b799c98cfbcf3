"""The part of the ledger that is no generation and no signal: three identities, from one snapshot of the database.

measured answers = null + others                    by version; the monitors' sums against the scores themselves
later revisions  = by reason of their outcome + replaced by a newer revision + waiting for a step
shadow prompts   = compared + left out, by reason + not asked, by reason + still to be asked
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, case, exists, func, select

from contracts.ids import parse_sample_key
from contracts.tables import behaviour, generation, ledger_seal, outcome, score, shadow_pair, train

LATE, WAITING, REPLACED = "late", "waiting", "replaced"
KEPT_SECONDS = 7 * 86_400.0
"""Of experiences in the log: a revision that was scored earlier can no longer reach the trainer."""
MOST_NAMED = 20
"""At most so many unexplained items of one kind are named; the others are counted."""
_AT_ONCE = 500
_NULL, _UNSCORED = "null", "unscored"
_SHADOW = "shadow"
_NOT_GRADED = "not graded"
"""Such pairs are compared by their other marks."""


class LearningIdentity(NamedTuple):
    """What a total consists of, and what that does not explain."""

    counts: Mapping[str, int] = {}
    problems: Sequence[str] = ()


class LearningFindings(NamedTuple):
    """The three identities."""

    monitors: LearningIdentity = LearningIdentity()
    corrections: LearningIdentity = LearningIdentity()
    shadow_prompts: LearningIdentity = LearningIdentity()


NOTHING_LEARNED = LearningFindings()


def check_learning(connection: Connection, now: float) -> LearningFindings:
    """Account for nulls, corrections and shadow prompts. `now`: UTC epoch seconds."""
    return LearningFindings(_monitors(connection), _corrections(connection, now), _shadow_prompts(connection))


def _monitors(connection: Connection) -> LearningIdentity:
    """Rewards adds to its sums in the transaction of the scores, so both have the same answers; dropped days took their scores only."""
    columns = behaviour.c
    mine = (columns.cluster == "", columns.metric == _NULL)
    rows = connection.execute(select(columns.task, columns.version, columns.num, columns.total).where(*mine))
    counted = {(row.task, row.version): (int(row.num), round(row.total)) for row in rows}
    is_null = and_(score.c.reward.is_(None), score.c.status == _UNSCORED)
    statement = (
        select(score.c.task, score.c.version, func.count(), func.sum(case((is_null, 1), else_=0)))
        .where(score.c.revision == 1, score.c.purpose == "user", score.c.version >= 0)
        .group_by(score.c.task, score.c.version)
    )
    held = {(task, version): (int(num), int(nulls)) for task, version, num, nulls in connection.execute(statement)}
    dropped = connection.execute(select(func.count()).where(ledger_seal.c.dropped_at.is_not(None))).scalar_one() > 0
    problems, found = [], Counter[str]()
    for place in sorted({*counted, *held}):
        (num, nulls), (num_scores, num_null_scores) = counted.get(place, (0, 0)), held.get(place, (0, 0))
        found.update({"measured": num - nulls, _NULL: nulls})
        fits = (num, nulls) == (num_scores, num_null_scores)
        if not fits and not (dropped and num >= num_scores and nulls >= num_null_scores):
            problems.append(
                f"monitors of task {place[0]!r}, v{place[1]}: they counted {num} answers and {nulls} nulls, and {num_scores} answers "
                f"and {num_null_scores} nulls were scored"
            )
    return LearningIdentity(found, problems[:MOST_NAMED])


def _corrections(connection: Connection, now: float) -> LearningIdentity:
    told = select(outcome.c.key, outcome.c.revision, func.max(outcome.c.reason).label("reason"))
    once = told.where(outcome.c.state == LATE).group_by(outcome.c.key, outcome.c.revision).subquery()
    by_reason = connection.execute(select(once.c.reason, func.count()).group_by(once.c.reason))
    found: Counter[str] = Counter({reason or "without a reason": int(number) for reason, number in by_reason})
    is_scored = exists().where(score.c.key == once.c.key, score.c.revision == once.c.revision)
    lost = connection.execute(select(once.c.key, once.c.revision).where(~is_scored)).all()
    problems = [f"correction {key}, revision {revision}: it has a fate, and nobody scored it" for key, revision in lost]
    for row, fate in _untold(connection):
        found[fate] += 1
        if fate == WAITING and row.at < now - KEPT_SECONDS:
            problems.append(
                f"correction {row.key}, revision {row.revision}: it was scored over {KEPT_SECONDS / 86_400:.0f} days ago, and no outcome "
                "says what became of it"
            )
    if found["without a reason"]:
        problems.append(f"{found['without a reason']} corrections were passed over without a reason")
    more = len(problems) - MOST_NAMED
    return LearningIdentity(found, problems[:MOST_NAMED] + ([f"and {more} more corrections"] if more > 0 else []))


def _untold(connection: Connection) -> Iterator[tuple[Any, str]]:
    """Scored later revisions of samples that the trainer had decided before, and that no outcome names."""
    is_told = exists().where(outcome.c.key == score.c.key, outcome.c.revision == score.c.revision)
    columns = (score.c.key, score.c.revision, score.c.at)
    rows = connection.execute(select(*columns).where(score.c.revision > 1, ~is_told).order_by(*columns[:2])).all()
    for start in range(0, len(rows), _AT_ONCE):
        some = rows[start : start + _AT_ONCE]
        keys = {row.key for row in some}
        decided = _decided(connection, keys)
        newest: dict[str, int] = {}
        for table in (score, outcome):
            latest = select(table.c.key, func.max(table.c.revision)).where(table.c.key.in_(keys)).group_by(table.c.key)
            for key, revision in connection.execute(latest):
                newest[key] = max(newest.get(key, 0), revision)
        for row in some:
            if row.revision > decided.get(row.key, row.revision):
                yield row, REPLACED if row.revision < newest[row.key] else WAITING


def _decided(connection: Connection, keys: set[str]) -> dict[str, int]:
    places = {parse_sample_key(key): key for key in keys}
    columns = generation.c["completion_id", "choice", "state_revision"]
    mine = (generation.c.completion_id.in_({name for name, _ in places}), generation.c.state_writer == "training")
    rows = connection.execute(select(*columns).where(*mine))
    return {key: row.state_revision for row in rows if (key := places.get((row.completion_id, row.choice))) is not None}


def _shadow_prompts(connection: Connection) -> LearningIdentity:
    found, problems = Counter[str](), []
    num_pairs = select(func.count()).where(shadow_pair.c.train == train.c.id).scalar_subquery()
    columns = train.c["id", "version", "stage", "ended_at", "evidence"]
    for row in connection.execute(select(*columns, num_pairs.label("num_pairs")).order_by(train.c.id)):
        facts = (row.evidence or {}).get(_SHADOW)
        if not facts or "not_asked" not in facts:  # none yet; or one of a release that did not count them
            continue
        left_out = {reason: number for reason, number in facts["left_out"].items() if reason != _NOT_GRADED}
        not_asked = dict(facts["not_asked"])
        kept, parts = facts["num_compared"], sum(left_out.values())
        found.update({"compared": kept, **left_out, **not_asked})
        where = f"shadow of v{row.version} (train {row.id})"
        asked, passed_over = facts["num_prompts"], sum(not_asked.values())
        if kept + parts != asked or asked + passed_over != facts["num_wanted"]:
            problems.append(
                f"{where}: of {facts['num_wanted']} prompts {asked} were asked = {kept} compared + {parts} left out, and "
                f"{passed_over} were not asked"
            )
        if row.stage < 0 and row.ended_at is None and row.num_pairs < asked:
            problems.append(f"{where}: {asked} prompts were asked, and {row.num_pairs} pairs are stored")
    return LearningIdentity(found, problems[:MOST_NAMED])
