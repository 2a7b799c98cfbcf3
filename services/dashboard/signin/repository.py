"""SQL of sessions. A row is found by a hash of its id, so who reads the table cannot sign in with it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, or_, select, update

from contracts.tables import dashboard_session


def add(connection: Connection, row: dict[str, Any]) -> None:
    """Keep a new session."""
    connection.execute(insert(dashboard_session).values(**row))


def find(connection: Connection, id_hash: str) -> Row[Any] | None:
    """The session of a hashed id."""
    return connection.execute(select(dashboard_session).where(dashboard_session.c.id_hash == id_hash)).one_or_none()


def note_use(connection: Connection, id_hash: str, now: float) -> None:
    """It was used; times never run backwards, whichever replica writes last."""
    statement = update(dashboard_session).where(dashboard_session.c.id_hash == id_hash)
    connection.execute(statement.where(dashboard_session.c.used_at < now).values(used_at=now))


def remove(connection: Connection, id_hash: str) -> None:
    """Forget a session."""
    connection.execute(delete(dashboard_session).where(dashboard_session.c.id_hash == id_hash))


def remove_expired(connection: Connection, *, used_before: float, started_before: float) -> None:
    """Forget what has idled or lasted too long."""
    too_old = or_(dashboard_session.c.used_at < used_before, dashboard_session.c.started_at < started_before)
    connection.execute(delete(dashboard_session).where(too_old))


def remove_oldest(connection: Connection, keep: int) -> None:
    """Forget the longest unused beyond `keep`."""
    number = connection.execute(select(func.count()).select_from(dashboard_session)).scalar_one()
    if number > keep:
        oldest = (
            select(dashboard_session.c.id_hash)
            .order_by(dashboard_session.c.used_at, dashboard_session.c.started_at)
            .limit(number - keep)
        )
        connection.execute(delete(dashboard_session).where(dashboard_session.c.id_hash.in_(oldest)))
