from __future__ import annotations

import pytest

from contracts.database import Database
from contracts.errors import Forbidden, Unauthorized
from contracts.keys import check_key, create_key


def test_a_key_opens_its_own_tenant_and_role(database: Database) -> None:
    with database.transaction() as connection:
        key = create_key(connection, "app", "acme")
        caller = check_key(connection, f"Bearer {key}")
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
