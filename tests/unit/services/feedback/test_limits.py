from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.database import Database
from services.feedback.app import create_app
from tests.unit.services.feedback.conftest import Feedback, FullLog
from tests.unit.services.serving import make_home, serve


@pytest.fixture
def limited(tmp_path: Path, database: Database, full_log: FullLog) -> Iterator[Feedback]:
    """Four signals a minute."""
    settings = make_home(tmp_path).model_copy(update={"signals_per_minute": 4})
    with serve(create_app(settings, event_log=full_log)) as url:
        yield Feedback(settings, database, full_log, url)


def test_a_batch_counts_by_its_items_and_a_refused_one_stores_nothing(limited: Feedback) -> None:
    batch = limited.call("POST", "/batch", json={"items": [limited.item(id=f"b{n}") for n in range(3)]})
    assert batch.status_code == 207
    assert batch.headers["x-ratelimit-remaining-signals"] == "1"
    refused = limited.call("POST", "/batch", json={"items": [limited.item(id=f"c{n}") for n in range(2)]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(refused.headers["retry-after"]) >= 1
    assert limited.send(id="d").headers["x-ratelimit-remaining-signals"] == "0"
    assert limited.send(id="e").status_code == 429
    assert limited.num_received() == 4


def test_by_default_a_key_has_a_limit_that_no_product_of_one_app_meets(feedback: Feedback) -> None:
    sent = [feedback.send(id=f"s{n}") for n in range(5)]
    assert {answer.status_code for answer in sent} == {202}
    assert sent[0].headers["x-ratelimit-limit-signals"] == "30000"
