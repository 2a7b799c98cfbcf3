"""API keys, `mr-<role>-<id>-<secret>`: an app's or an operator's, with a tenant, and scopes that its role allows. Stored as a hash."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from sqlalchemy import Connection, Row, insert, select, update

from contracts.errors import Forbidden, InvalidSettings, MissingScope, SessionOver, Unauthorized
from contracts.record_checks import MAX_NAME
from contracts.tables import api_key

Role = Literal["app", "operator"]
Scope = Literal["inference", "feedback", "operator:read", "operator:write"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
ROLE_SCOPES: Mapping[Role, frozenset[Scope]] = MappingProxyType(
    {"app": frozenset(("inference", "feedback")), "operator": frozenset(SCOPES)}
)
"""The scopes that a role allows, which are also the default of a new key."""
_PARTS, _ID_BYTES, _SECRET_BYTES = 4, 6, 24
_NEW_TEXT = re.compile(rf"mr-[a-z]+-[0-9a-f]{{{2 * _ID_BYTES}}}-[0-9a-f]{{{2 * _SECRET_BYTES}}}")


class Owner(NamedTuple):
    """To whom something that is kept belongs: a session of a tenant, or, with `session` None, the tenant's apps."""

    tenant: str
    session: str | None = None


class Caller(NamedTuple):
    """Who makes a request. `expires_at`: UTC epoch seconds; None: never. The last four fields are those of a session's key or URL."""

    key_id: str
    role: Role
    tenant: str
    scopes: frozenset[Scope]
    expires_at: float | None = None
    session: str | None = None
    task: str | None = None
    group: str | None = None
    session_until: float | None = None

    def may_read(self, owner: Owner) -> bool:
        """Whether this caller may see what belongs to `owner`: an app all of its tenant, a session only its own."""
        return owner.tenant == self.tenant and self.session in {None, owner.session}

    def check_time(self, now: float) -> None:
        """Raises Unauthorized if the key has expired, and SessionOver if the time of the session is over."""
        if self.expires_at is not None and self.expires_at <= now:
            raise Unauthorized(f"the key {self.key_id} has expired; make another with: millrace keys api new")
        if self.session_until is not None and self.session_until <= now:
            raise SessionOver("the time of this session is over; POST /v1/sessions makes another")

    def require(self, scope: Scope) -> None:
        """Raises MissingScope unless the key has this scope."""
        if scope not in self.scopes:
            role = "app" if scope in ROLE_SCOPES["app"] else "operator"
            raise MissingScope(
                f"this needs a key with the scope {scope}, and {self.key_id} has {' '.join(sorted(self.scopes))}; "
                f"make one with: millrace keys api new --role {role} --scopes {scope}",
                scope=scope,
                key=self.key_id,
            )

    def require_operator(self) -> None:
        """Raises Forbidden unless the caller is an operator."""
        if self.role != "operator":
            raise Forbidden("this needs an operator key; `millrace keys api new --role operator` makes one")


class NewKey(NamedTuple):
    """Properties of a key to make. `scopes` None: all of the role; `expires_at`: UTC epoch seconds, None: never."""

    role: Role
    tenant: str = "default"
    scopes: frozenset[Scope] | None = None
    expires_at: float | None = None
    name: str = ""

    def check(self, now: float) -> None:
        """Raises InvalidSettings if no key can have these properties."""
        if self.role not in ROLE_SCOPES:
            raise InvalidSettings(f"--role is app or operator, not {self.role!r}")
        for option, text, least in (("--tenant", self.tenant, 1), ("--name", self.name, 0)):
            if not least <= len(text) <= MAX_NAME or not (text.isprintable() or not text):
                raise InvalidSettings(f"{option} takes {least} to {MAX_NAME} printable characters, not {len(text)}")
        allowed = ", ".join(sorted(ROLE_SCOPES[self.role]))
        if self.scopes is not None and not self.scopes:
            raise InvalidSettings(f"--scopes is empty; choose from {allowed}")
        if excess := sorted((self.scopes or frozenset()) - ROLE_SCOPES[self.role]):
            raise InvalidSettings(
                f"a key of the role {self.role} cannot have {', '.join(excess)}; it can have {allowed}"
            )
        if self.expires_at is not None and self.expires_at <= now:
            raise InvalidSettings("--expires lies in the past, so the key would never work; choose a later time")


def create_key(connection: Connection, role: Role, tenant: str = "default") -> str:
    """Make a key with all scopes of its role. The returned text is the only copy of the secret."""
    return make_key(connection, NewKey(role, tenant))


