"""The attacks on what is kept, each as a test; and that the search finds what there is to find."""

from __future__ import annotations

import random
import sqlite3
import zlib
from pathlib import Path

import pytest

from contracts.records import encode
from runtime.database import Database
from runtime.days import migrate
from tests.adversary.attacks import store
from tests.adversary.attacks.attack import Attack
from tests.fakes import a_generation, asking
from tests.worlds.traces import traces


@pytest.mark.parametrize("attack", store.attacks(), ids=lambda attack: attack.name)
@pytest.mark.slow
def test_nothing_gets_through(attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    weird = random.SystemRandom().sample(store.WEIRD, len(store.WEIRD) // 3)
    monkeypatch.setattr(store, "WEIRD", weird)
    assert attack.run() is None, weird


def test_a_text_is_found_wherever_it_stands(tmp_path: Path) -> None:
    assert traces(tmp_path, "canary") == []
    (tmp_path / "plain.log").write_text('{"said": "a canary"}')
    (tmp_path / "packed.bin").write_bytes(b"xx" + zlib.compress(b"a canary" * 9) + b"yy")
    (tmp_path / "record.bin").write_bytes(b"head" + encode(asking("a canary")))
    (tmp_path / "canary.txt").write_text("")
    with sqlite3.connect(tmp_path / "rows.db") as connection:
        connection.execute("CREATE TABLE said (wire BLOB)")
        # Longer than a page: its body does not stand in the file in one piece.
        noise = "".join(chr(33 + number * number % 90) for number in range(30_000))
        connection.execute("INSERT INTO said VALUES (?)", (encode(asking(f"{noise} canary")),))
    connection.close()
    found = {"the name of canary.txt", "packed.bin", "plain.log", "record.bin", "rows.db: said.wire"}
    assert found <= {*traces(tmp_path, "canary")} <= found | {"rows.db"}


def test_what_is_only_in_the_write_ahead_log_is_found(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'millrace.db'}")
    migrate(database)
    with sqlite3.connect(tmp_path / "millrace.db") as connection:
        wire = encode(a_generation("a canary"))
        connection.execute(
            "INSERT INTO outbox (process, topic, route, key, value) VALUES ('a', 'b', 0, 'c', ?)", (wire,)
        )
        connection.commit()
        assert any(found.startswith("millrace.db: outbox.value") for found in traces(tmp_path, "canary"))
    connection.close()
    database.close()
