"""One writer per policy: a lease whose epochs the database issues.

In: a process that wants to train. Out: the right to write, which every transaction of the writer checks inside itself, so
that a process that was stopped and wakes can change nothing. Waits for: nothing; a living holder is named at once.

    free      no row, or its holder released it: the next one takes it
    held      renewed less than a lifetime ago, by the database's clock: refused
    orphaned  its holder died on this machine: taken at once
    expired   not renewed for a lifetime (stopped, cut off, gone with its machine): taken

Each time it is taken, and at each rollback, an epoch is issued that is higher than all before: a row in `training_epoch`.
The epoch, not the clock, is what protects the data: whoever holds an older one fails its next check.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import structlog
from sqlalchemy import Connection, Row, func, insert, literal_column, select, update

from contracts.errors import LeaseHeld, LeaseLost, Unavailable
from contracts.tables import training_epoch, training_lease
from contracts.tables.statements import insert_new
from runtime.database import Database
from runtime.lease_holder import LeaseHolder, is_dead, this_process

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

LIFETIME_SECONDS = 20.0
_BEATS = 6
"""Renewals in a lifetime: several may fail before the lease is lost."""
_LONGEST_WAIT_SECONDS = 4
"""For a lock on the lease, so that whoever is refused hears it within five seconds."""

log = structlog.get_logger()


class IssuedEpoch(NamedTuple):
    """One that was issued. `start`: what its holder went on from, in the holder's words; None if it never said."""

    epoch: int
    holder: LeaseHolder
    issued_at: float
    start: str | None


