"""SQL of sessions and one-time links. The table holds only hashes, so nobody can sign in with what they read there."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, and_, delete, func, insert, or_, select, update

from contracts.tables import dashboard_session as session

LINK = "link"
"""The role of a row that is no session yet: a link that nobody used."""


def add(connection: Connection, row: dict[str, Any], *, used_before: float, started_before: float, most: int) -> None:
    """Insert a session or a link. Expired ones are deleted, and the longest unused beyond `most`."""
    columns = session.c
    is_idle = and_(columns.role != LINK, columns.used_at < used_before)
    connection.execute(delete(session).where(or_(is_idle, columns.started_at < started_before)))
    surplus = connection.execute(select(func.count()).select_from(session)).scalar_one() + 1 - most
    if surplus > 0:
        oldest = select(columns.id_hash).order_by(columns.used_at, columns.started_at).limit(surplus)
        connection.execute(delete(session).where(columns.id_hash.in_(oldest)))
    connection.execute(insert(session).values(**row))


def find(connection: Connection, id_hash: str) -> Row[Any] | None:
    """The session of a hashed id."""
    return connection.execute(select(session).where(session.c.id_hash == id_hash, session.c.role != LINK)).one_or_none()


def spend_link(connection: Connection, id_hash: str, started_since: float) -> bool:
    """Delete the link of a hashed token. False: there is none; of several who ask at once, one gets True."""
    columns = session.c
    here = (columns.id_hash == id_hash, columns.role == LINK, columns.started_at >= started_since)
    return connection.execute(delete(session).where(*here)).rowcount == 1


def note_use(connection: Connection, id_hash: str, now: float) -> None:
    """Store the time of the last use. Times never go back, whichever replica writes last."""
    older = update(session).where(session.c.id_hash == id_hash, session.c.used_at < now)
    connection.execute(older.values(used_at=now))


def remove(connection: Connection, id_hash: str) -> None:
    """Delete a session."""
    connection.execute(delete(session).where(session.c.id_hash == id_hash))
