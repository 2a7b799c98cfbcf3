"""Feedback of pages: what a receipt allows, what it decides, how often it counts, and from where it may come."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import delete, update

from contracts.arms import read_arm_secret
from contracts.errors import ReceiptInvalid
from contracts.ids import new_completion_id
from contracts.records import Submitter
from contracts.tables import home_secret
from runtime.database import Database
from runtime.days import migrate
from services.feedback.app import create_app
from services.feedback.pages import MOST_BYTES, SIGNALS_PER_MINUTE
from services.feedback.receipts import MOST_SIGNALS, Receipt, read_receipt, write_receipt
from services.feedback.repository import own_receipt_secret
from tests.adversary.attacks import receipts as forgeries
from tests.each_case import each_case
from tests.unit.services.feedback.conftest import APP, FullLog, Page
from tests.unit.services.serving import make_home, make_key, serve, wait_until

FOREIGN = "https://other.example"
SECRET = b"s" * 32


@pytest.fixture
def page(tmp_path: Path, database: Database, full_log: FullLog) -> Iterator[Page]:
    settings = make_home(tmp_path).model_copy(update={"feedback_origins": (APP,)})
    with serve(create_app(settings, event_log=full_log)) as url:
        yield Page(settings, database, full_log, url)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_a_page_says_without_a_key_what_its_receipt_allows_and_the_receipt_decides_the_rest(page: Page) -> None:
    receipt = page.receipt(choice=2, submitter="u7")
    answer = page.say(receipt, name="edited", value="so", id="mine", ago=-5)
    assert (answer.status_code, answer.json()["state"]) == (202, "accepted")
    assert answer.headers["access-control-allow-origin"] == APP
    wait_until(page.relayed)
    [sent] = page.relayed()
    assert (sent.tenant, sent.completion_id, sent.choice) == ("default", page.completion_id, 2)
    assert (sent.name, sent.value, sent.submitter) == ("edited", "so", Submitter(id="u7", kind="user"))
    assert page.call("GET", f"/{answer.json()['id']}").json()["state"] == "pending"
    assert sent.at == pytest.approx(sent.received_at, abs=0.5), "nothing happens after now"
    assert sent.at <= sent.received_at


def test_a_replay_counts_once_and_a_change_of_mind_counts(page: Page) -> None:
    receipt, again = page.receipt(), page.receipt(seconds=60)
    told = [
        page.say(receipt, id="a"),
        page.say(receipt, id="a", ago=30),
        page.say(again, id="a", origin=None),
        page.say(receipt, id="b", value=False),
        page.say(receipt),
        page.say(receipt),
    ]
    assert [answer.json()["state"] for answer in told] == [
        "accepted",
        *["duplicate"] * 2,
        *["accepted"] * 2,
        "duplicate",
    ]
    assert len({answer.json()["id"] for answer in told}) == page.num_received() == 3
    assert page.counts() == {"duplicate": 3}


def test_an_answer_takes_so_many_signals_from_pages_and_no_more(page: Page) -> None:
    told = [page.say(page.receipt(seconds=60 + place), id=str(place)) for place in range(MOST_SIGNALS + 1)]
    assert [answer.status_code for answer in told] == [202] * MOST_SIGNALS + [403]
    assert code(told[-1]) == (403, "receipt_over")
    assert page.say(page.receipt(), id="0").json()["state"] == "duplicate"
    assert page.say(page.receipt(submitter="another")).status_code == 202
    assert page.refusals() == {"receipt_over": 1}
    assert page.num_received() == MOST_SIGNALS + 1


def test_a_page_that_does_not_stop_is_told_when_to_go_on(page: Page) -> None:
    receipt = page.receipt()
    told = [page.say(receipt, id="a") for _ in range(SIGNALS_PER_MINUTE + 1)]
    assert code(told[-1]) == (429, "rate_limit_exceeded")
    assert int(told[-1].headers["retry-after"]) >= 1
    assert told[-1].headers["access-control-allow-origin"] == APP
    assert page.say(page.receipt(submitter="another")).status_code == 202


def test_what_happened_a_while_ago_is_dated_then_and_never_before_the_answer(page: Page) -> None:
    page.completion_id = new_completion_id()
    began = time.time()
    for ago in (0.25, 7e9, 10**400):
        page.say(page.receipt(), id=str(ago)[:9], ago=ago)
    wait_until(lambda: len(page.relayed()) == 3)
    a_moment, ages, eternity = sorted(page.relayed(), key=lambda sent: -sent.at)
    assert ages.at == eternity.at == pytest.approx(began, abs=0.1)
    assert ages.at <= a_moment.at <= a_moment.received_at


def test_a_genuine_receipt_that_is_refused_is_named_and_counted_and_nothing_is_stored(page: Page) -> None:
    receipt, expired = page.receipt(), page.sign(expires_at=int(time.time()) - 1)
    refused = {
        "receipt_over": page.say(expired),
        "origin_refused": page.say(receipt, origin=FOREIGN),
        "not_on_receipt": page.say(receipt, name="stars", value=3),
        "invalid_request": page.say(receipt, ago="long"),
        "invalid_value": page.say(page.receipt(signals=["stars"]), name="stars", value="many"),
    }
    assert {name: code(answer)[1] for name, answer in refused.items()} == {name: name for name in refused}
    assert [answer.status_code for answer in refused.values()] == [403, 403, 403, 400, 422]
    assert "access-control-allow-origin" not in refused["origin_refused"].headers
    assert FOREIGN in refused["origin_refused"].json()["error"]["message"]
    assert page.refusals() == dict.fromkeys(refused, 1)
    assert page.num_received() == page.num_waiting() == 0
    assert page.say(receipt, origin="null").status_code == 403


@each_case("field", ["completion_id", "choice", "session_id", "join_key", "submitter", "at", "correction", "colour"])
def test_a_page_chooses_nothing_that_the_receipt_decides(page: Page, field: str) -> None:
    answer = page.say(page.receipt(), **{field: "x"})
    assert (code(answer), answer.json()["error"]["param"]) == ((400, "invalid_request"), field)
    assert page.num_received() == 0


def test_what_no_server_wrote_is_refused_before_its_item_is_read(page: Page) -> None:
    receipt = page.receipt()
    for text in ("", receipt[:-1], "r1.e30.x", "\u0430" + receipt, receipt.swapcase()):
        assert code(page.say(text, colour=[])) == (401, "receipt_invalid")
    assert page.refusals() == {}, "anybody could fill the database with counts"
    without = httpx.post(f"{page.url}/v1/feedback", json={"name": "accepted", "value": True})
    assert code(without) == (401, "invalid_api_key")
    assert code(page.say(receipt, value="x" * MOST_BYTES)) == (413, "body_too_large")


@each_case(
    "wanted, status, param",
    [
        ({"signals": []}, 422, "signals"),
        ({"signals": ["colour"]}, 422, "signals"),
        ({"signals": ["accepted"] * 17}, 422, "signals"),
        ({"choice": 8}, 400, "choice"),
        ({"seconds": 0}, 400, "seconds"),
        ({"seconds": 7 * 86_400 + 1}, 400, "seconds"),
        ({"submitter": ""}, 400, "submitter"),
        ({"completion_id": "x"}, 400, "completion_id"),
        ({"completion_id": new_completion_id(stored=False)}, 422, "completion_id"),
    ],
)
def test_an_app_is_told_what_is_wrong_with_the_receipt_that_it_wants(
    page: Page, wanted: dict[str, Any], status: int, param: str
) -> None:
    answer = page.call(
        "POST", "/receipts", json={"completion_id": page.completion_id, "signals": ["accepted"]} | wanted
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


def test_a_receipt_belongs_to_its_tenant_and_needs_a_key(page: Page) -> None:
    theirs = make_key(page.database, tenant="other")
    asked = {"completion_id": page.completion_id, "signals": ["accepted"]}
    assert page.say(page.call("POST", "/receipts", key=theirs, json=asked).json()["receipt"]).status_code == 202
    wait_until(page.relayed)
    assert [sent.tenant for sent in page.relayed()] == ["other"]
    assert page.call("POST", "/receipts", key="none", json=asked).status_code == 401
    assert httpx.post(f"{page.url}/v1/feedback/receipts", json=asked).status_code == 401


def test_only_pages_of_named_sites_may_ask(page: Page) -> None:
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    known, foreign = (
        httpx.options(f"{page.url}/v1/feedback", headers=asks | {"origin": origin}) for origin in (APP, FOREIGN)
    )
    assert (known.status_code, known.headers["access-control-allow-origin"]) == (200, APP)
    assert (foreign.status_code, foreign.headers.get("access-control-allow-origin")) == (400, None)
    keyed = httpx.options(
        f"{page.url}/v1/feedback", headers=asks | {"origin": APP, "access-control-request-headers": "authorization"}
    )
    assert keyed.status_code == 400, "a key has no place in a page"


def test_without_its_secret_every_receipt_ends_at_the_next_start(page: Page, full_log: FullLog) -> None:
    receipt = page.receipt()
    ours = home_secret.c.name == "receipts"
    with page.database.transaction() as connection:
        connection.execute(delete(home_secret).where(ours))
    assert page.say(receipt).status_code == 202
    with serve(create_app(page.settings, event_log=full_log)) as page.url:
        assert code(page.say(receipt)) == (401, "receipt_invalid")
        assert page.say(page.receipt()).status_code == 202
    with page.database.transaction() as connection:
        connection.execute(update(home_secret).where(ours).values(value="no secret"))
    with serve(create_app(page.settings, event_log=full_log)) as page.url:
        assert code(page.say(receipt)) == (500, "invalid_settings")


def test_homes_and_uses_have_secrets_of_their_own_and_replicas_have_one(database: Database, tmp_path: Path) -> None:
    other = Database(f"sqlite:///{tmp_path / 'other.db'}")
    migrate(other)
    found = [own_receipt_secret(home) for home in (database, database, other)]
    with database.snapshot() as connection:
        assert len({*found, read_arm_secret(connection)}) == 3
    assert found[0] == found[1]
    assert [len(secret) for secret in found] == [32] * 3
    other.close()


def test_a_receipt_is_short_and_reads_as_it_was_written() -> None:
    receipt = Receipt("default", new_completion_id(), 0, ("accepted", "edited"), 1_790_000_000)
    text = write_receipt(receipt, SECRET)
    assert len(text) < 200
    assert read_receipt(text, SECRET) == receipt
    with pytest.raises(ReceiptInvalid):
        read_receipt(text, bytes(32))


def test_no_forgery_is_accepted() -> None:
    """A hundredth of those of `python -m tests.adversary.attacks receipts`."""
    assert forgeries.forge(forgeries.NUM_FORGERIES // 100) == (1000, [])
