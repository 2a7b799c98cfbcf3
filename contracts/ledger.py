"""The two identities that must always hold in the ledger (docs/decisions/0001).

generations: logged   = pending + trained + unlabelled + filtered + unscored + stale + off_support + quarantined
                        + cancelled + erased + log_lost + dead_letter
signals:     received = joined + pending + late + duplicate + conflict + retracted + rejected

Signals that wait for their key's answer, and signals that episodes makes itself (follow-ups), count as received too: both have a row in
`received_signal`, and are pending until the join has seen them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    case,
    exists,
    func,
    literal,
    not_,
    or_,
    select,
)

from contracts.errors import InvalidRecord
from contracts.ids import sample_key
from contracts.records import Generation, decode_shape
from contracts.tables import (
    generation,
    ledger_epoch,
    outcome,
    received_signal,
    rejection_count,
    score,
    signal,
    signal_count,
    waiting_signal,
)

NO_END = 2**62
"""The last sequence of the newest epoch: all of its outcomes are valid."""
PENDING = "pending"
EXPIRED = "expired"
"""Reason of `stale`: so old that the trainer no longer knows what it decided."""
UNDONE = "import"
"""Reason of `quarantined`, told by episodes or in its name: an operator took back the import that logged it."""
GENERATION_STATES = frozenset((
    PENDING, "trained", "unlabelled", "filtered", "unscored", "stale", "off_support", "quarantined", "cancelled", "erased",
    "log_lost", "dead_letter",
))  # fmt: skip
"""A dead letter has no row: code that reads the log counts it."""
MAX_SIGNALS, MAX_SCORES, MAX_OUTCOMES = 200, 50, 100
"""Of one answer, in its history: the newest."""
SIGNAL_STATES = frozenset((PENDING, "joined", "late", "duplicate", "conflict", "retracted", "rejected"))


class LedgerCounts(NamedTuple):
    """One identity: `total` is its left side, `states` its right side."""

    total: int
    states: dict[str, int]

    @property
    def unexplained(self) -> int:
        """0 if the identity holds. States that it does not name are not counted."""
        named = GENERATION_STATES | SIGNAL_STATES
        return self.total - sum(count for state, count in self.states.items() if state in named)


class AnswerRecord(NamedTuple):
    """One answer and its history. `record` None: `problem` is the reason why it cannot be read."""

    head: Any
    record: Generation | None
    problem: str
    choices: list[int]
    signals: list[Row[Any]]
    """id, tenant, name, submitter, at, received_at, state, reason, revision, record; oldest first."""
    scores: list[Row[Any]]
    """revision, reward, status, fault, components, at; by revision."""
    outcomes: list[Row[Any]]
    """revision, epoch, state, reason, version, writer, at, is_valid; oldest first."""


def effective_state() -> ColumnElement[str]:
    """The state of a row of `generation`. An outcome that a later epoch of the trainer did not keep counts as pending."""
    row = generation.c
    is_valid = _is_valid(row.state_writer, row.state_epoch, row.state_sequence)
    return case((not_(is_valid), literal(PENDING)), else_=row.state)


def _is_valid(writer: Column[Any], epoch: Column[Any], sequence: Column[Any]) -> ColumnElement[bool]:
    """Whether the epochs of the trainer after this outcome kept it."""
    newest = select(func.coalesce(func.max(ledger_epoch.c.epoch), -1)).scalar_subquery()
    kept = exists().where(ledger_epoch.c.epoch == epoch, ledger_epoch.c.valid_through >= sequence)
    return or_(writer != "training", kept, epoch > newest)


def generation_counts(connection: Connection, *which: ColumnElement[bool]) -> LedgerCounts:
    """Every generation by its effective state, or those of some rows."""
    state = effective_state().label("state")
    rows = connection.execute(select(state, func.count()).select_from(generation).where(*which).group_by(state))
    states = {name: count for name, count in rows}  # noqa: C416 a row is not a tuple for dict()
    return LedgerCounts(sum(states.values()), states)


def find_answer(connection: Connection, completion_id: str, choice: int) -> AnswerRecord | None:
    """One answer and what became of it, or None."""
    key, its_id = sample_key(completion_id, choice), generation.c.completion_id == completion_id
    columns = generation.c[
        "completion_id", "choice", "task", "purpose", "arm", "version", "created_at", "joined_at", "closes_at", "revision", "record",
        "state_reason", "state_version", "superseded_by",
    ]  # fmt: skip
    state = effective_state().label("state")
    head = connection.execute(select(*columns, state).where(its_id, generation.c.choice == choice)).one_or_none()
    if head is None:
        return None
    record: Generation | None = None
    problem = ""
    try:
        record = decode_shape(Generation, head.record)
    except InvalidRecord as error:
        problem = error.message
    siblings = select(generation.c.choice).where(its_id).order_by(generation.c.choice)
    said = signal.c["id", "tenant", "name", "submitter", "at", "received_at", "state", "reason", "revision", "record"]
    about = select(*said).where(signal.c.completion_id == completion_id, signal.c.choice == choice)
    earned = select(*score.c["revision", "reward", "status", "fault", "components", "at"]).where(score.c.key == key)
    told = outcome.c["revision", "epoch", "state", "reason", "version", "writer", "at"]
    is_valid = _is_valid(outcome.c.writer, outcome.c.epoch, outcome.c.sequence).label("is_valid")
    became = select(*told, is_valid).where(outcome.c.key == key)
    histories: tuple[Select[Any], ...] = (
        about.order_by(signal.c.received_at.desc(), signal.c.id.desc()).limit(MAX_SIGNALS),
        earned.order_by(score.c.revision.desc()).limit(MAX_SCORES),
        became.order_by(*(of.desc() for of in outcome.c["at", "epoch", "revision"])).limit(MAX_OUTCOMES),
    )
    choices = list(connection.execute(siblings).scalars())
    return AnswerRecord(head, record, problem, choices, *(list(connection.execute(rows))[::-1] for rows in histories))


def signal_counts(connection: Connection) -> LedgerCounts:
    """Every received signal by state. Accepted ones that the join has not seen yet are pending."""
    states: dict[str, int] = dict.fromkeys(("duplicate", "conflict", "rejected"), 0)
    states |= {row.state: row.count for row in connection.execute(select(signal_count))}
    accepted = connection.execute(select(func.count()).select_from(received_signal)).scalar_one()
    total = accepted + sum(states.values())
    seen = 0
    for name, count in connection.execute(select(signal.c.state, func.count()).group_by(signal.c.state)):
        states[name] = states.get(name, 0) + count
        seen += count
    states[PENDING] = states.get(PENDING, 0) + max(0, accepted - seen)
    return LedgerCounts(total, states)


def rejection_counts(connection: Connection) -> dict[str, int]:
    """Reason to number of signals that feedback refused or the join rejected, as far as it was noted."""
    rows = connection.execute(select(rejection_count.c.reason, rejection_count.c["count"]))
    found: dict[str, int] = {reason: number for reason, number in rows}  # noqa: C416 a row is not a tuple for dict()
    statement = select(signal.c.reason, func.count()).where(signal.c.state == "rejected").group_by(signal.c.reason)
    for reason, count in connection.execute(statement):
        found[reason] = found.get(reason, 0) + count
    return found


def num_waiting(connection: Connection) -> int:
    """Signals whose key has no answer yet; they count as pending."""
    return connection.execute(select(func.count()).select_from(waiting_signal)).scalar_one()


def learned_signals(connection: Connection) -> dict[str, int]:
    """Signal id to the first version that learned from it. Signals that arrived after their sample was trained are left out."""
    its = and_(generation.c.completion_id == signal.c.completion_id, generation.c.choice == signal.c.choice)
    in_time = (signal.c.state.in_(("joined", "late")), signal.c.revision <= generation.c.state_revision)
    statement = select(signal.c.id, generation.c.state_version).join(generation, its)
    rows = connection.execute(statement.where(effective_state() == "trained", *in_time))
    return {row.id: row.state_version for row in rows}


def trained_versions(connection: Connection) -> dict[str, int]:
    """Sample key to the first version that learned from it, for samples that are still trained."""
    columns = generation.c["completion_id", "choice", "state_version"]
    rows = connection.execute(select(*columns).where(effective_state() == "trained"))
    return {sample_key(row.completion_id, row.choice): row.state_version for row in rows}