def make_key(connection: Connection, wanted: NewKey) -> str:
    """Make a key. The returned text is the only copy of the secret. Raises InvalidSettings: see `NewKey.check`."""
    wanted.check(time.time())
    text = new_text(wanted.role)
    _store(connection, wanted, text)
    return text


def new_text(role: Role) -> str:
    """The text of a new key, which no database knows yet: see `register_key`."""
    return f"mr-{role}-{secrets.token_hex(_ID_BYTES)}-{secrets.token_hex(_SECRET_BYTES)}"


def register_key(connection: Connection, text: str, role: Role, where: str) -> None:
    """Make a key whose text was chosen elsewhere, unless it is there already. Raises InvalidSettings, which names `where`."""
    parts = text.split("-")
    if not _NEW_TEXT.fullmatch(text) or parts[1] != role:
        raise InvalidSettings(f"{where} has no {role} key (mr-{role}-ID-SECRET); `millrace keys secrets` makes one")
    row = _row(connection, parts[2])
    if row is None:
        _store(connection, NewKey(role), text)
    elif (
        not hmac.compare_digest(row.secret_hash, digest_of(parts[3])) or row.role != role or row.revoked_at is not None
    ):
        raise InvalidSettings(
            f"{where} has a key whose id {parts[2]} the database knows as another or as revoked; give a new one: "
            "`millrace keys secrets` makes one"
        )


def _store(connection: Connection, wanted: NewKey, text: str) -> None:
    _, _, key_id, secret = text.split("-")
    scopes = ROLE_SCOPES[wanted.role] if wanted.scopes is None else wanted.scopes
    values = {"id": key_id, "secret_hash": digest_of(secret), "role": wanted.role, "tenant": wanted.tenant}
    values |= {"scopes": " ".join(sorted(scopes)), "name": wanted.name}
    connection.execute(insert(api_key).values(**values, created_at=time.time(), expires_at=wanted.expires_at))


def check_key(connection: Connection, authorization: str | None, now: float | None = None) -> Caller:
    """The caller of an `Authorization: Bearer ...` header. Raises Unauthorized: the key is missing, unknown or over."""
    scheme, _, text = (authorization or "").partition(" ")
    parts = text.strip().split("-")
    if scheme.lower() != "bearer" or len(parts) != _PARTS or parts[0] != "mr" or not parts[2].isalnum():
        raise Unauthorized("send your Millrace key as `Authorization: Bearer mr-...`; `millrace up` printed it")
    row = _row(connection, parts[2])
    if row is None or not hmac.compare_digest(row.secret_hash, digest_of(parts[3])):
        raise Unauthorized("this key is not known here; `millrace up` printed the key of this home")
    return caller_of(row, time.time() if now is None else now)


def find_key(connection: Connection, key_id: str, now: float) -> Caller:
    """The caller of a key id, for sessions that were started with the key. Raises Unauthorized: it is gone, revoked or expired."""
    if (row := _row(connection, key_id)) is None:
        raise Unauthorized("the key of this session was deleted; sign in with another")
    return caller_of(row, now)


def caller_of(row: Row[Any], now: float) -> Caller:
    """The caller of a key's row. Raises Unauthorized if the key was revoked or has expired."""
    if row.revoked_at is not None:
        raise Unauthorized(f"the key {row.id} was revoked; make another with: millrace keys api new")
    # A row that was edited by hand still allows no more than its role.
    scopes = frozenset(row.scopes.split()) & ROLE_SCOPES.get(row.role, frozenset())
    caller = Caller(row.id, row.role, row.tenant, scopes, row.expires_at)
    caller.check_time(now)
    return caller


def list_keys(connection: Connection) -> list[Row[Any]]:
    """All keys ever made, oldest first, without the hashes of their secrets."""
    columns = [column for column in api_key.c if column.name != "secret_hash"]
    return list(connection.execute(select(*columns).order_by(api_key.c.created_at, api_key.c.id)))


def revoke_keys(connection: Connection, key_ids: Collection[str], now: float) -> list[str]:
    """Revoke keys; returns the ids that were valid until now. The rows stay, because records refer to them."""
    statement = update(api_key).where(api_key.c.id.in_(key_ids), api_key.c.revoked_at.is_(None)).values(revoked_at=now)
    return sorted(connection.execute(statement.returning(api_key.c.id)).scalars())


def _row(connection: Connection, key_id: str) -> Row[Any] | None:
    return connection.execute(select(api_key).where(api_key.c.id == key_id)).one_or_none()


def digest_of(secret: str) -> str:
    """What is stored of a secret. Its 192 random bits need no slow hash, and this runs for every request."""
    return hashlib.sha256(secret.encode()).hexdigest()
