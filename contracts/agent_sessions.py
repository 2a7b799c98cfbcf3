"""Sessions with a key of their own: `mr-session-<id>-<secret>`, for agents that can be given a URL and a key, and nothing else.

A session has the tenant and, for inference, the rights of its key, and ends with it. All replicas share its budget. Calls that follow
each other never exceed it; calls at the same time may exceed the tokens by what they make.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, insert, select, update

from contracts.errors import NotFound, SessionOver, Unauthorized
from contracts.keys import Caller, check_key, digest_of, find_key
from contracts.tables import agent_session
from contracts.tables.statements import delete_free

ROLE = "session"
_FORGOTTEN_AT_ONCE = 100
KEPT_SECONDS = 30 * 86_400.0
"""How long a session that is over can still be looked at."""
_PARTS, _ID_BYTES = 4, 12


class SessionBudget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a session may use in all; None: no limit of its own. `seconds` count from its start."""

    calls: int | None = None
    tokens: int | None = None
    """Of answers."""
    seconds: float | None = None


class AgentSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session as its maker sees it. Times are UTC epoch seconds."""

    id: str
    task: str
    group: str | None
    """Sessions of one group try the same thing: the trainer compares them with each other."""
    budget: SessionBudget
    used_calls: int
    used_tokens: int
    created_at: float
    expires_at: float
    ended_at: float | None


def make_session(
    connection: Connection,
    maker: Caller,
    task: str,
    budget: SessionBudget,
    *,
    now: float,
    longest: float,
    group: str | None = None,
) -> tuple[AgentSession, str]:
    """A new session and its key, whose text is the only copy of its secret. `longest`: seconds, without a budget of them."""
    delete_free(connection, agent_session, agent_session.c.expires_at < now - KEPT_SECONDS, limit=_FORGOTTEN_AT_ONCE)
    session_id, secret = secrets.token_hex(_ID_BYTES), secrets.token_hex(24)
    expires_at = now + min(longest, longest if budget.seconds is None else budget.seconds)
    values: dict[str, Any] = {"id": session_id, "secret_hash": digest_of(secret)}
    values |= {"tenant": maker.tenant, "key_id": maker.key_id}
    values |= {"task": task, "group_name": group, "created_at": now, "expires_at": expires_at}
    values |= {"max_calls": budget.calls, "max_tokens": budget.tokens, "max_seconds": budget.seconds}
    row = connection.execute(insert(agent_session).values(values).returning(agent_session)).one()
    return _shown(row), f"mr-{ROLE}-{session_id}-{secret}"


def get_session(connection: Connection, tenant: str, session_id: str) -> AgentSession:
    """A session of a tenant. Raises NotFound."""
    # A text that is not an id is in no table, and the database may refuse it in a query.
    row = _row(connection, session_id) if session_id.isalnum() else None
    if row is None or row.tenant != tenant:
        raise NotFound(f"there is no session {session_id[:64]!r} with a key of its own here", param="session_id")
    return _shown(row)


def caller_of_key(connection: Connection, authorization: str | None, now: float) -> Caller:
    """The caller of an `Authorization: Bearer ...` header with any key. Raises Unauthorized; SessionOver: its session ended."""
    scheme, _, text = (authorization or "").partition(" ")
    parts = text.strip().split("-")
    if scheme.lower() == "bearer" and len(parts) == _PARTS and parts[:2] == ["mr", ROLE] and parts[2].isalnum():
        return _caller_of_session(connection, parts[2], parts[3], now)
    return check_key(connection, authorization, now)


def _caller_of_session(connection: Connection, session_id: str, secret: str, now: float) -> Caller:
    """With its maker's rights, as far as they are about inference, and not beyond its maker's key."""
    row = _row(connection, session_id)
    if row is None or not hmac.compare_digest(row.secret_hash, digest_of(secret)):
        raise Unauthorized("this session key is not known here; POST /v1/sessions makes one")
    maker = find_key(connection, row.key_id, now)
    return _bound(maker._replace(role="app", scopes=maker.scopes & {"inference"}), row, now)


def may_be_made(session_id: str) -> bool:
    """Whether `make_session` may have made this id; clients that name a session themselves choose others."""
    return len(session_id) == 2 * _ID_BYTES and set(session_id) <= set("0123456789abcdef")


def in_session(connection: Connection, caller: Caller, session_id: str, now: float) -> Caller:
    """The caller bound to a session of its tenant, as if with its key; unchanged if there is none. Raises SessionOver."""
    row = _row(connection, session_id)
    return caller if row is None or row.tenant != caller.tenant else _bound(caller, row, now)


def reserve_call(connection: Connection, session_id: str, now: float) -> int | None:
    """Count a call. Returns how many tokens its answer may have; None: any number. Raises SessionOver: nothing was counted."""
    table = agent_session.c
    counted = (
        update(agent_session)
        .where(table.id == session_id, table.ended_at.is_(None), table.expires_at > now)
        .where(table.max_calls.is_(None) | (table.num_calls < table.max_calls))
        .where(table.max_tokens.is_(None) | (table.num_tokens < table.max_tokens))
        .values(num_calls=table.num_calls + 1)
        .returning(table.max_tokens, table.num_tokens)
    )
    row = connection.execute(counted).one_or_none()
    if row is None:
        raise SessionOver(_why_over(_row(connection, session_id), now))
    return None if row.max_tokens is None else row.max_tokens - row.num_tokens


def spend_tokens(connection: Connection, session_id: str, num: int) -> None:
    """Count the tokens of an answer."""
    table = agent_session.c
    connection.execute(update(agent_session).where(table.id == session_id).values(num_tokens=table.num_tokens + num))


def end_session(connection: Connection, tenant: str, session_id: str, now: float) -> AgentSession:
    """End a session; ending it again changes nothing. Raises NotFound."""
    table = agent_session.c
    mine = (table.id == session_id, table.tenant == tenant, table.ended_at.is_(None))
    ended = update(agent_session).where(*mine).values(ended_at=now).returning(agent_session)
    row = connection.execute(ended).one_or_none() if session_id.isalnum() else None
    return get_session(connection, tenant, session_id) if row is None else _shown(row)


def _shown(row: Row[Any]) -> AgentSession:
    return AgentSession(
        id=row.id,
        task=row.task,
        group=row.group_name,
        budget=SessionBudget(calls=row.max_calls, tokens=row.max_tokens, seconds=row.max_seconds),
        used_calls=row.num_calls,
        used_tokens=row.num_tokens,
        created_at=row.created_at,
        expires_at=row.expires_at,
        ended_at=row.ended_at,
    )


def _bound(caller: Caller, row: Row[Any], now: float) -> Caller:
    if row.ended_at is not None or row.expires_at <= now:
        raise SessionOver(_why_over(row, now))
    return caller._replace(session=row.id, task=row.task, group=row.group_name, session_until=row.expires_at)


def _row(connection: Connection, session_id: str) -> Row[Any] | None:
    return connection.execute(select(agent_session).where(agent_session.c.id == session_id)).one_or_none()


def _why_over(row: Row[Any] | None, now: float) -> str:
    if row is None or row.ended_at is not None:
        return f"this session was {'deleted' if row is None else 'ended'}; POST /v1/sessions makes another"
    if row.expires_at <= now:
        return f"this session's {row.expires_at - row.created_at:g} seconds are over; POST /v1/sessions makes another"
    if row.max_calls is not None and row.num_calls >= row.max_calls:
        return f"this session's budget of {row.max_calls} calls is used up"
    return f"this session's budget of {row.max_tokens} tokens is used up"
