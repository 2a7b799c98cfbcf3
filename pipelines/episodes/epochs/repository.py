"""SQL of the trainer's epochs: how far the outcomes of each are valid, and which samples must be judged again.

In: an `epoch_started`. Out: rows of `ledger_epoch`, and a row of `ledger_change` for every range of outcomes that became valid
or void; later, in pieces, the states that follow. Waits for: transactions that are judging outcomes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import structlog
from sqlalchemy import Connection, delete, select, tuple_, update

from contracts.ids import parse_sample_key, sample_key
from contracts.ledger import NO_END
from contracts.records import Outcome
from contracts.tables import generation as generations
from contracts.tables import ledger_change, ledger_epoch, training_epoch
from contracts.tables import outcome as outcomes
from contracts.tables.statements import among, insert_all, insert_new, update_all
from pipelines.episodes.epochs.chain import Epochs, EpochStart, LedgerEntry, changes, entry_of, valid_through
from runtime.metrics import LEDGER_IGNORED

REPAIRED_AT_ONCE = 1000
_ADVISORY_LOCK = 0x6C656467  # no outcome is judged while an epoch begins

log = structlog.get_logger()


def take(connection: Connection, *, begins: bool) -> Epochs:
    """Read the epochs, which no other transaction changes until this one ends; with `begins`, no other may read them either."""
    if connection.dialect.name != "sqlite":
        kind = "" if begins else "_shared"
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock{kind}({_ADVISORY_LOCK})")
    return _read(connection)


def is_ignored(epochs: Epochs, said: Outcome) -> bool:
    """True for an outcome of a trainer in an epoch that was never issued; it is logged and counted."""
    if said.writer != "training" or epochs.was_issued(said.epoch):
        return False
    LEDGER_IGNORED.labels(said.state).inc()
    log.error("outcome of an epoch that was never issued", epoch=said.epoch, key=said.key, state=said.state)
    return True


def begin(connection: Connection, epochs: Epochs, said: Outcome) -> Epochs:
    """Store an `epoch_started`; returns the epochs from now on. A known one changes nothing."""
    row = {"epoch": said.epoch, "previous": said.previous, "kept_sequence": said.kept_sequence, "at": said.at}
    if not insert_new(connection, ledger_epoch, {**row, "valid_through": NO_END}):
        return epochs
    known = [EpochStart(*row) for row in connection.execute(select(*_STARTS))]
    after = Epochs(valid_through(known), epochs.issued)
    if said.previous is not None and said.previous not in after.valid_through:
        log.warning("epoch goes on from one that never began here", epoch=said.epoch, previous=said.previous)
    heard = select(outcomes.c.epoch).where(outcomes.c.epoch > epochs.newest, outcomes.c.writer == "training").distinct()
    for change in changes(epochs, after, connection.execute(heard).scalars()):
        insert_all(connection, ledger_change, [{**change._asdict(), "after_key": ""}])
    moved = {
        epoch: through for epoch, through in after.valid_through.items() if epochs.valid_through.get(epoch) != through
    }
    for epoch, through in moved.items():
        connection.execute(update(ledger_epoch).where(ledger_epoch.c.epoch == epoch).values(valid_through=through))
    log.info("epoch began", epoch=said.epoch, previous=said.previous, kept_sequence=said.kept_sequence)
    return after


def repair(connection: Connection, limit: int = REPAIRED_AT_ONCE) -> None:
    """Judge again the next samples whose outcomes became valid or void. Never waits for a lock."""
    while limit > 0 and (num_seen := _repair_next(connection, limit)) is not None:
        limit -= num_seen


def _repair_next(connection: Connection, limit: int) -> int | None:
    """How many outcomes were looked at; None if there are no more, or if another worker has locked them."""
    statement = select(ledger_change).order_by(ledger_change.c.id).limit(1).with_for_update(skip_locked=True)
    change = connection.execute(statement).one_or_none()
    if change is None:
        return None
    place = (outcomes.c.sequence, outcomes.c.key)
    page = connection.execute(
        select(*place)
        .where(
            outcomes.c.epoch == change.epoch,
            outcomes.c.writer == "training",
            outcomes.c.key != "",
            outcomes.c.sequence <= change.through_sequence,
            tuple_(*place) > tuple_(change.after_sequence, change.after_key),
        )
        .order_by(*place)
        .limit(limit)
    ).all()
    keys = sorted({row.key for row in page})
    if keys and not judge_again(connection, keys):
        return None
    here = ledger_change.c.id == change.id
    if len(page) < limit:
        connection.execute(delete(ledger_change).where(here))
    else:
        connection.execute(
            update(ledger_change).where(here).values(after_sequence=page[-1].sequence, after_key=page[-1].key)
        )
    return len(page)


def outcomes_of(connection: Connection, keys: Collection[str]) -> Iterator[Outcome]:
    """All outcomes of these samples, of any writer and epoch. There must be at least one key."""
    columns = [outcomes.c[name] for name in OUTCOME_COLUMNS]
    for row in connection.execute(select(*columns).where(among(connection, outcomes.c.key, keys))):
        yield Outcome(**row._asdict())


OUTCOME_COLUMNS = ("key", "revision", "epoch", "state", "reason", "version", "writer", "at", "sequence")
_STARTS = (ledger_epoch.c.epoch, ledger_epoch.c.previous, ledger_epoch.c.kept_sequence)


def _read(connection: Connection) -> Epochs:
    known = connection.execute(select(ledger_epoch.c.epoch, ledger_epoch.c.valid_through))
    issued = connection.execute(select(training_epoch.c.epoch)).scalars()
    return Epochs({row.epoch: row.valid_through for row in known}, frozenset(issued))


def judge_again(connection: Connection, keys: Sequence[str]) -> bool:
    """Give samples the state that their outcomes tell. False if another worker has locked one of them: nothing is changed then."""
    ids = sorted({parse_sample_key(key)[0] for key in keys})
    here = among(connection, generations.c.completion_id, ids)
    columns = [generations.c[name] for name in ("completion_id", "choice", "revision", *LedgerEntry._fields)]
    present = connection.execute(select(generations.c.choice).where(here)).all()
    free = select(*columns).where(here).order_by(generations.c.completion_id, generations.c.choice)
    held = connection.execute(free.with_for_update(skip_locked=True)).all()
    if len(held) < len(present):
        return False
    # Read after the rows are locked: any later change to them sees later epochs.
    epochs, told = _read(connection), dict[str, list[Outcome]]()
    for outcome in outcomes_of(connection, keys):
        told.setdefault(outcome.key, []).append(outcome)
    rows = []
    for completion_id, choice, revision, *stored in held:
        entry = entry_of(told.get(sample_key(completion_id, choice), ()), epochs, revision)
        if sample_key(completion_id, choice) in told and entry != tuple(stored):
            rows.append({"completion_id": completion_id, "choice": choice, **entry._asdict()})
    update_all(connection, generations, rows)
    return True
