"""OTLP over HTTP, from bodies that OpenTelemetry's exporters for Python wrote, and the same in JSON."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from runtime.database import Database
from services.feedback.app import create_app
from tests.unit.services.feedback.conftest import Feedback, FullLog
from tests.unit.services.serving import make_home, serve, wait_until

ANSWER = "chatcmpl-01a2242d-2785-7a2b-bbf8-0c64ad6dc0ca"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
AT = 1_760_000_000
SPANS = base64.b64decode(
    "H4sIAGZPC2sC/+O6xcIlziXKxVOcWlSWmZyql5eYmyrEysWcWFAgtI+FC8rawsIlwPU9VVLsrPPdFo/XijINhnOEOLavzS7MVDA21GJLzkgsUcg1YLRkYNhwZc2x"
    "HAlHhlNeAmuBDC95LtH01Lz4xEy9/ILUosSSzPw8iCVsXCwgbV6uXEJQBUWpxQX5ecWpepkpQvpcuiDZ5NyCHF0Dw0QjIxOjFF0jcwtTXfNEoyTdpKQ0C12DZDOT"
    "xBSzlGSD5MSoUk6YlUISUPNSyxJzSiE2Ao0uzSmRUuESw5QDu4aLiyMxOTm1oCQ1RUqLSxZTVXFyflGqHoifKsSpyAAGH+yjZjByMkx56k3AXiWc9nJwsZVklOYm"
    "FUup4rY1JzEpNUeIhYuptEBKA5uy1IqCnMQ8MFuInYs1OSc1sSiqghiXqeN0GS8Xd0ZqTkFaaU5eanExKYFSxdDKyMDIwAAA9JyONV0CAAA="
)
"""A span about ANSWER with three evaluations, gzip: accepted 1.0, thumbs up, helpfulness 1.0."""
SPANS_WITHOUT = base64.b64decode(
    "H4sIAGZPC2sC/+NK5xLnEuXiKU4tKstMTtXLS8xNFWLlYk4sKBDy4YIynLkEuL6nSoqddb7b4vFaUabBcI4Qx/a12YWZCsaGWpxFqSVFmalliTkGjJYMDBuurDmWI+HI"
    "cMpLYC2QUcXQysjAyMAAABb7mDJpAAAA"
)
LOGS = base64.b64decode(
    "CuoBChcKFQoMc2VydmljZS5uYW1lEgUKA2FwcBLOAQoFCgNhcHASxAEJAACw1KzGbBgqADIhChZnZW5fYWkuZXZhbHVhdGlvbi5uYW1lEgcKBXN0YXJzMioKHWdlbl9h"
    "aS5ldmFsdWF0aW9uLnNjb3JlLnZhbHVlEgkhAAAAAAAAEEAyRQoSZ2VuX2FpLnJlc3BvbnNlLmlkEi8KLWNoYXRjbXBsLTAxYTIyNDJkLTI3ODUtN2EyYi1iYmY4LTBj"
    "NjRhZDZkYzBjYVkAALDUrMZsGGIYZ2VuX2FpLmV2YWx1YXRpb24ucmVzdWx0"
)
"""A record about ANSWER: stars 4.0, plain."""
REFUSED = "no task declares a signal 'helpfulness'; declared: accepted, edited, stars, thumbs"
PROTOBUF = "application/x-protobuf"


def post(
    feedback: Feedback, body: bytes, path: str = "v1/traces", media: str = PROTOBUF, packed: str = ""
) -> httpx.Response:
    headers = {"authorization": f"Bearer {feedback.key}", "content-type": media}
    headers |= {"content-encoding": packed} if packed else {}
    return httpx.post(f"{feedback.url}/{path}", content=body, headers=headers, timeout=10.0)


def attributes(**given: Any) -> list[dict[str, Any]]:
    kinds = {str: "stringValue", float: "doubleValue", int: "intValue"}
    return [{"key": f"gen_ai.{key.replace('__', '.')}", "value": {kinds[type(it)]: it}} for key, it in given.items()]


def span(*events: dict[str, Any], **fields: Any) -> dict[str, Any]:
    one = {"traceId": TRACE, "spanId": SPAN, "name": "chat m", "events": events, **fields}
    return {"resourceSpans": [{"scopeSpans": [{"spans": [one]}]}]}


def evaluation(at: Any = f"{AT + 1}000000000", **given: Any) -> dict[str, Any]:
    said = {"evaluation__name": "accepted", "evaluation__score__value": 1.0, **given}
    return {"name": "gen_ai.evaluation.result", "timeUnixNano": at, "attributes": attributes(**said)}


def facts(feedback: Feedback, num: int) -> list[tuple[Any, ...]]:
    wait_until(lambda: len(feedback.relayed()) == num)
    return sorted((said.name, said.value, said.completion_id, said.at, said.comment) for said in feedback.relayed())


SAID = [("accepted", True, ANSWER, AT + 1, None), ("thumbs", "up", ANSWER, AT + 2, "clear")]


@pytest.mark.parametrize("path", ["v1/traces", "api/public/otel/v1/traces"])
def test_events_of_spans_become_signals_once(feedback: Feedback, path: str) -> None:
    deflated = zlib.compress(gzip.decompress(SPANS))
    answers = [post(feedback, body, path, packed=packed) for body, packed in ((SPANS, "gzip"), (deflated, "deflate"))]

    assert [answer.status_code for answer in answers] == [200, 200]
    told = ExportTraceServiceResponse.FromString(answers[0].content).partial_success
    assert (told.rejected_spans, told.error_message) == (1, REFUSED)
    assert facts(feedback, 2) == SAID
    assert feedback.counts() == {"duplicate": 2, "rejected": 2}


def test_a_log_record_is_an_evaluation_too(feedback: Feedback) -> None:
    answer = post(feedback, LOGS, "v1/logs")

    assert (answer.status_code, answer.headers["content-type"]) == (200, PROTOBUF)
    assert not ExportLogsServiceResponse.FromString(answer.content).HasField("partial_success")
    assert facts(feedback, 1) == [("stars", 4.0, ANSWER, AT, None)]


def test_json_says_the_same(feedback: Feedback) -> None:
    content = span(
        evaluation(),
        evaluation(
            f"{AT + 2}000000000",
            evaluation__name="thumbs",
            evaluation__score__value="up",
            evaluation__explanation="clear",
        ),
        evaluation(evaluation__name="helpfulness"),
        attributes=attributes(response__id=ANSWER),
    )

    answer = post(feedback, json.dumps(content).encode(), media="application/json; charset=utf-8")

    assert answer.json() == {"partialSuccess": {"rejectedSpans": "1", "errorMessage": REFUSED}}
    assert facts(feedback, 2) == SAID


def test_an_evaluation_of_no_known_answer_is_about_its_trace(feedback: Feedback) -> None:
    answer = post(feedback, json.dumps(span(evaluation())).encode(), media="application/json")

    assert answer.json() == {}
    assert (feedback.num_received(), feedback.relayed()) == (1, [])


def test_spans_without_evaluations_are_named_and_not_kept(feedback: Feedback) -> None:
    told = ExportTraceServiceResponse.FromString(post(feedback, SPANS_WITHOUT, packed="gzip").content).partial_success
    assert (told.rejected_spans, told.error_message) == (0, "1 without gen_ai.evaluation.result are not kept")
    assert post(feedback, json.dumps(span()).encode(), media="application/json").json()["partialSuccess"]
    assert feedback.num_received() == 0


def test_requests_without_evaluations_or_scores_count_against_the_limit_too(
    tmp_path: Path, database: Database, full_log: FullLog
) -> None:
    settings = make_home(tmp_path).model_copy(update={"signals_per_minute": 2})
    with serve(create_app(settings, event_log=full_log)) as url:
        feedback = Feedback(settings, database, full_log, url)
        scoreless = (b'{"batch": []}', "api/public/ingestion", "application/json")
        answers = [post(feedback, SPANS_WITHOUT, packed="gzip"), *(post(feedback, *scoreless) for _ in range(2))]

    assert [answer.status_code for answer in answers] == [200, 207, 429]


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (evaluation("99999999999000000000"), "ahead of this server's clock"),
        (evaluation("-5"), "malformed_time"),
        (evaluation(evaluation__name="stars", evaluation__score__value=7.5), "out_of_range"),
        (evaluation(evaluation__name="thumbs", evaluation__score__value="sideways"), "unknown_label"),
        ({**evaluation(), "attributes": [{"key": "gen_ai.evaluation.name", "value": {"intValue": "x"}}]}, "malformed"),
        ({**evaluation(), "attributes": 7}, "malformed"),
    ],
)
def test_bad_evaluations_are_refused_by_name(feedback: Feedback, event: dict[str, Any], says: str) -> None:
    answer = post(feedback, json.dumps(span(event)).encode(), media="application/json")

    assert answer.status_code == 200
    assert answer.json()["partialSuccess"]["rejectedSpans"] == "1"
    assert says in answer.json()["partialSuccess"]["errorMessage"]
    assert feedback.counts() == {"rejected": 1}


@pytest.mark.parametrize(
    ("body", "how", "status", "says"),
    [
        (SPANS[:-20], (PROTOBUF, "gzip"), 400, "ends in the middle"),
        (SPANS * 2, (PROTOBUF, "gzip"), 400, "goes on behind it"),
        (SPANS[20:], (PROTOBUF, "gzip"), 400, "is not gzip"),
        (gzip.decompress(SPANS)[:-30], (PROTOBUF, ""), 400, "is not protobuf"),
        (gzip.compress(bytes(50_000_000), 9), (PROTOBUF, "gzip"), 413, "an unpacked body may have up to 4 MiB"),
        (bytes(5_000_000), (PROTOBUF, ""), 413, "up to 4 MiB"),
        (b'{"resourceSpans": [', ("application/json", ""), 400, "not valid JSON"),
        (b"[]", ("application/json", ""), 400, ""),
        (b"{}", ("text/plain", ""), 415, "content-type"),
        (b"{}", ("application/json", "br"), 415, "content-encoding"),
    ],
    ids=["cut", "two", "no header", "cut inside", "bomb", "large", "cut json", "list", "media", "encoding"],
)
def test_bodies_that_cannot_be_read_are_refused(
    feedback: Feedback, body: bytes, how: tuple[str, str], status: int, says: str
) -> None:
    answer = post(feedback, body, media=how[0], packed=how[1])

    assert answer.status_code == status
    assert says in answer.json()["error"]["message"]
    assert feedback.num_received() == 0
