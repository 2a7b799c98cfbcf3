"""The database: one transaction per message or request, real migrations, and consistent snapshots for reading.

SQLite: WAL, fsync on commit. Every write transaction takes the lock at its start (BEGIN IMMEDIATE); data gives way to what keeps the
product running (`turns.py`). PostgreSQL: read committed for writing (positions and pointers move by compare-and-set), repeatable
read for reading.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import sqlalchemy
from alembic.util import CommandError
from sqlalchemy import Connection, event
from sqlalchemy.exc import DatabaseError, InternalError, OperationalError, SQLAlchemyError

from contracts.errors import Damaged, InvalidSettings, Unavailable
from runtime.database_access import refusal_in_words
from runtime.schema import upgrade
from runtime.turns import WriteTurns

LONGEST_PAUSE_SECONDS = 20.0
"""Longest pause between two statements of a transaction, on PostgreSQL: a relay that holds a lock may wait this long for Kafka."""
_AWAY = (OperationalError, InternalError)  # PostgreSQL raises the second after it ended a transaction
_BUSY_SECONDS, _BUSY_PAUSE_SECONDS = 30.0, 0.005
_UNDEFINED = frozenset({"42P01", "42703"})
"""PostgreSQL: no such table, no such column."""
_MIGRATE = "it is of an older release: run `millrace init` of this one"


class Database:
    """Connections to a database. `longest_pause_seconds`: PostgreSQL ends transactions that wait longer for the next statement."""

    def __init__(self, url: str, *, longest_pause_seconds: float = LONGEST_PAUSE_SECONDS) -> None:
        self.url = url
        self._turns: WriteTurns | None = None
        if url.startswith("sqlite"):
            self._engine = sqlalchemy.create_engine(url, connect_args={"timeout": _BUSY_SECONDS})
            event.listen(self._engine, "connect", prepare_sqlite)
            event.listen(self._engine, "begin", _begin_sqlite)
            path = sqlalchemy.make_url(url).database
            self._turns = WriteTurns(path) if path and path != ":memory:" else None
        else:
            # A frozen process would never release its row locks. Its transaction is rolled back, and it starts over.
            options = f"-c idle_in_transaction_session_timeout={round(longest_pause_seconds * 1000)} -c tcp_keepalives_idle=10"
            # Where a link is cut, TCP would wait for minutes, longer than the cut, before it sends again or gives up.
            arguments = {"connect_timeout": 10, "tcp_user_timeout": 10_000, "keepalives_idle": 10, "options": options}
            self._engine = sqlalchemy.create_engine(url, pool_pre_ping=True, connect_args=arguments)
        self._reading = self._engine.execution_options(read_only=True)
        if not url.startswith("sqlite"):
            self._reading = self._reading.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    @contextmanager
    def transaction(self, *, gives_way: bool = False) -> Iterator[Connection]:
        """A transaction, all or nothing: the only way to write.

        `gives_way`: it writes data, of which there may be much: on SQLite, transactions that do not give way begin first.
        Raises Unavailable: the database cannot be written (full disk, server down); nothing was changed. Damaged: SQLite found
        its file corrupt.
        """
        with self._explained("used", "free disk space or start it"), ExitStack() as open_until_the_end:
            with self._turn(gives_way=gives_way):
                connection = open_until_the_end.enter_context(self._engine.begin())
            yield connection

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """A consistent view for reading; never waits for a writer. Raises as `transaction`."""
        with self._explained("read", "start it, or wait until it is back"), self._reading.connect() as connection:
            yield connection

    def _turn(self, *, gives_way: bool) -> AbstractContextManager[None]:
        if self._turns is None:
            return nullcontext()
        if not gives_way:
            return self._turns.announced()
        self._turns.give_way()
        return nullcontext()

    @contextmanager
    def _explained(self, verb: str, remedy: str) -> Iterator[None]:
        try:
            yield
        except (DatabaseError, sqlite3.DatabaseError) as error:
            if isinstance(error, DatabaseError) and (isinstance(error, _AWAY) or _is_older(error)):
                remedy = _MIGRATE if _is_older(error) else refusal_in_words(self.url, str(error.orig)) or remedy
                raise Unavailable(f"the database cannot be {verb} ({error.orig}); {remedy}") from error
            if (damaged := self._damaged(error)) is None:
                raise
            raise damaged from error

    def _damaged(self, error: DatabaseError | sqlite3.DatabaseError) -> Damaged | None:
        cause = error.orig if isinstance(error, DatabaseError) else error
        if getattr(cause, "sqlite_errorcode", 0) & 0xFF not in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            return None
        path = sqlalchemy.make_url(self.url).database
        return Damaged(
            f"{path} is damaged ({cause}): stop Millrace and restore the file from a backup; `millrace doctor` lists damaged files",
            path=path,
        )

    def upgrade_schema(self) -> None:
        """Apply all migrations; `runtime.days.migrate` also makes the coming days' partitions. Raises InvalidSettings: a newer Millrace made the database, with migrations that this one lacks."""
        with self.transaction() as connection:
            try:
                upgrade(connection)
            except CommandError as error:
                raise InvalidSettings(
                    f"{self.url} was made by another version of Millrace ({error}); start that one, or choose another "
                    "--home"
                ) from error

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()


def _is_older(error: DatabaseError) -> bool:
    """True if a table or a column is missing: an older release made the database, and nobody brought it to this one."""
    says = str(error.orig)
    is_missing = says.startswith(("no such table", "no such column")) or "has no column named" in says
    return is_missing or getattr(error.orig, "sqlstate", None) in _UNDEFINED


def create_database(server_url: str, name: str) -> str:
    """Make an empty PostgreSQL database on the server of `server_url`; returns its URL. Raises Unavailable: it refuses."""
    url = sqlalchemy.make_url(server_url)
    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            quoted = connection.dialect.identifier_preparer.quote(name)
            connection.exec_driver_sql(f"CREATE DATABASE {quoted}")
    except SQLAlchemyError as error:
        raise Unavailable(
            f"cannot make a database on {url.host}:{url.port} ({error}); start the server, or grant its user CREATEDB"
        ) from error
    finally:
        engine.dispose()
    return url.set(database=name).render_as_string(hide_password=False)


def prepare_sqlite(connection: sqlite3.Connection, _record: object = None) -> None:
    """Set WAL and fsync on commit; transactions begin explicitly."""
    connection.isolation_level = None
    # While another process writes to a new file, this statement fails at once and ignores the connection's timeout.
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            is_disk = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
            if is_disk or time.monotonic() > deadline:
                raise
            time.sleep(_BUSY_PAUSE_SECONDS)
    connection.execute("PRAGMA synchronous = FULL")


def _begin_sqlite(connection: Connection) -> None:
    read_only = connection.get_execution_options().get("read_only", False)
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")