class Lease:
    """The right to write for one policy, under one epoch. Made by `acquire`."""

    def __init__(self, database: Database, policy: str, holder: LeaseHolder, epoch: int) -> None:
        """Use `acquire`."""
        self._database = database
        self._policy = policy
        self._holder = holder
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
        """Take the lease under a new epoch, above all that were issued and above `floor`.

        Args:
            database: which issues the epoch, and whose clock counts.
            policy: one lease each.
            floor: the highest epoch that this trainer has seen elsewhere: in checkpoints, in the ledger.
            lifetime: seconds after which a holder that does not renew is gone.
            holder: who takes it; None: this process.

        Raises:
            LeaseHeld: a living process has it; nothing was changed.
            Unavailable: the database is away, or a lock on the lease was not to be had in time.
        """
        holder = msgspec.structs.replace(holder or this_process(), lifetime=lifetime)
        with database.snapshot() as connection:  # waits for no lock: a stopped holder may have one
            _refuse_if_held(connection, policy, _row(connection, policy))
        with database.transaction() as connection:
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_LONGEST_WAIT_SECONDS}s'")
            free = {"policy": policy, "epoch": 0, "holder": _FREE, "renewed_at": 0.0}
            insert_new(connection, training_lease, free)
            _refuse_if_held(connection, policy, _locked(connection, policy))
            holder = msgspec.structs.replace(holder, since=_now(connection))
            epoch = _issue(connection, policy, holder, floor)
        return cls(database, policy, holder, epoch)

    def check(self, connection: Connection) -> None:
        """Make sure, inside the transaction that writes, that no other epoch was issued; none can be until it ends.

        Raises:
            LeaseLost: one was, or the lease was released; roll the transaction back and end the process.
        """
        # The weakest lock that keeps a successor out: renewals by the heartbeat need not wait for it.
        statement = _select(self._policy).with_for_update(read=True, key_share=True)
        self._insist(connection.execute(statement).one_or_none(), self.epoch)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction that begins with `check`: the only way for the holder to write.

        Raises:
            LeaseLost: as `check`.
            Unavailable: the database cannot be written.
        """
        with self._database.transaction() as connection:
            self.check(connection)
            yield connection

    def check_now(self) -> None:
        """The same in a transaction of its own, before and after writes that the database cannot hold.

        Raises:
            LeaseLost: as `check`.
            Unavailable: the database cannot be asked.
        """
        with self._database.snapshot() as connection:
            self._insist(_row(connection, self._policy), self.epoch)

    def assert_held(self) -> None:
        """Raise LeaseLost if a renewal or a check found that it is lost. Asks nobody."""
        if self._lost is not None:
            raise self._lost

    def next_epoch(self, floor: int = 0) -> int:
        """Issue one more under the same holder: a rollback begins a new story.

        Raises:
            LeaseLost: as `check`.
            Unavailable: the database is away; the epoch is as before.
        """
        with self._database.transaction() as connection:
            self._insist(_locked(connection, self._policy), self.epoch)
            epoch = _issue(connection, self._policy, self._holder, floor)
        self.epoch = epoch
        return epoch

    def note_start(self, start: str) -> None:
        """Keep what this epoch goes on from; a successor ignores what a predecessor wrote after it.

        Raises:
            LeaseLost: as `check`.
            Unavailable: the database is away.
        """
        with self.transaction() as connection:
            told = {**msgspec.to_builtins(self._holder), "start": start}
            mine = (training_epoch.c.policy == self._policy) & (training_epoch.c.epoch == self.epoch)
            connection.execute(update(training_epoch).where(mine).values(holder=told))

    def renew(self) -> None:
        """Say that the holder lives.

        Raises:
            LeaseLost: somebody else holds it, or it was released.
            Unavailable: the database is away.
        """
        with self._database.transaction() as connection:
            # By instance, not by epoch: the holder's other thread may be about to issue one.
            # Does not wait for `check`: a transaction of the holder may be long.
            row = connection.execute(_select(self._policy).with_for_update(key_share=True)).one_or_none()
            self._insist(row, None)
            held = training_lease.c.policy == self._policy
            connection.execute(update(training_lease).where(held).values(renewed_at=_clock(connection)))

    @contextmanager
    def kept_alive(self) -> Iterator[None]:
        """Renew in a thread, on a connection of its own, while the body runs; release at its end."""
        stop = threading.Event()
        beating = threading.Thread(target=self._beat, args=(stop,), name="lease", daemon=True)
        beating.start()
        try:
            yield
        finally:
            stop.set()
            beating.join()
            self.release()

    def release(self) -> None:
        """Leave it to whoever comes next; nothing happens if somebody else holds it, or nobody can be told."""
        try:
            with self._database.transaction() as connection:
                self._insist(_locked(connection, self._policy), None)
                gone = msgspec.to_builtins(msgspec.structs.replace(self._holder, released=True))
                held = training_lease.c.policy == self._policy
                connection.execute(update(training_lease).where(held).values(holder=gone))
        except (LeaseLost, Unavailable) as error:
            log.warning("lease not released", policy=self._policy, epoch=self.epoch, reason=error.message)

    def _beat(self, stop: threading.Event) -> None:
        own = Database(self._database.url)
        renewing = Lease(own, self._policy, self._holder, self.epoch)
        while not stop.wait(self._holder.lifetime / _BEATS):
            try:
                renewing.renew()
            except LeaseLost as lost:
                self._lost = lost
                log.error("lease lost", policy=self._policy, epoch=self.epoch, reason=lost.message)  # noqa: TRY400 no fault of ours
                break
            except Unavailable as error:
                log.warning("lease not renewed", policy=self._policy, epoch=self.epoch, reason=error.message)
        own.close()

    def _insist(self, row: Row[Any] | None, epoch: int | None) -> None:
        holder = _holder(row)
        mine = holder is not None and holder.instance == self._holder.instance and not holder.released
        if row is None or not mine or epoch not in {None, row.epoch}:
            now = f"epoch {row.epoch} is held by {holder.name}" if row and holder else "its row is gone"
            self._lost = LeaseLost(
                f"epoch {self.epoch} of {self._policy} is over: {now}. This process writes nothing any more; "
                "start it again if that one should not train",
                policy=self._policy,
                epoch=self.epoch,
            )
            raise self._lost


def read_epochs(connection: Connection, policy: str) -> dict[int, IssuedEpoch]:
    """Every epoch that was ever issued for a policy."""
    rows = connection.execute(select(training_epoch).where(training_epoch.c.policy == policy))
    return {
        row.epoch: IssuedEpoch(
            row.epoch, msgspec.convert(row.holder, LeaseHolder), row.issued_at, row.holder.get("start")
        )
        for row in rows
    }


_FREE: dict[str, Any] = msgspec.to_builtins(LeaseHolder(host="", pid=0, instance="", released=True))


def _refuse_if_held(connection: Connection, policy: str, row: Row[Any] | None) -> None:
    holder = _holder(row)
    if row is None or holder is None or holder.released or is_dead(holder):
        return
    # A clock that was set back makes renewals lie in the future; the holder would renew them within seconds.
    age = abs(_now(connection) - row.renewed_at)
    if age < holder.lifetime:
        raise LeaseHeld(
            f"{policy} is being trained by {holder.name}; stop that one first, or wait {holder.lifetime:.0f} s "
            "if it is gone",
            host=holder.host,
            pid=holder.pid,
            since=holder.since,
            epoch=row.epoch,
        )


def _issue(connection: Connection, policy: str, holder: LeaseHolder, floor: int) -> int:
    """The row of the lease is locked."""
    issued = select(func.max(training_epoch.c.epoch)).where(training_epoch.c.policy == policy)
    last = connection.execute(issued).scalar_one() or 0
    row = _row(connection, policy)
    epoch = max(last, floor, row.epoch if row else 0) + 1
    told, now = msgspec.to_builtins(holder), _now(connection)
    values = {"epoch": epoch, "holder": told, "renewed_at": now}
    connection.execute(update(training_lease).where(training_lease.c.policy == policy).values(**values))
    connection.execute(insert(training_epoch).values(policy=policy, epoch=epoch, holder=told, issued_at=now))
    return epoch


def _select(policy: str) -> Any:
    return select(training_lease).where(training_lease.c.policy == policy)


def _row(connection: Connection, policy: str) -> Row[Any] | None:
    found: Row[Any] | None = connection.execute(_select(policy)).one_or_none()
    return found


def _locked(connection: Connection, policy: str) -> Row[Any] | None:
    found: Row[Any] | None = connection.execute(_select(policy).with_for_update()).one_or_none()
    return found


def _holder(row: Row[Any] | None) -> LeaseHolder | None:
    return None if row is None else msgspec.convert(row.holder, LeaseHolder)


def _now(connection: Connection) -> float:
    return float(connection.execute(select(_clock(connection))).scalar_one())


def _clock(connection: Connection) -> ColumnElement[float]:
    """The database's, UTC epoch seconds: processes on several machines agree on no other."""
    if connection.dialect.name == "sqlite":
        return literal_column("(julianday('now') - 2440587.5) * 86400.0")
    return literal_column("extract(epoch from clock_timestamp())::float8")
