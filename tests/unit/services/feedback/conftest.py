from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from contracts.errors import Unavailable
from contracts.event_log import Message
from contracts.ids import new_completion_id
from contracts.ledger import rejection_counts, signal_counts
from contracts.records import Signal, decode
from contracts.tables import outbox, received_signal, signal_count
from contracts.topics import SIGNALS
from runtime.database import Database
from runtime.log.local import LocalLog
from runtime.settings import Settings
from services.feedback.app import create_app
from services.feedback.receipts import Receipt, write_receipt
from services.feedback.repository import read_receipt_secret
from tests.unit.services.serving import make_home, make_key, serve

APP = "https://app.example"


class FullLog(LocalLog):
    """A local log that takes nothing while `full` is set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.full = threading.Event()

    def append(self, messages: Sequence[Message]) -> None:
        if self.full.is_set():
            raise Unavailable("the log cannot be written (disk full); free disk space")
        super().append(messages)


class Feedback:
    """The real service over HTTP."""

    def __init__(self, settings: Settings, database: Database, log: LocalLog, url: str) -> None:
        self.settings = settings
        self.database = database
        self.log = log
        self.url = url
        self.key = make_key(database)
        self.completion_id = new_completion_id()

    def item(self, **changes: Any) -> dict[str, Any]:
        item = {"completion_id": self.completion_id, "name": "accepted", "value": True, "submitter": {"id": "u1"}}
        return {name: value for name, value in (item | changes).items() if value is not None}

    def send(self, **changes: Any) -> httpx.Response:
        return self.call("POST", "", json=self.item(**changes))

    def call(self, method: str, path: str, key: str | None = None, **content: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key or self.key}"}
        return httpx.request(method, f"{self.url}/v1/feedback{path}", headers=headers, timeout=10.0, **content)

    def relayed(self) -> list[Signal]:
        records = [r for place in range(self.log.num_partitions) for r in self.log.read(SIGNALS, place, 0, 1000)]
        return [decode(Signal, record.value) for record in records]

    def num_received(self) -> int:
        with self.database.snapshot() as connection:
            return connection.execute(select(func.count()).select_from(received_signal)).scalar_one()

    def num_waiting(self) -> int:
        with self.database.snapshot() as connection:
            return connection.execute(select(func.count()).select_from(outbox)).scalar_one()

    def counts(self) -> dict[str, int]:
        with self.database.snapshot() as connection:
            rows = connection.execute(select(signal_count.c.state, signal_count.c.count))
            return {row[0]: row[1] for row in rows}


class Page(Feedback):
    """A page whose server has the key."""

    def receipt(self, **wanted: Any) -> str:
        asked = {"completion_id": self.completion_id, "signals": ["accepted", "edited"]} | wanted
        answer = self.call("POST", "/receipts", json=asked)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["receipt"])

    def say(self, receipt: str, origin: str | None = APP, **said: Any) -> httpx.Response:
        """As a browser does: without a key, and as plain text, which asks nobody first."""
        headers = {"content-type": "text/plain"} | ({} if origin is None else {"origin": origin})
        item = {"receipt": receipt, "name": "accepted", "value": True} | said
        return httpx.post(f"{self.url}/v1/feedback", headers=headers, json=item, timeout=10)

    def refusals(self) -> dict[str, int]:
        with self.database.snapshot() as connection:
            assert signal_counts(connection).unexplained == 0
            return rejection_counts(connection)

    def sign(self, expires_at: int) -> str:
        """A receipt that the server did not check."""
        with self.database.snapshot() as connection:
            secret = read_receipt_secret(connection)
        return write_receipt(Receipt("default", self.completion_id, 0, ("accepted",), expires_at), secret)


@pytest.fixture
def full_log(tmp_path: Path) -> FullLog:
    return FullLog(tmp_path / "log")


@pytest.fixture
def feedback(tmp_path: Path, database: Database, full_log: FullLog) -> Iterator[Feedback]:
    settings = make_home(tmp_path)
    with serve(create_app(settings, event_log=full_log)) as url:
        yield Feedback(settings, database, full_log, url)
