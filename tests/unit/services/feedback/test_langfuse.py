"""Langfuse's SDKs, from bodies as they were recorded: a list (5.0), a batch of events (4.18), one score (its API)."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from services.feedback.app import create_app
from services.openapi import routes_of
from services.web import FEEDBACK_PREFIXES
from tests.unit.services.feedback.conftest import Feedback
from tests.unit.services.serving import make_key, wait_until

ANSWER = "chatcmpl-01a2242d-2785-7a2b-bbf8-0c64ad6dc0ca"
TRACE = "0af7651916cd43dd8448eb211c80319c"
AT = 1_760_000_000.5
SCORE: dict[str, Any] = {
    "id": "234b53b256b0f73e",
    "traceId": ANSWER,
    "name": "accepted",
    "value": 1.0,
    "dataType": "BOOLEAN",
    "timestamp": "2025-10-09T08:53:20.500000Z",
}
UNKNOWN = "no task declares a signal 'helpfulness'; declared: accepted, edited, stars, thumbs"


def post(feedback: Feedback, path: str, content: Any, **more: Any) -> httpx.Response:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    url = f"{feedback.url}/api/public/{path}"
    return httpx.post(url, content=body, auth=("pk-any", more.get("key", feedback.key)), timeout=10.0)


def event(body: Any, kind: str = "score-create") -> dict[str, Any]:
    return {"id": "e1", "type": kind, "timestamp": "2025-10-09T08:53:21.500000Z", "body": body}


def facts(feedback: Feedback, num: int) -> list[tuple[Any, ...]]:
    wait_until(lambda: len(feedback.relayed()) == num)
    return sorted((said.name, said.value, said.completion_id, said.at) for said in feedback.relayed())


def test_a_list_of_scores_becomes_signals(feedback: Feedback) -> None:
    others = [
        {**SCORE, "name": "stars", "value": 4.5, "comment": "a bit long", "dataType": None},
        {**SCORE, "name": "thumbs", "value": "up", "dataType": "CATEGORICAL"},
        {**SCORE, "name": "output", "value": "At 19:30.", "dataType": "CORRECTION"},
        {**SCORE, "traceId": TRACE, "observationId": ANSWER},
    ]

    answer = post(feedback, "scores", [SCORE, *others])

    assert (answer.status_code, answer.json()) == (202, {"message": "Accepted"})
    said = [("accepted", True, ANSWER, AT), ("edited", "At 19:30.", ANSWER, AT), ("stars", 4.5, ANSWER, AT)]
    assert facts(feedback, 4) == [*said, ("thumbs", "up", ANSWER, AT)]  # the last names the same answer and score
    by_name = {signal.name: signal for signal in feedback.relayed()}
    assert by_name["stars"].comment == "a bit long"
    assert by_name["edited"].correction == "At 19:30."


def test_what_is_refused_is_named_and_the_rest_is_taken(feedback: Feedback) -> None:
    bad = [{**SCORE, "name": "helpfulness"}, {**SCORE, "name": "stars", "value": 11}, 7, {"value": 1}]

    answer = post(feedback, "scores", [*bad, SCORE])

    errors = [error["message"] for error in answer.json()["errors"]]
    assert (answer.status_code, answer.json()["accepted"], answer.json()["rejected"]) == (207, 1, 4)
    assert errors[:2] == [f"0: {UNKNOWN}", "1: the score 'stars' with the value 11 is refused: out_of_range"]
    assert errors[2:] == [f"{place}: a score is an object with `name` and `value`" for place in (2, 3)]
    assert feedback.counts() == {"rejected": 4}
    assert feedback.num_received() == 1


def test_events_of_a_batch_are_answered_one_by_one(feedback: Feedback) -> None:
    untimed = {name: SCORE[name] for name in ("id", "traceId", "name", "value")}
    batch = [event(untimed), event({**SCORE, "name": "helpfulness"}), event({"id": TRACE}, "trace-create")]

    answer = post(feedback, "ingestion", {"batch": batch, "metadata": {"batch_size": 3}})

    assert answer.status_code == 207
    assert answer.json()["successes"] == [{"id": "e1", "status": 201}, {"id": "e1", "status": 201}]
    assert answer.json()["errors"] == [{"id": "e1", "status": 422, "message": UNKNOWN, "error": "unknown_signal"}]
    assert facts(feedback, 1) == [("accepted", True, ANSWER, AT + 1)]


def test_a_batch_that_is_sent_again_counts_once_without_ids_of_its_scores_too(feedback: Feedback) -> None:
    batch = {"batch": [event({**SCORE, "id": None})]}

    assert [post(feedback, "ingestion", batch).status_code for _ in range(2)] == [207, 207]
    assert (feedback.num_received(), feedback.counts()) == (1, {"duplicate": 1})


def test_a_trace_is_the_join_key_of_its_request(feedback: Feedback) -> None:
    answer = post(feedback, "scores", {**SCORE, "traceId": TRACE, "observationId": "b7ad6b7169203331"})

    assert (answer.status_code, answer.json()) == (200, {"id": SCORE["id"]})
    assert feedback.num_received() == 1
    assert feedback.relayed() == []  # it waits for the answer whose request has this key


def test_the_same_score_again_is_one_signal_and_another_value_a_new_word(feedback: Feedback) -> None:
    later = {**SCORE, "value": 0.0, "timestamp": "2025-10-09T08:53:30Z"}

    answers = [post(feedback, "scores", [score]) for score in (SCORE, SCORE, later, later)]

    assert {answer.status_code for answer in answers} == {202}
    assert feedback.num_received() == 2
    assert feedback.counts() == {"duplicate": 2}
    assert [fact[1] for fact in facts(feedback, 2)] == [False, True]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"timestamp": "2925-01-01T00:00:00Z"}, "more than 60 s ahead of this server's clock"),
        ({"timestamp": "soon"}, "malformed_time"),
        ({"timestamp": 0}, "impossible_time"),
        ({"name": "stars", "value": "many"}, "wrong_type"),
        ({"value": None}, "wrong_type"),
        ({"traceId": None}, "exactly one of completion_id"),
        ({"source": "ANNOTATION"}, "needs an operator's key"),
        ({"traceId": "chatcmpl-01a2242d-2785-8a2b-bbf8-0c64ad6dc0ca"}, "store=false"),
    ],
)
def test_bad_scores_are_refused_by_name(feedback: Feedback, change: dict[str, Any], says: str) -> None:
    answer = post(feedback, "scores", {**SCORE, **change})

    assert 400 <= answer.status_code < 500
    assert says in answer.json()["error"]["message"]
    assert feedback.counts() == {"rejected": 1}


@pytest.mark.parametrize("body", [b"", b'[{"id": "a', b"\xff", b"[" * 100_000], ids=["none", "cut", "no text", "deep"])
def test_bodies_that_are_no_json_are_counted(feedback: Feedback, body: bytes) -> None:
    answers = [post(feedback, path, body) for path in ("scores", "ingestion")]

    assert [answer.status_code for answer in answers] == [400, 400]
    assert feedback.counts() == {"rejected": 2}


def test_shapes_that_are_no_batch_and_too_many_scores_are_refused(feedback: Feedback) -> None:
    shapes: list[Any] = [[], {}, {"batch": [1]}, {"batch": "x"}]
    answers = [post(feedback, "ingestion", content) for content in shapes]

    assert {answer.status_code for answer in answers} == {400}
    assert post(feedback, "scores", [SCORE] * 1001).json()["error"]["message"].startswith("a batch takes up to 1000")
    assert feedback.num_received() == 0


def test_the_secret_key_is_checked_and_its_tenant_shown(feedback: Feedback) -> None:
    url = f"{feedback.url}/api/public/projects"
    wrong = [httpx.get(url, auth=("pk-any", "sk-lf-x")), httpx.get(url, headers={"authorization": "Basic %"})]
    key = make_key(feedback.database, tenant="acme")

    assert [answer.status_code for answer in wrong] == [401, 401]
    assert [it["id"] for it in httpx.get(url, auth=("", key)).json()["data"]] == ["acme"]


def test_every_route_of_feedback_is_reached_through_web(feedback: Feedback) -> None:
    service = create_app(feedback.settings, event_log=feedback.log)
    assert [route.path for route in routes_of(service) if not route.path.startswith(FEEDBACK_PREFIXES)] == []
