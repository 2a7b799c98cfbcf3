from __future__ import annotations

import pytest
from sqlalchemy import update

from contracts.errors import Forbidden, InvalidSettings, MissingScope, Unauthorized
from contracts.keys import (
    ROLE_SCOPES,
    SCOPES,
    Caller,
    NewKey,
    Role,
    Scope,
    check_key,
    create_key,
    find_key,
    list_keys,
    make_key,
    revoke_keys,
)
from contracts.tables import api_key
from runtime.database import Database

NOW = 4_000_000_000.0


def a_key(database: Database, wanted: NewKey) -> str:
    with database.transaction() as connection:
        return make_key(connection, wanted)


def check(database: Database, key: str, now: float = NOW) -> Caller:
    with database.snapshot() as connection:
        return check_key(connection, f"Bearer {key}", now)


def test_a_key_opens_its_own_tenant_and_role(database: Database) -> None:
    with database.transaction() as connection:
        key = create_key(connection, "app", "acme")
    caller = check(database, key)
    assert (caller.role, caller.tenant) == ("app", "acme")
    with pytest.raises(Forbidden, match="operator"):
        caller.require_operator()


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer sk-123", "Basic abc", "Bearer mr-app-000000000000-00"])
def test_anything_else_is_refused_and_says_what_to_do(database: Database, header: str | None) -> None:
    with database.snapshot() as connection, pytest.raises(Unauthorized, match="millrace up"):
        check_key(connection, header)


def test_a_right_id_with_a_wrong_secret_is_refused(database: Database) -> None:
    with database.transaction() as connection:
        key = create_key(connection, "operator")
        with pytest.raises(Unauthorized):
            check_key(connection, f"Bearer {key[:-1]}{'0' if key[-1] != '0' else '1'}")


def test_the_role_that_stands_in_a_key_says_nothing(database: Database) -> None:
    key = a_key(database, NewKey("app")).replace("mr-app-", "mr-operator-")
    assert check(database, key).role == "app"
    assert check(database, key).scopes == {"inference", "feedback"}


@pytest.mark.parametrize("role", ["app", "operator"])
def test_a_key_may_do_what_its_role_may_unless_it_was_made_with_less(database: Database, role: Role) -> None:
    assert check(database, a_key(database, NewKey(role))).scopes == ROLE_SCOPES[role]
    for scope in ROLE_SCOPES[role]:
        caller = check(database, a_key(database, NewKey(role, scopes=frozenset((scope,)))))
        assert caller.scopes == {scope}
        caller.require(scope)
        for other in set(SCOPES) - {scope}:
            says = rf"scope {other}, and {caller.key_id} has {scope}; .* --scopes {other}"
            with pytest.raises(MissingScope, match=says):
                caller.require(other)


def test_a_row_that_says_more_than_its_role_may_opens_no_more(database: Database) -> None:
    app, stranger = a_key(database, NewKey("app")), a_key(database, NewKey("app"))
    with database.transaction() as connection:
        connection.execute(update(api_key).values(scopes="inference operator:write root"))
        mine = api_key.c.id == stranger.split("-")[2]
        connection.execute(update(api_key).where(mine).values(role="root"))
    assert check(database, app).scopes == {"inference"}
    assert check(database, stranger).scopes == set()


def test_a_key_ends_when_it_expires(database: Database) -> None:
    key = a_key(database, NewKey("app", expires_at=NOW))
    assert check(database, key, NOW - 0.001).expires_at == NOW
    with pytest.raises(Unauthorized, match="has expired; make another"):
        check(database, key, NOW)
    with database.snapshot() as connection, pytest.raises(Unauthorized, match="has expired"):
        find_key(connection, key.split("-")[2], NOW)


def test_a_revoked_key_is_refused_and_its_row_stays(database: Database) -> None:
    key, other = (a_key(database, NewKey("app", name=name)) for name in ("shop", "till"))
    key_id = key.split("-")[2]
    with database.transaction() as connection:
        assert revoke_keys(connection, [key_id, "000000000000"], NOW) == [key_id]
        assert revoke_keys(connection, [key_id], NOW + 9) == []
        rows = {row.id: row for row in list_keys(connection)}
    assert rows[key_id].revoked_at == NOW
    assert rows[key_id].name == "shop"
    assert "secret_hash" not in rows[key_id]._fields
    with pytest.raises(Unauthorized, match="was revoked"):
        check(database, key)
    check(database, other)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (NewKey("root"), "--role is app or operator"),  # type: ignore[arg-type] # what people type
        (NewKey("app", ""), "--tenant takes 1 to 64"),
        (NewKey("app", "x" * 65), "--tenant takes 1 to 64"),
        (NewKey("app", "a\0b"), "printable"),
        (NewKey("app", "a\nb"), "printable"),
        (NewKey("app", name="x" * 65), "--name"),
        (NewKey("app", scopes=frozenset()), "--scopes is empty"),
        (NewKey("app", scopes=frozenset(("operator:read",))), "role app cannot have operator:read"),
        (NewKey("app", expires_at=1.0), "--expires lies in the past"),
    ],
)
def test_a_key_that_cannot_be_is_not_made(database: Database, wanted: NewKey, says: str) -> None:
    with database.transaction() as connection, pytest.raises(InvalidSettings, match=says):
        make_key(connection, wanted)
    with database.snapshot() as connection:
        assert list_keys(connection) == []


def test_scopes_of_a_caller_are_known_names() -> None:
    needed: Scope = "operator:write"
    with pytest.raises(MissingScope, match="--role operator --scopes operator:write"):
        Caller("id", "app", "acme", frozenset()).require(needed)
