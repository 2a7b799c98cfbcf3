"""Signals about one answer: more than count toward its reward in a window are refused at the door."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from contracts.errors import RateLimited, Unavailable
from contracts.ids import new_completion_id
from contracts.records import Signal, Submitter
from services.feedback.repository import ItemResult
from services.feedback.requests import ReceivedItem, TargetKey
from services.feedback.targets import (
    MOST_KEPT,
    MOST_OF_ANSWER,
    MOST_OF_KEY,
    MOST_OF_SUBMITTER,
    WINDOW_SECONDS,
    TargetLimit,
)
from services.feedback.writer import Submission, Writer
from tests.unit.services.feedback.conftest import Feedback

ANSWER = new_completion_id()


class Times:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def said(
    submitter: str, number: int, about: str = ANSWER, tenant: str = "default", key: TargetKey | None = None
) -> ReceivedItem:
    signal = Signal(
        id=f"{submitter}-{number}", completion_id="" if key else about, choice=0, name="accepted", value=True, at=0.0, received_at=0.0,
        tenant=tenant, submitter=Submitter(id=submitter),
    )  # fmt: skip
    return ReceivedItem(signal, "hash", key)


def taken(limit: TargetLimit, items: Iterable[ReceivedItem]) -> int:
    return sum(limit.refusal(item) is None for item in items)


def flood(num: int = 2000, submitter: str = "", **changes: Any) -> list[ReceivedItem]:
    return [said(submitter or f"user-{number}", number, **changes) for number in range(num)]


def test_one_submitter_leaves_room_for_others_and_everybody_for_other_answers() -> None:
    limit = TargetLimit(Times())
    assert taken(limit, flood(submitter="loud")) == MOST_OF_SUBMITTER
    assert taken(limit, [said("quiet", 0)]) == 1
    assert taken(limit, flood()) == MOST_OF_ANSWER - MOST_OF_SUBMITTER - 1
    assert taken(limit, [said("late", 0), said("loud", 9999)]) == 0
    assert taken(limit, [said("loud", 9999, new_completion_id()), said("late", 0, tenant="other")]) == 2


@pytest.mark.parametrize(("key", "kind"), [(TargetKey("session", "s"), "session"), (TargetKey("key", "s"), "join key")])
def test_a_key_means_another_answer_with_each_turn_and_has_more_room(key: TargetKey, kind: str) -> None:
    limit = TargetLimit(Times())
    assert taken(limit, flood(submitter="anonymous", key=key)) == MOST_OF_KEY
    refusal = limit.refusal(said("late", 0, key=key))
    assert refusal is not None
    assert f"1024 signals about this {kind}" in refusal.message


def test_a_window_ends_and_the_refusal_says_when() -> None:
    limit = TargetLimit(times := Times())
    assert taken(limit, flood(submitter="loud")) == MOST_OF_SUBMITTER
    times.now = WINDOW_SECONDS - 90.0
    refusal = limit.refusal(said("loud", 9999))
    assert isinstance(refusal, RateLimited)
    assert refusal.headers["retry-after"] == "90"
    assert "64 signals from this submitter" in refusal.message
    times.now = WINDOW_SECONDS
    assert taken(limit, flood(submitter="loud")) == MOST_OF_SUBMITTER
    assert limit.num_kept == MOST_OF_SUBMITTER


def test_what_was_taken_in_passes_again_and_what_was_not_stored_leaves_its_place() -> None:
    limit = TargetLimit(Times())
    first = flood(MOST_OF_SUBMITTER, submitter="app")
    assert taken(limit, first) == taken(limit, first) == MOST_OF_SUBMITTER
    for _ in range(3):
        assert taken(limit, first) == MOST_OF_SUBMITTER
        limit.give_back(first)
        assert limit.num_kept == 0


def test_memory_is_bounded() -> None:
    limit = TargetLimit(Times())
    assert taken(limit, (said("u", 0, f"chatcmpl-{number}") for number in range(MOST_KEPT + 1000))) == MOST_KEPT + 1000
    assert limit.num_kept == MOST_KEPT


def test_a_flood_is_refused_item_by_item_and_what_is_acknowledged_is_stored(feedback: Feedback) -> None:
    items = [feedback.item(id=f"s{number}", submitter={"id": f"u{number}"}) for number in range(MOST_OF_ANSWER + 44)]
    for _ in range(2):
        answer = feedback.call("POST", "/batch", json={"items": items}).json()
        assert (len(answer["successes"]), len(answer["errors"])) == (MOST_OF_ANSWER, 44)
        errors = {(error["status"], error["error"]["code"]) for error in answer["errors"]}
        assert errors == {(429, "rate_limit_exceeded")}
        assert feedback.num_received() == MOST_OF_ANSWER
    refused = feedback.send(id="one more")
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(refused.headers["retry-after"]) > 0
    other = feedback.send(id="about another", completion_id=new_completion_id())
    assert other.status_code == 202


def test_tries_while_the_database_is_away_take_no_place(feedback: Feedback, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:

        async def away(_writer: Writer, _submission: Submission) -> list[ItemResult]:
            raise Unavailable("the database cannot be reached")

        patch.setattr(Writer, "submit", away)
        tries = {feedback.send(id=f"try {number}").status_code for number in range(MOST_OF_SUBMITTER + 1)}
        assert tries == {503}
    assert feedback.send(id="try 0").status_code == 202
