"""SQL of the release train: its row, the answers that it compares, and the points of its charts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, Update, and_, delete, insert, not_, or_, select, update

from contracts import train_points
from contracts.assignments import LEARNING, PROVIDER
from contracts.errors import StaleWrite
from contracts.ids import first_id_at
from contracts.rejection import WITHDRAWN_BY
from contracts.tables import alarm, generation, train, train_answer, train_point, verdict
from contracts.tables.statements import delete_free
from pipelines.release.train.answers import AnswerRow, LiftRow
from pipelines.release.train.reading.sampling import CONTROL

SHADOW, CANARY_STAGE, STOPPED = "shadow", "canary", "stopped"
SHIPPED, WITHDRAWN, REVOKED = "shipped", "withdrawn", "revoked"
IN_SHADOW = -1
COUNTED_AT, PAUSED = "counted_at", "paused_seconds"
"""In the evidence: until when the train's times were counted, and how many seconds since its departure do not count."""
STOPS = "stops"
"""In the evidence: when the train stopped and went on, the newest last: {"at", "state", "stage", "reason", "epoch"}."""
_LATELY_SECONDS, _LONGEST_ANSWER_SECONDS = 30.0, 600.0
BY_OTHERS = "by_others"
"""In the evidence of a train whose end says nothing about its version, which may depart again: others, or a better version, ended it."""
SINCE = "since"
"""In the evidence of a version that departed again: when its first train left. Its answers from then on count."""
CHANGED_IN, CHANGED_TO = "changed_in", "changed_to"
"""In the evidence: the stages in which this train, earlier ones of its version, and those that changed over to it, changed over; and to
which version it did."""
PROVIDER_SHARE = "provider_share"
"""In the settings of a train: see `Train.provider_share`."""
_SAME = ("stages", "control_ratio", "unit", "tuned_units", "proof_level", PROVIDER_SHARE)
"""Settings that all trains share whose answers are one sample, of which one sequence tells."""


class Train(NamedTuple):
    """One train: a version on its way from the gate to everybody. Times are UTC epoch seconds."""

    id: int
    policy: str
    version: int
    blessed: int
    """The live version that it is compared with."""
    state: str
    stage: int
    """Index into the stages of its settings; -1 in shadow."""
    epoch: int
    """Every change raises it, by compare-and-set."""
    started_at: float
    stage_at: float
    ended_at: float | None
    reason: str
    settings: dict[str, Any]
    evidence: dict[str, Any]

    @property
    def paused_seconds(self) -> float:
        """Time since its departure that does not count."""
        return float(self.evidence.get(PAUSED, 0.0))

    @property
    def provider_share(self) -> float:
        """Of the provider in front with which it is compared; 0: it is compared with the live version."""
        return float(self.settings.get(PROVIDER_SHARE, 0.0))

    @property
    def against(self) -> str:
        """With whom it is compared, in words."""
        return "the provider" if self.provider_share else f"v{self.blessed}"

    @property
    def since(self) -> float:
        """When its users got their first answers, in an earlier train too."""
        return min(self.started_at, float(self.evidence.get(SINCE, self.started_at)))

    @property
    def changed_in(self) -> list[int]:
        """See `CHANGED_IN`."""
        return list(self.evidence.get(CHANGED_IN, ()))


def read_running(connection: Connection, policy: str) -> Train | None:
    """The train on the track; None if the track is free."""
    statement = select(train).where(train.c.policy == policy, train.c.ended_at.is_(None)).order_by(train.c.id)
    row = connection.execute(statement).mappings().first()
    return None if row is None else Train(**row)


def read_ended(connection: Connection, policy: str, limit: int) -> list[Train]:
    """The trains that ended last, the newest first."""
    ended = select(train).where(train.c.policy == policy, train.c.ended_at.is_not(None))
    rows = connection.execute(ended.order_by(train.c.id.desc()).limit(limit))
    return [Train(**row) for row in rows.mappings()]


def read_accepted_above(connection: Connection, policy: str, live: int) -> list[int]:
    """Versions above `live` that the gate accepted, the newest first."""
    columns = verdict.c
    wanted = (columns.policy == policy, columns.accepted.is_(True), columns.version > live)
    return list(connection.execute(select(columns.version).where(*wanted).order_by(columns.version.desc())).scalars())


