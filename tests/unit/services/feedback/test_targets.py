"""Signals about one answer: more than count toward its reward in a window are refused at the door."""

from __future__ import annotations

from contracts.errors import RateLimited
from contracts.ids import new_completion_id
from contracts.records import Signal, Submitter
from services.feedback import targets
from services.feedback.requests import ReceivedItem, TargetKey
from services.feedback.targets import MOST_OF_SUBMITTER, MOST_OF_TARGET, WINDOW_SECONDS, TargetLimit
from tests.unit.services.feedback.conftest import Feedback

ANSWER = new_completion_id()


class Times:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def said(submitter: str, about: str = ANSWER, tenant: str = "default", key: TargetKey | None = None) -> ReceivedItem:
    signal = Signal(
        id=f"{submitter}-{about}", completion_id="" if key else about, choice=0, name="accepted", value=True, at=0.0, received_at=0.0,
        tenant=tenant, submitter=Submitter(id=submitter),
    )  # fmt: skip
    return ReceivedItem(signal, "hash", key)


def taken(limit: TargetLimit, *items: ReceivedItem) -> int:
    return sum(limit.refusal(item) is None for item in items)


def test_one_submitter_leaves_room_for_others_and_everybody_for_other_answers() -> None:
    limit = TargetLimit(Times())
    assert taken(limit, *[said("loud")] * 1000) == MOST_OF_SUBMITTER
    assert taken(limit, said("quiet")) == 1
    assert taken(limit, *(said(f"user-{number}") for number in range(1000))) == MOST_OF_TARGET - MOST_OF_SUBMITTER - 1
    assert taken(limit, said("late"), said("loud", new_completion_id()), said("late", tenant="other")) == 2
    for key in (TargetKey("session", "s"), TargetKey("key", "s")):
        assert taken(limit, *(said(f"user-{number}", key=key) for number in range(1000))) == MOST_OF_TARGET


def test_a_window_ends_and_the_refusal_says_when() -> None:
    limit = TargetLimit(times := Times())
    assert taken(limit, *[said("loud")] * MOST_OF_SUBMITTER) == MOST_OF_SUBMITTER
    times.now = WINDOW_SECONDS - 90.0
    refusal = limit.refusal(said("loud"))
    assert isinstance(refusal, RateLimited)
    assert refusal.headers["retry-after"] == "90"
    assert "64 signals from this submitter" in refusal.message
    times.now = WINDOW_SECONDS
    assert taken(limit, *[said("loud")] * 1000) == MOST_OF_SUBMITTER


def test_memory_is_bounded() -> None:
    limit = TargetLimit(Times())
    assert taken(limit, *(said("u", f"chatcmpl-{number}") for number in range(targets.MOST_KEPT))) == targets.MOST_KEPT
    assert limit.num_kept == targets.MOST_KEPT


def test_a_flood_is_refused_item_by_item_and_what_is_acknowledged_is_stored(feedback: Feedback) -> None:
    items = [feedback.item(id=f"s{number}", submitter={"id": f"u{number}"}) for number in range(MOST_OF_TARGET + 44)]
    answer = feedback.call("POST", "/batch", json={"items": items}).json()
    assert (len(answer["successes"]), len(answer["errors"])) == (MOST_OF_TARGET, 44)
    assert {(error["status"], error["error"]["code"]) for error in answer["errors"]} == {(429, "rate_limit_exceeded")}
    assert feedback.num_received() == MOST_OF_TARGET
    refused = feedback.send(id="one more")
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(refused.headers["retry-after"]) > 0
    other = feedback.send(id="about another", completion_id=new_completion_id())
    assert other.status_code == 202
