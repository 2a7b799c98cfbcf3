"""What alarms only after hours or days: made as it would be made, and then its time is put back in the database."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from sqlalchemy import select, update

from contracts import holds
from contracts.assignments import CANDIDATE
from contracts.tables import assignment, assignment_change, ledger_mark, train_hold, webhook_delivery
from runtime.settings import load_settings
from runtime.snapshot_rows import DatabaseSnapshotRows
from tests.adversary.alarms.breaks.kills import kill, no_bytes, stopped
from tests.adversary.alarms.breaks.kinds import Break
from tests.adversary.alarms.breaks.settings import changed
from tests.adversary.alarms.world import WatchedHome, until
from tests.worlds.processes import free_port
from weights.issuer import Issuer
from weights.stores.opening import open_weight_store
from weights.versions.keys import keyring_of, signer_of

_DAY_SECONDS = 86_400.0
_PATIENCE_SECONDS = 60.0


@contextmanager
def held_for_days(world: WatchedHome) -> Iterator[None]:
    """An operator froze the arms, and forgot it."""
    policy = load_settings(world.home).policy
    with world.database() as connection:
        holds.freeze(connection, policy=policy, until=None, writer="benchmark", reason="a look at the weekend")
        connection.execute(update(train_hold).values(at=train_hold.c.at - 2 * _DAY_SECONDS))
    try:
        yield
    finally:
        with world.database() as connection:
            connection.execute(update(train_hold).values(at=train_hold.c.at + 2 * _DAY_SECONDS))
            holds.resume(connection, policy=policy, writer="benchmark", reason="the look is over")


@contextmanager
def waiting_candidate(world: WatchedHome) -> Iterator[None]:
    """A candidate that no engine can hold was offered an hour ago."""
    with no_bytes(world):
        with world.database() as connection:
            mine = update(assignment).where(assignment.c.arm == CANDIDATE)
            connection.execute(mine.values(at=assignment.c.at - 3600.0))
        yield


@contextmanager
def deaf_receiver(world: WatchedHome) -> Iterator[None]:
    """A receiver of webhooks has been away for two hours. Its URL stands in the settings; nobody listens there."""
    policy, url = load_settings(world.home).policy, f"http://127.0.0.1:{free_port()}/"

    def waits() -> bool:
        with world.database() as connection:
            tried = select(webhook_delivery.c.id).where(webhook_delivery.c.num_tries > 0)
            return connection.execute(tried).first() is not None

    with changed(world, "release", "webhooks", urls=[url], private_hosts=["127.0.0.1"]):
        time.sleep(5.0)
        with world.database() as connection:
            holds.freeze(connection, policy=policy, until=None, writer="benchmark", reason="something to tell")
        try:
            until(waits, _PATIENCE_SECONDS, "release told nobody of the freeze")
            with world.database() as connection:
                connection.execute(update(webhook_delivery).values(at=webhook_delivery.c.at - 2 * 3600.0))
            yield
        finally:
            with world.database() as connection:
                holds.resume(connection, policy=policy, writer="benchmark", reason="it was told")


@contextmanager
def unsealed(world: WatchedHome) -> Iterator[None]:
    """No audit has balanced for three days, and episodes was started again since."""
    with world.database() as connection:
        connection.execute(update(assignment_change).values(at=assignment_change.c.at - 3 * _DAY_SECONDS))
        connection.execute(update(ledger_mark).values(at=ledger_mark.c.at - 3 * _DAY_SECONDS))
    kill(world, "episodes")
    try:
        yield
    finally:
        with world.database() as connection:
            connection.execute(update(assignment_change).values(at=assignment_change.c.at + 3 * _DAY_SECONDS))
            connection.execute(update(ledger_mark).values(at=ledger_mark.c.at + 3 * _DAY_SECONDS))
        kill(world, "episodes")


@contextmanager
def old_snapshot(world: WatchedHome) -> Iterator[None]:
    """Nobody has renewed the signed list of versions for 13 hours: training and release stand still."""
    settings = load_settings(world.home)
    database, signer = settings.database(), signer_of(settings)
    if signer is None:
        raise RuntimeError("this home does not sign")

    def issue(hours_ago: float) -> None:
        rows, store = DatabaseSnapshotRows(database, settings.policy), open_weight_store(settings, publishes=True)
        Issuer(
            rows, store, settings.policy, settings.run, signer=signer, keyring=keyring_of(settings),
            clock=lambda: time.time() - hours_ago * 3600.0,
        ).issue()  # fmt: skip
        for process in ("engine", "web"):  # they forget the list that they read before
            kill(world, process)

    with closing(database), stopped(world, "training"), stopped(world, "release"):
        issue(hours_ago=13.0)
        try:
            yield
        finally:
            issue(hours_ago=0.0)


def breaks() -> tuple[Break, ...]:
    """Those of a home that the users have used."""
    return (  # a candidate's time begins again when a freeze ends, so it comes first
        Break("a candidate has waited for an hour", "CandidateWaits", "", waiting_candidate),
        Break("operators forgot a freeze", "HeldForADay", "", held_for_days),
        Break("a receiver of webhooks is away", "WebhooksFail", "", deaf_receiver),
        Break("no audit has balanced for three days", "LedgerNotSealed", "", unsealed, hurried=True),
        Break("the signed list of versions was not renewed", "SnapshotExpires", "", old_snapshot, hurried=True),
    )
