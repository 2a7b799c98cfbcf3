"""One writer per policy: a lease whose epochs the database issues. Waits for nothing.

Every transaction of the writer checks its right inside itself, so a process that was stopped and continues later can change nothing.

    free      no row, or its holder released it: the next process takes it
    held      renewed less than a lifetime ago, by the database's clock: refused
    orphaned  its holder died on this machine: taken at once
    expired   not renewed for a lifetime (stopped, cut off, machine lost): taken

Taking the lease issues an epoch, and so does each rollback: a row in `training_epoch` with a number above all earlier ones. The epoch
protects the data, not the clock: a process with an older epoch fails its next check.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import structlog
from sqlalchemy import Connection, Row, Update, func, insert, literal_column, select, update

from contracts.errors import LeaseHeld, LeaseLost, Unavailable
from contracts.tables import training_epoch, training_lease
from contracts.tables.statements import insert_new
from runtime.database import Database
from runtime.lease_holder import LeaseHolder, is_dead, this_process

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

LIFETIME_SECONDS = 20.0
_BEATS = 6
"""Renewals per lifetime: several may fail before the lease is lost."""
_LONGEST_WAIT_SECONDS = 4
"""Longest wait for a lock on the lease: a process that is refused learns it within five seconds."""

log = structlog.get_logger()


class IssuedEpoch(NamedTuple):
    """An epoch that was issued. `start`: what its holder continued from, in the holder's words; None if it did not note it."""

    epoch: int
    holder: LeaseHolder
    issued_at: float
    start: str | None


class Lease:
    """The right to write for one policy, under one epoch. Made by `acquire`."""

    def __init__(self, database: Database, policy: str, holder: LeaseHolder, epoch: int) -> None:
        """Use `acquire`."""
        self._database, self.policy, self._holder = database, policy, holder
        self._lost: LeaseLost | None = None
        self.epoch = epoch

    @classmethod
    def acquire(
        cls,
        database: Database,
        policy: str,
        *,
        floor: int = 0,
        lifetime: float = LIFETIME_SECONDS,
        holder: LeaseHolder | None = None,
    ) -> Lease:
        """Take the lease under a new epoch, above all issued epochs and above `floor`, the highest one that this trainer found elsewhere.

        `lifetime`: seconds without a renewal after which another process may take it. `holder`: None: this process. Raises LeaseHeld: a
        living process holds it; nothing was changed. Unavailable: the database is away, or the lock on the lease was not free in time.
        """
        holder = msgspec.structs.replace(holder or this_process(), lifetime=lifetime)
        with database.snapshot() as connection:  # waits for no lock: a stopped holder may have one
            _refuse_if_held(connection, policy, _row(connection, policy))
        with database.transaction() as connection:
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_LONGEST_WAIT_SECONDS}s'")
            free = {"policy": policy, "epoch": 0, "holder": _FREE, "renewed_at": 0.0}
            insert_new(connection, training_lease, free)
            _refuse_if_held(connection, policy, _row(connection, policy, nowait=False))
            holder = msgspec.structs.replace(holder, since=_now(connection))
            epoch = _issue(connection, policy, holder, floor)
        return cls(database, policy, holder, epoch)

    def check(self, connection: Connection) -> None:
        """Raises LeaseLost inside a writing transaction if another epoch was issued. None can be issued until the transaction ends."""
        # The weakest lock that excludes a successor: renewals by the heartbeat do not wait for it.
        self._insist(_row(connection, self.policy, read=True, key_share=True), self.epoch)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction that begins with `check`. The holder writes only in these. Raises LeaseLost, Unavailable."""
        with self._database.transaction() as connection:
            self.check(connection)
            yield connection

    def check_now(self) -> None:
        """`check` in its own transaction, before and after writes to other stores. Raises LeaseLost, Unavailable."""
        with self._database.snapshot() as connection:
            self._insist(_row(connection, self.policy), self.epoch)

    def assert_held(self) -> None:
        """Raise LeaseLost if an earlier renewal or check found the lease lost. Does not ask the database."""
        if self._lost is not None:
            raise self._lost

    def next_epoch(self, floor: int = 0) -> int:
        """Issue another epoch to the same holder, for a rollback. Raises LeaseLost; Unavailable: the epoch did not change."""
        with self._database.transaction() as connection:
            self._insist(_row(connection, self.policy, nowait=False), self.epoch)
            epoch = _issue(connection, self.policy, self._holder, floor)
        self.epoch = epoch
        return epoch

    def note_start(self, start: str) -> None:
        """Store what this epoch continues from; a successor ignores what is written later. Raises LeaseLost, Unavailable."""
        started = {**msgspec.to_builtins(self._holder), "start": start}
        mine = (training_epoch.c.policy == self.policy, training_epoch.c.epoch == self.epoch)
        with self.transaction() as connection:
            connection.execute(update(training_epoch).where(*mine).values(holder=started))

    def renew(self) -> None:
        """Extend the lease. Raises LeaseLost: another process holds it, or it was released; Unavailable."""
        with self._database.transaction() as connection:
            # By instance, not by epoch: another thread of the holder may be issuing one.
            # This lock does not wait for `check`: a transaction of the holder may be long.
            self._insist(_row(connection, self.policy, key_share=True), None)
            connection.execute(self._update().values(renewed_at=_clock(connection)))

    @contextmanager
    def kept_alive(self, is_moving: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Renew in a thread, on its own connection, while the body runs; release at the end.

        `is_moving`: asked before each renewal. If the holder makes no progress, the lease expires, and another process may take it.
        """
        stop = threading.Event()
        beating = threading.Thread(target=self._beat, args=(stop, is_moving), name="lease", daemon=True)
        beating.start()
        try:
            yield
        finally:
            stop.set()
            beating.join()
            self.release()

    def release(self) -> None:
        """Free the lease for the next process. Never fails: if the lease is lost or the database away, it only logs."""
        try:
            with self._database.transaction() as connection:
                self._insist(_row(connection, self.policy, nowait=False), None)
                gone = msgspec.to_builtins(msgspec.structs.replace(self._holder, released=True))
                connection.execute(self._update().values(holder=gone))
        except (LeaseLost, Unavailable) as error:
            log.warning("lease not released", policy=self.policy, epoch=self.epoch, reason=error.message)

    def _update(self) -> Update:
        return update(training_lease).where(training_lease.c.policy == self.policy)

    def _beat(self, stop: threading.Event, is_moving: Callable[[], bool]) -> None:
        own = Database(self._database.url)
        renewing = Lease(own, self.policy, self._holder, self.epoch)
        while not stop.wait(self._holder.lifetime / _BEATS):
            if not is_moving():
                log.error("lease not renewed: no progress", policy=self.policy, epoch=self.epoch)
                continue
            try:
                renewing.renew()
            except LeaseLost as lost:
                self._lost = lost
                log.error("lease lost", policy=self.policy, epoch=self.epoch, reason=lost.message)  # noqa: TRY400 not an error of this code
                break
            except Unavailable as error:
                log.warning("lease not renewed", policy=self.policy, epoch=self.epoch, reason=error.message)
        own.close()

    def _insist(self, row: Row[Any] | None, epoch: int | None) -> None:
        holder = None if row is None else _holder(row)
        mine = holder is not None and holder.instance == self._holder.instance and not holder.released
        if row is None or not mine or epoch not in {None, row.epoch}:
            now = f"epoch {row.epoch} is held by {holder.name}" if row and holder else "its row is gone"
            self._lost = LeaseLost(
                f"epoch {self.epoch} of {self.policy} is over: {now}. This process stops writing; start it again if the other "
                "process should not train",
                policy=self.policy,
                epoch=self.epoch,
            )
            raise self._lost


