"""Every move is told once and again until it is accepted: a real server, a real library that verifies, and real kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from standardwebhooks import Webhook

from contracts import holds
from contracts.assignments import CANARY, LIVE
from contracts.tables import train, webhook_delivery
from pipelines.release.webhooks import repository
from pipelines.release.webhooks.messages import make_test_event
from pipelines.release.webhooks.sending import SignedUrl, make_client, send
from pipelines.release.webhooks.teller import WebhookTeller, pause_before
from runtime.database import Database
from tests.worlds.release.arms import point
from tests.worlds.release.receiver import SECRET_TEXT, WebhookReceiver, receiving

POLICY, RUN = "p", "r"
HOUR = 3600.0


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with receiving() as found:
        yield found


@pytest.fixture
def clock() -> Clock:
    return Clock()


def move(database: Database, arm: str, version: int | None, share: float = 1.0, reason: str = "because") -> None:
    point(database, POLICY, arm, version, share=share, reason=reason, run=RUN)


def make_teller(database: Database, receiver: WebhookReceiver, clock: Clock) -> WebhookTeller:
    return WebhookTeller(database, policy=POLICY, run=RUN, to=receiver.to, client=make_client(), clock=clock)


def known(database: Database, receiver: WebhookReceiver, clock: Clock) -> WebhookTeller:
    """A teller whose URL was configured before anything happened."""
    teller = make_teller(database, receiver, clock)
    assert teller.look(threading.Event()) == 0
    return teller


def look(teller: WebhookTeller) -> int:
    return teller.look(threading.Event())


def verified(receiver: WebhookReceiver) -> list[Any]:
    return [Webhook(SECRET_TEXT).verify(post.body, post.headers) for post in receiver.posts]


def rows(database: Database) -> list[Any]:
    with database.snapshot() as connection:
        return [row for row in connection.execute(select(webhook_delivery)) if row.content]


def test_moves_holds_and_ends_of_trains_are_told_and_verify(
    database: Database, receiver: WebhookReceiver, clock: Clock
) -> None:
    teller = known(database, receiver, clock)
    move(database, LIVE, 5)
    move(database, CANARY, 6, 0.01)
    move(database, CANARY, 6, 0.05, "stage 2")
    with database.transaction() as connection:
        holds.freeze(connection, policy=POLICY, until=None, writer="ann", reason="the launch")
        ended = {"started_at": 1.0, "stage_at": 1.0, "ended_at": time.time(), "reason": "worse", "settings": {}}
        values = {"policy": POLICY, "version": 6, "blessed": 5, "state": "revoked", "stage": 1, "epoch": 3, **ended}
        connection.execute(train.insert().values(**values, evidence={"says": "reward fell by 5 points"}))
        running = {**values, "ended_at": None, "state": "canary", "version": 7, "evidence": {}}
        connection.execute(train.insert().values(**running))
    assert look(teller) == 5
    assert look(teller) == 0
    told = verified(receiver)
    assert sorted(item["type"] for item in told) == ["arm.moved"] * 3 + ["hold.changed", "train.ended"]
    grown = next(item["data"] for item in told if item["data"].get("share") == 0.05)
    assert grown == {
        "policy": POLICY,
        "run": RUN,
        "arm": CANARY,
        "epoch": 2,
        "version": 6,
        "share": 0.05,
        "previous_version": 6,
        "previous_share": 0.01,
        "writer": "ann",
        "reason": "stage 2",
    }
    first = next(item["data"] for item in told if item["data"].get("arm") == LIVE)
    assert (first["previous_version"], first["previous_share"]) == (None, None)
    hold = next(item["data"] for item in told if item["type"] == "hold.changed")
    assert (hold["kind"], hold["until"], hold["reason"], hold["epoch"]) == ("freeze", None, "the launch", 1)
    assert [item["timestamp"] for item in told] == sorted(item["timestamp"] for item in told)
    end = next(item["data"] for item in told if item["type"] == "train.ended")
    assert (end["version"], end["state"], end["says"]) == (6, "revoked", "reward fell by 5 points")
    with database.transaction() as connection:
        connection.execute(update(train).where(train.c.version == 7).values(ended_at=time.time(), state="shipped"))
    assert look(teller) == 1
    assert len({post.id for post in receiver.posts}) == 6
    assert all(post.headers["content-type"] == "application/json" for post in receiver.posts)


def test_a_new_url_is_not_told_of_the_past(database: Database, receiver: WebhookReceiver, clock: Clock) -> None:
    move(database, LIVE, 5)
    time.sleep(0.01)
    teller = known(database, receiver, clock)
    assert look(teller) == 0
    move(database, LIVE, 6)
    assert look(teller) == 1
    assert look(make_teller(database, receiver, clock)) == 0
    assert [item["data"]["version"] for item in verified(receiver)] == [6]


@pytest.mark.parametrize("status", [429, 500, 503, 404, 302])
def test_it_is_sent_again_after_growing_pauses_with_the_same_id(
    database: Database, receiver: WebhookReceiver, clock: Clock, status: int
) -> None:
    teller = known(database, receiver, clock)
    receiver.statuses = [status] * 3
    receiver.headers = {"location": "http://127.0.0.1:1/"} if status == 302 else {}
    move(database, LIVE, 5)
    assert look(teller) == 1
    assert look(teller) == 0
    [row] = rows(database)
    assert row.problem.startswith(str(status))
    pauses = []
    for _ in range(3):
        pauses.append(row.next_at - clock())
        clock.ahead += pauses[-1] + 0.5
        assert look(teller) == 1
        [row] = rows(database)
    assert pauses == sorted(pauses)
    assert pauses[0] == pytest.approx(5.0, abs=1.5)
    assert pauses[2] == pytest.approx(45.0, abs=10.0)
    assert (row.num_tries, row.problem) == (4, "")
    assert row.delivered_at is not None
    assert len({post.id for post in receiver.posts}) == 1
    times = [int(post.headers["webhook-timestamp"]) for post in receiver.posts]
    assert times == sorted(set(times))


def test_a_receiver_that_asks_to_wait_is_left_alone(
    database: Database, receiver: WebhookReceiver, clock: Clock
) -> None:
    teller = known(database, receiver, clock)
    receiver.statuses, receiver.headers = [429], {"retry-after": "600"}
    move(database, LIVE, 5)
    look(teller)
    assert rows(database)[0].next_at - clock() == pytest.approx(600.0, abs=5.0)


def test_a_url_where_nobody_listens_blocks_nothing(database: Database, receiver: WebhookReceiver, clock: Clock) -> None:
    teller = known(database, receiver, clock)
    away = WebhookReceiver(1)
    other = known(database, away, clock)
    move(database, LIVE, 5)
    assert look(other) == 1
    assert look(teller) == 1
    assert [row.problem.partition(":")[0] for row in rows(database) if row.url == away.url] == ["ConnectError"]
    with database.snapshot() as connection:
        assert repository.count_waiting(connection, POLICY, [receiver.url, away.url], clock()).num == 1


@pytest.mark.slow
def test_after_a_day_a_message_is_given_up(database: Database, receiver: WebhookReceiver, clock: Clock) -> None:
    teller = known(database, receiver, clock)
    receiver.then = 500
    move(database, LIVE, 5)
    num = 0
    while clock.ahead < 25 * HOUR:
        num += look(teller)
        clock.ahead += HOUR / 4
    assert 20 < num < 35
    receiver.then = 204
    assert look(teller) == 0
    with database.snapshot() as connection:
        assert repository.count_waiting(connection, POLICY, [receiver.url], clock()).num == 0


def test_a_receiver_that_is_gone_is_told_nothing_until_it_is_back(
    database: Database, receiver: WebhookReceiver, clock: Clock
) -> None:
    teller = known(database, receiver, clock)
    receiver.statuses = [410]
    move(database, LIVE, 5)
    move(database, CANARY, 6)
    assert look(teller) == 1
    clock.ahead += HOUR
    assert look(teller) == 0
    assert look(make_teller(database, receiver, clock)) == 0
    with database.snapshot() as connection:
        assert repository.count_waiting(connection, POLICY, [receiver.url], clock()).num == 0
    with database.transaction() as connection:
        repository.set_receiver_problem(connection, POLICY, receiver.url, "")
    assert look(teller) == 2
    assert len({post.id for post in receiver.posts}) == 2


def test_old_rows_are_forgotten_and_never_come_back(
    database: Database, receiver: WebhookReceiver, clock: Clock
) -> None:
    teller = known(database, receiver, clock)
    move(database, LIVE, 5)
    look(teller)
    clock.ahead += repository.KEPT_SECONDS + 60.0
    with database.transaction() as connection:
        repository.forget_old(connection, POLICY, [receiver.url], clock())
    assert rows(database) == []
    assert look(teller) == 0
    assert look(make_teller(database, receiver, clock)) == 0
    assert len(receiver.posts) == 1
    with database.transaction() as connection:
        repository.forget_old(connection, POLICY, [], clock())
        assert repository.receiver(connection, POLICY, receiver.url) is None


@pytest.mark.slow
def test_two_replicas_tell_each_move_once(database: Database, receiver: WebhookReceiver, clock: Clock) -> None:
    tellers = [known(database, receiver, clock), make_teller(database, receiver, clock)]
    for version in range(40):
        move(database, LIVE, version)
    threads = [threading.Thread(target=lambda teller=teller: [look(teller) for _ in range(3)]) for teller in tellers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(item["data"]["version"] for item in verified(receiver)) == list(range(40))
    assert len(rows(database)) == 40


CHILD = """
import sys, threading
from runtime.database import Database
from pipelines.release.webhooks.sending import SignedUrl, make_client
from pipelines.release.webhooks.teller import WebhookTeller
url, to = sys.argv[1:]
teller = WebhookTeller(Database(url), policy="p", run="r", to=SignedUrl(to, bytes(range(32)), may_be_private=True), client=make_client())
teller.tell(threading.Event())
"""


@pytest.mark.slow
def test_a_release_that_is_killed_in_the_middle_of_a_try_sends_it_again(
    database: Database, receiver: WebhookReceiver, clock: Clock
) -> None:
    known(database, receiver, clock)
    killed = threading.Event()
    receiver.wait = lambda: killed.wait(30.0)
    move(database, LIVE, 5)
    root = Path(__file__).parents[5]
    child = subprocess.Popen(  # noqa: S603 our own program
        [sys.executable, "-c", CHILD, database.url, receiver.url], env={**os.environ, "PYTHONPATH": str(root)}
    )
    try:
        receiver.wait_for(1, 60.0)
        child.send_signal(signal.SIGKILL)
    finally:
        child.kill()
        child.wait()
    killed.set()
    [row] = rows(database)
    assert (row.num_tries, row.delivered_at) == (1, None)
    teller = make_teller(database, receiver, clock)
    assert look(teller) == 0
    clock.ahead += 61.0
    assert look(teller) == 1
    first, second = receiver.posts
    assert (first.id, first.body) == (second.id, second.body)
    assert json.loads(second.body)["data"]["version"] == 5
    assert len(rows(database)) == 1


def test_a_database_that_is_away_ends_nothing(
    database: Database, receiver: WebhookReceiver, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    teller, stop, num = known(database, receiver, clock), threading.Event(), [0]

    def broken(*_: object) -> bool:
        num[0] += 1
        stop.set()
        raise RuntimeError("away")

    monkeypatch.setattr(teller, "_queue", broken)
    teller.tell(stop)
    assert num == [1]


def test_pauses_grow_to_an_hour() -> None:
    least = [min(pause_before(nth) for _ in range(200)) for nth in range(2, 12)]
    most = [max(pause_before(nth) for _ in range(200)) for nth in range(2, 12)]
    assert all(later > earlier for earlier, later in zip(most[:5], least[1:6], strict=True))
    assert (least[0] >= 4.0, most[0] <= 6.0, most[-1] <= 1.2 * HOUR) == (True, True, True)


def test_stops_of_a_train_are_told_once_each_also_after_a_restart(
    database: Database, receiver: WebhookReceiver, clock: Clock
) -> None:
    teller, now = known(database, receiver, clock), time.time()
    stops = [
        {"at": now, "state": "stopped", "stage": 1, "reason": "no engine holds v6", "epoch": 3},
        {"at": now + 0.1, "state": "canary", "stage": 1, "reason": "e holds v6", "epoch": 4},
    ]
    times: dict[str, Any] = {"started_at": 1.0, "stage_at": 1.0, "ended_at": None, "reason": "", "settings": {}}
    with database.transaction() as connection:
        values = {"policy": POLICY, "version": 6, "blessed": 5, "state": "stopped", "stage": 1, "epoch": 3, **times}
        connection.execute(train.insert().values(**values, evidence={"stops": stops[:1]}))
    assert look(teller) == 1
    assert look(teller) == 0
    with database.transaction() as connection:
        connection.execute(update(train).values(epoch=4, state="canary", evidence={"stops": stops}))
    assert look(make_teller(database, receiver, clock)) == 1
    assert [(item["type"], item["data"]["reason"]) for item in verified(receiver)] == [
        ("train.stopped", "no engine holds v6"),
        ("train.went_on", "e holds v6"),
    ]


def test_an_address_that_is_none_is_a_failure_like_others() -> None:
    with make_client() as client:
        tried = send(client, SignedUrl("http://a\x7f/", b"s"), make_test_event(POLICY), 0.0)
    assert tried.fate == "failed"
    assert tried.says.startswith("InvalidURL")
