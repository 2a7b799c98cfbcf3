"""The secret of the draw: each home has its own, it lasts, and one module alone reads it. So it is with that of receipts."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import delete

from contracts.arms import read_arm_secret
from contracts.errors import InvalidSettings
from contracts.tables import home_secret
from runtime import schema
from runtime.database import Database
from services.feedback.repository import read_receipt_secret

ROOT = Path(__file__).parents[3]


def test_each_home_has_a_secret_of_its_own_that_lasts(tmp_path: Path) -> None:
    found = []
    for name in ("one", "other"):
        opened = Database(f"sqlite:///{tmp_path / name}.db")
        with opened.transaction() as connection:
            schema.upgrade(connection)
            found.append(read_arm_secret(connection))
            assert read_receipt_secret(connection) != found[-1]
        with opened.transaction() as connection:
            schema.upgrade(connection)
            assert read_arm_secret(connection) == found[-1]
        opened.close()
    assert found[0] != found[1]
    assert [len(secret) for secret in found] == [32, 32]


def test_a_secret_that_was_deleted_is_an_error_that_says_what_to_do(database: Database) -> None:
    with database.transaction() as connection:
        connection.execute(delete(home_secret))
        with pytest.raises(InvalidSettings, match="restore it from a backup, or insert 64 random hex digits"):
            read_arm_secret(connection)


def test_no_other_module_reads_the_table_so_that_nothing_shows_it() -> None:
    folders = ("commands", "contracts", "engines", "pipelines", "rewards", "runtime", "services")
    named = {
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "home_secret" in path.read_text()
    }
    tables = {"contracts/tables/__init__.py", "contracts/tables/serving.py"}
    assert named == {"contracts/arms.py", "services/feedback/repository.py", *tables}
    readers = {
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "read_arm_secret" in path.read_text()
    }
    train = "pipelines/release/train"
    assert readers == {
        "contracts/arms.py",
        "services/inference/arms.py",
        f"{train}/learning_guard.py",
        f"{train}/reading/intake.py",
    }