def read_epochs(connection: Connection, policy: str) -> dict[int, IssuedEpoch]:
    """Every epoch that was issued for a policy."""
    rows = connection.execute(select(training_epoch).where(training_epoch.c.policy == policy))
    issued = (IssuedEpoch(row.epoch, _holder(row), row.issued_at, row.holder.get("start")) for row in rows)
    return {item.epoch: item for item in issued}


def unheld_seconds(connection: Connection, policy: str) -> float | None:
    """Seconds since the last renewal by a trainer that no longer holds the lease; 0 while one holds it, None before the first."""
    row = _row(connection, policy)
    if row is None or row.epoch == 0:
        return None
    holder, age = _holder(row), max(0.0, _now(connection) - row.renewed_at)
    return 0.0 if age < holder.lifetime and not holder.released else age


_FREE: dict[str, Any] = msgspec.to_builtins(LeaseHolder(host="", pid=0, instance="", released=True))


def _refuse_if_held(connection: Connection, policy: str, row: Row[Any] | None) -> None:
    if row is None or (holder := _holder(row)).released or is_dead(holder):
        return
    # After the clock was set back, the last renewal lies in the future; a living holder renews within seconds.
    age = abs(_now(connection) - row.renewed_at)
    if age < holder.lifetime:
        raise LeaseHeld(
            f"{policy} is being trained by {holder.name}; stop that process first, or wait {holder.lifetime:.0f} s if it is gone",
            host=holder.host,
            pid=holder.pid,
            since=holder.since,
            epoch=row.epoch,
        )


def _issue(connection: Connection, policy: str, holder: LeaseHolder, floor: int) -> int:
    """Issue the next epoch. The caller has locked the row of the lease."""
    issued = select(func.max(training_epoch.c.epoch)).where(training_epoch.c.policy == policy)
    last = connection.execute(issued).scalar_one() or 0
    row = _row(connection, policy)
    epoch = max(last, floor, row.epoch if row else 0) + 1
    held_by, now = msgspec.to_builtins(holder), _now(connection)
    values = {"epoch": epoch, "holder": held_by, "renewed_at": now}
    connection.execute(update(training_lease).where(training_lease.c.policy == policy).values(**values))
    connection.execute(insert(training_epoch).values(policy=policy, epoch=epoch, holder=held_by, issued_at=now))
    return epoch


def _row(connection: Connection, policy: str, **lock: bool) -> Row[Any] | None:
    """The row of the lease; with arguments of `with_for_update`, locked."""
    statement: Any = select(training_lease).where(training_lease.c.policy == policy)
    found: Row[Any] | None = connection.execute(statement.with_for_update(**lock) if lock else statement).one_or_none()
    return found


def _holder(row: Row[Any]) -> LeaseHolder:
    return msgspec.convert(row.holder, LeaseHolder)


def _now(connection: Connection) -> float:
    return float(connection.execute(select(_clock(connection))).scalar_one())


def _clock(connection: Connection) -> ColumnElement[float]:
    """The database's clock, UTC epoch seconds: the only one that processes on several machines share."""
    if connection.dialect.name == "sqlite":
        return literal_column("(julianday('now') - 2440587.5) * 86400.0")
    return literal_column("extract(epoch from clock_timestamp())::float8")