def read_kept(
    connection: Connection, policy: str, version: int, blessed: int, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """What a version that departs keeps in its evidence of its trains so far: `CHANGED_IN`, and `SINCE` if it has answers to keep.

    Nothing is kept of trains that were compared with another version than `blessed`, and no answers from before `settings` changed.
    """
    newest_first = select(train).where(train.c.policy == policy, train.c.version == version).order_by(train.c.id.desc())
    kept = dict[str, Any]()
    for row in connection.execute(newest_first):
        if row.blessed != blessed:
            break
        kept.setdefault(CHANGED_IN, row.evidence.get(CHANGED_IN, []))
        if any(row.settings.get(name, 0.0) != settings[name] for name in _SAME):
            break
        kept[SINCE] = min(row.started_at, kept.get(SINCE, row.started_at))
    return kept


def read_verdict(connection: Connection, policy: str, version: int) -> dict[str, Any]:
    """What the gate found out about a version that it judged; empty: nothing."""
    statement = select(verdict.c.details).where(verdict.c.policy == policy, verdict.c.version == version)
    return dict(connection.execute(statement).scalar() or {})


def has_users(connection: Connection, policy: str, now: float) -> bool:
    """Whether an answer of a user reached us lately. `now`: UTC epoch seconds."""
    columns = generation.c
    statement = select(columns.completion_id).where(
        # Ids sort by time, and the table has a partition for each day.
        columns.completion_id >= first_id_at(int((now - _LONGEST_ANSWER_SECONDS) * 1000)),
        columns.policy == policy,
        columns.purpose == "user",
        columns.created_at >= now - _LONGEST_ANSWER_SECONDS,
        columns.joined_at >= now - _LATELY_SECONDS,
    )
    newest = statement.order_by(columns.created_at.desc()).limit(1)
    return connection.execute(newest).first() is not None


def read_tried(connection: Connection, policy: str, blessed: int) -> set[int]:
    """Versions above `blessed` whose train ended by what it found against `blessed`, not because somebody else moved an arm; or that an operator withdrew."""
    columns = train.c
    was_tried = and_(columns.blessed == blessed, columns.evidence[BY_OTHERS].as_string().is_(None))
    was_rejected = columns.evidence[WITHDRAWN_BY].as_string().is_not(None)
    statement = select(columns.version).where(
        columns.policy == policy, columns.version > blessed, columns.ended_at.is_not(None), or_(was_tried, was_rejected)
    )
    return set(connection.execute(statement).scalars())


def add(connection: Connection, values: Mapping[str, Any]) -> int:
    """Store a new train; returns its id."""
    [number] = connection.execute(insert(train).values(**values).returning(train.c.id)).one()
    return int(number)


def change(connection: Connection, held: Train, **values: Any) -> None:
    """Change a train that nobody changed since it was read. Raises StaleWrite: somebody did; nothing is changed."""
    if connection.execute(_unmoved(held).values(epoch=held.epoch + 1, **values)).rowcount != 1:
        raise StaleWrite(f"another process moved the train of v{held.version}; read it again", version=held.version)


def note_evidence(connection: Connection, held: Train, evidence: Mapping[str, Any]) -> None:
    """Store what the last look found, unless the train moved meanwhile."""
    connection.execute(_unmoved(held).values(evidence=dict(evidence)))


def _unmoved(held: Train) -> Update:
    return update(train).where(train.c.id == held.id, train.c.epoch == held.epoch, train.c.ended_at.is_(None))


def read_changed(connection: Connection, held: Train, since_ms: int) -> list[tuple[AnswerRow, int]]:
    """The answers that a train compares and that were written from then on, with the time at which they were, in order."""
    columns = train_answer.c
    canary = and_(columns.arm == "canary", columns.version == held.version)
    live = (
        and_(columns.arm == "live", columns.version == held.blessed)
        if not held.provider_share
        else columns.arm == PROVIDER
    )
    other = and_(live, columns.compared_with == held.version)
    return _changed(connection, held.policy, since_ms, or_(canary, other))


def read_learning(
    connection: Connection, policy: str, version: int, blessed: int, since_ms: int
) -> list[tuple[AnswerRow, int]]:
    """The answers of the learning arm's version, and those of the live version that are in the table, from then on, as `read_changed`."""
    columns = train_answer.c
    learning = and_(columns.arm == LEARNING, columns.version == version)
    live = and_(columns.arm.in_(("live", CONTROL)), columns.version == blessed)
    return _changed(connection, policy, since_ms, or_(learning, live))


def _changed(
    connection: Connection, policy: str, since_ms: int, wanted: ColumnElement[bool]
) -> list[tuple[AnswerRow, int]]:
    columns = train_answer.c
    changed = select(*(columns[name] for name in AnswerRow._fields), columns.changed)
    rows = connection.execute(
        changed.where(columns.policy == policy, columns.changed >= since_ms, wanted).order_by(columns.changed)
    )
    return [(AnswerRow(*row), changed_at) for *row, changed_at in rows]


def read_lift_answers(connection: Connection, policy: str, holdout: int, since: float, limit: int) -> list[LiftRow]:
    """The newest rewarded answers of the hold-out's version, and of whatever version was live, after a time."""
    columns = train_answer.c
    wanted = or_(and_(columns.arm == "holdout", columns.version == holdout), columns.arm == "live")
    statement = (
        select(*(columns[name] for name in LiftRow._fields))
        .where(columns.policy == policy, columns.at >= since, columns.reward.is_not(None), wanted)
        .order_by(columns.at.desc())
        .limit(limit)
    )
    return [LiftRow(*row) for row in connection.execute(statement)]


def forget_answers(
    connection: Connection,
    policy: str,
    *,
    needed: Collection[int],
    learning: int | None,
    holdout: int | None,
    lift_since: float,
    limit: int,
) -> int:
    """Delete a piece of the answers that neither a train, the learning arm nor the hold-out needs; returns how many.

    `needed`: versions on the train, or that may depart again; `learning`, `holdout`: their versions. While there is a hold-out, answers of `live` stay until `lift_since`.
    """
    columns = train_answer.c
    in_lift = and_(
        columns.at >= lift_since, or_(columns.arm == "live", and_(columns.arm == "holdout", columns.version == holdout))
    )
    in_train = and_(
        columns.arm.not_in((LEARNING, CONTROL)), or_(columns.version.in_(needed), columns.compared_with.in_(needed))
    )
    in_learning = and_(columns.arm.in_((LEARNING, CONTROL)), columns.compared_with == learning)
    known = ((in_train, needed or None), (in_learning, learning), (in_lift, holdout))
    kept = [condition for condition, whose in known if whose is not None]
    unneeded = [not_(or_(*kept))] if kept else []
    return delete_free(connection, train_answer, columns.policy == policy, *unneeded, limit=limit)


def read_vetoes(connection: Connection, version: int, blessed: int) -> list[str]:
    """What the behaviour monitors found in a version, and not in the live one as well: a sentence for each alarm, in the order of their names."""
    columns = alarm.c
    rows = connection.execute(select(alarm).where(columns.version.in_((version, blessed)))).all()
    known = {(row.task, row.name, row.cluster) for row in rows if row.version == blessed}
    found = {
        (row.task, row.name, row.cluster): _alarm_in_words(row)
        for row in rows
        if row.version == version and row.details.get("vetoes")
    }
    return [found[name] for name in sorted(found.keys() - known)]


def _alarm_in_words(row: Row[Any]) -> str:
    where = f" on prompts of cluster {row.cluster!r}" if row.cluster else ""
    return (
        f"The monitor {row.name} has raised an alarm about v{row.version} ({row.task}{where}): {row.details['words']}, "
        f"{row.details['mean']:.3g} over {row.details['num']:,} answers."
    )


def add_point(
    connection: Connection, policy: str, subject: str, at: float, values: Mapping[str, Any], *, least: float, most: int
) -> None:
    """Store a point of a chart, unless the newest one is less than `least` seconds old.

    Of more than `most` points, every second one of the older half is deleted.
    """
    columns = train_point.c
    own = (columns.policy == policy, columns.subject == subject)
    times = list(connection.execute(select(columns.at).where(*own).order_by(columns.at)).scalars())
    if times and 0.0 <= at - times[-1] < least:
        return
    train_points.put(connection, policy, subject, at, values)
    if len(times) >= most:
        connection.execute(delete(train_point).where(*own, columns.at.in_(times[1 : len(times) // 2 : 2])))
