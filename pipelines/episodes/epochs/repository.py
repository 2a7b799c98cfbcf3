"""SQL of the trainer's epochs: how far each one's outcomes hold, and what has to be looked at again since that changed.

In: an `epoch_started`. Out: rows of `ledger_epoch`, and for every stretch of outcomes that began or ceased to hold a row of
`ledger_change`; later, in pieces, the states that follow from it. Waits for: transactions that judge outcomes meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import structlog
from sqlalchemy import Connection, Row, delete, select, tuple_, update

from contracts.ids import parse_sample_key, sample_key
from contracts.ledger import NO_END, PENDING
from contracts.records import Outcome
from contracts.tables import generation as generations
from contracts.tables import ledger_change, ledger_epoch, training_epoch
from contracts.tables import outcome as outcomes
from contracts.tables.statements import among, insert_new, update_all
from pipelines.episodes.epochs.chain import Epoch, Epochs, best, changes, valid_through
from runtime.metrics import LEDGER_IGNORED

REPAIRED_AT_ONCE = 1000
"""Outcomes that are looked at again in one transaction."""
_TURN = 0x6C656467  # an advisory lock: nobody judges an outcome while an epoch begins

log = structlog.get_logger()


def take(connection: Connection, *, begins: bool) -> Epochs:
    """Read the epochs, which stay as they are until the transaction ends; with `begins` nobody else may judge by them."""
    if connection.dialect.name != "sqlite":
        kind = "" if begins else "_shared"
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock{kind}({_TURN})")
    return _read(connection)


def is_ignored(epochs: Epochs, said: Outcome) -> bool:
    """True, and named, for what a trainer said in an epoch that was never issued."""
    if said.writer != "training" or epochs.was_issued(said.epoch):
        return False
    LEDGER_IGNORED.labels(said.state).inc()
    log.error("outcome of an epoch that was never issued", epoch=said.epoch, key=said.key, state=said.state)
    return True


def begin(connection: Connection, epochs: Epochs, said: Outcome) -> Epochs:
    """Take an `epoch_started` in; returns what holds from now on. One that is known already changes nothing."""
    row = {"epoch": said.epoch, "previous": said.previous, "kept_sequence": said.kept_sequence, "at": said.at}
    if not insert_new(connection, ledger_epoch, {**row, "valid_through": NO_END}):
        return epochs
    known = [Epoch(*row) for row in connection.execute(select(*_STORY))]
    after = Epochs(valid_through(known), epochs.issued)
    if said.previous is not None and said.previous not in after.valid_through:
        log.warning("epoch goes on from one that never began here", epoch=said.epoch, previous=said.previous)
    heard = select(outcomes.c.epoch).where(outcomes.c.epoch > epochs.newest, outcomes.c.writer == "training").distinct()
    for change in changes(epochs, after, connection.execute(heard).scalars()):
        insert_new(connection, ledger_change, {**change._asdict(), "after_key": ""})
    moved = {
        epoch: through for epoch, through in after.valid_through.items() if epochs.valid_through.get(epoch) != through
    }
    for epoch, through in moved.items():
        connection.execute(update(ledger_epoch).where(ledger_epoch.c.epoch == epoch).values(valid_through=through))
    log.info("epoch began", epoch=said.epoch, previous=said.previous, kept_sequence=said.kept_sequence)
    return after


def repair(connection: Connection, limit: int = REPAIRED_AT_ONCE) -> None:
    """Look again at the next samples whose outcomes began or ceased to hold. Waits for nobody."""
    while limit > 0 and (num_seen := _repair_next(connection, limit)) is not None:
        limit -= num_seen


def _repair_next(connection: Connection, limit: int) -> int | None:
    """How many outcomes were looked at; None if there are none left, or another worker has them."""
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
    if keys and not _judge_again(connection, keys):
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
    """Whatever was told about these samples, of which there is at least one, by whoever and in whichever epoch."""
    columns = [outcomes.c[name] for name in _OUTCOME]
    for row in connection.execute(select(*columns).where(among(connection, outcomes.c.key, keys))):
        yield Outcome(**row._asdict())


_OUTCOME = ("key", "revision", "epoch", "state", "reason", "version", "writer", "at", "sequence")
_STORY = (ledger_epoch.c.epoch, ledger_epoch.c.previous, ledger_epoch.c.kept_sequence)
_STANDING = (
    "completion_id", "choice", "revision", "state", "state_reason", "state_writer", "state_epoch", "state_revision",
    "state_version", "state_sequence",
)  # fmt: skip


def _read(connection: Connection) -> Epochs:
    known = connection.execute(select(ledger_epoch.c.epoch, ledger_epoch.c.valid_through))
    issued = connection.execute(select(training_epoch.c.epoch)).scalars()
    return Epochs({row.epoch: row.valid_through for row in known}, frozenset(issued))


def _judge_again(connection: Connection, keys: Sequence[str]) -> bool:
    """False if another worker holds one of these samples just now: they are looked at later."""
    ids = sorted({parse_sample_key(key)[0] for key in keys})
    here = among(connection, generations.c.completion_id, ids)
    columns = [generations.c[name] for name in _STANDING]
    present = connection.execute(select(generations.c.choice).where(here)).all()
    free = select(*columns).where(here).order_by(generations.c.completion_id, generations.c.choice)
    held = connection.execute(free.with_for_update(skip_locked=True)).all()
    if len(held) < len(present):
        return False
    # After the rows are held: whoever changes them from now on knows of later epochs.
    epochs, told = _read(connection), _by_key(outcomes_of(connection, keys))
    again = [row for row in held if sample_key(row.completion_id, row.choice) in told]
    decided = [(row, best(told[sample_key(row.completion_id, row.choice)], epochs, row.revision)) for row in again]
    rows = [_standing_row(row, outcome) for row, outcome in decided]
    update_all(
        connection, generations, [new for new, (row, _) in zip(rows, decided, strict=True) if _differs(row, new)]
    )
    return True


def _by_key(told: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = {}
    for item in told:
        found.setdefault(item.key, []).append(item)
    return found


def _standing_row(row: Row[Any], said: Outcome | None) -> dict[str, Any]:
    key = {"completion_id": row.completion_id, "choice": row.choice}
    if said is None:
        return key | {
            "state": PENDING, "state_reason": "", "state_writer": "episodes", "state_epoch": 0, "state_revision": 0,
            "state_version": None, "state_sequence": 0,
        }  # fmt: skip
    return key | {
        "state": said.state, "state_reason": said.reason, "state_writer": said.writer, "state_epoch": said.epoch,
        "state_revision": said.revision, "state_version": said.version, "state_sequence": said.sequence,
    }  # fmt: skip


def _differs(row: Row[Any], new: dict[str, Any]) -> bool:
    return any(getattr(row, name) != value for name, value in new.items())
