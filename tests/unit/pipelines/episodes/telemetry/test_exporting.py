"""Spans leave at least once with the same ids; a collector that is down costs nobody else anything."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from prometheus_client import REGISTRY
from sqlalchemy import select

from contracts.errors import InvalidSettings
from contracts.event_log import NUM_PARTITIONS, Message
from contracts.records import Generation
from contracts.tables import position
from contracts.topics import GENERATIONS
from pipelines.episodes.telemetry.exporting import LATEST_SECONDS, SpanExport, exporter, headers_of
from pipelines.episodes.telemetry.settings import TelemetrySettings
from runtime.database import Database
from runtime.log.local import LocalLog
from runtime.log.loss_detection import TELEMETRY, read_positions
from runtime.log.outbox import message
from runtime.settings import make_section
from runtime.worker import Worker
from tests.fakes import a_generation
from tests.unit.services.serving import wait_until

FATES = ("sent", "refused", "expired", "unreadable")


class Collector:
    """A collector that answers as told, and keeps the ids of the spans that it was sent."""

    def __init__(self) -> None:
        self.reply: Callable[[], httpx.Response] = lambda: httpx.Response(200)
        self.ids: list[bytes] = []
        self.urls: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.urls.append(str(request.url))
        content = ExportTraceServiceRequest.FromString(gzip.decompress(request.content))
        self.ids += [span.span_id for one in content.resource_spans for it in one.scope_spans for span in it.spans]
        return self.reply()


class Hurry(threading.Event):
    """Nobody waits for it."""

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        return self.is_set()


class Exporting:
    """A worker that sends to a collector; `now` is the time, `waits` are the pauses."""

    def __init__(self, database: Database, log: LocalLog) -> None:
        self.now, self.waits, self.collector = 102.0, list[float](), Collector()
        self.client = httpx.Client(transport=httpx.MockTransport(self.collector))
        sending = SpanExport(
            self.client,
            url="http://collector:4318/v1/traces",
            with_content=False,
            wait=self.waits.append,
            clock=lambda: self.now,
        )
        self.log, self.stop = log, Hurry()
        self.worker = Worker(sending, database, log, follows=True, done=self._end)
        self.began = self.counts()
        self.worker.step()  # it begins at the end of the log

    def append(self, *answers: Generation) -> None:
        self.log.append([message(GENERATIONS, answer.key, answer) for answer in answers])

    def counts(self) -> dict[str, float]:
        return {fate: REGISTRY.get_sample_value("millrace_spans_total", {"fate": fate}) or 0.0 for fate in FATES}

    def _end(self) -> None:
        """Stop once a span was counted."""
        if self.counted():
            self.stop.set()

    def counted(self) -> dict[str, float]:
        return {fate: num - self.began[fate] for fate, num in self.counts().items() if num > self.began[fate]}


@pytest.fixture
def exporting(database: Database, event_log: LocalLog) -> Iterator[Exporting]:
    before = a_generation()
    event_log.append([message(GENERATIONS, before.key, before)])
    found = Exporting(database, event_log)
    yield found
    found.client.close()


def test_users_answers_leave_once(exporting: Exporting) -> None:
    exporting.append(*(a_generation() for _ in range(3)), a_generation(purpose="rollout"))
    exporting.log.append([Message(GENERATIONS, 0, "k", b"damaged")])

    assert (exporting.worker.step(), exporting.worker.step()) == (5, 0)

    assert (len(set(exporting.collector.ids)), set(exporting.collector.urls)) == (
        3,
        {"http://collector:4318/v1/traces"},
    )
    assert exporting.counted() == {"sent": 3, "unreadable": 1}


@pytest.mark.parametrize(
    "failure", [httpx.ConnectError("refused"), httpx.InvalidURL("no host"), UnicodeError(), 429, 503]
)
def test_while_the_collector_is_away_it_is_asked_again_with_the_same_ids(
    exporting: Exporting, failure: Exception | int
) -> None:
    def away() -> httpx.Response:
        if len(exporting.collector.urls) > 8:
            return httpx.Response(200)
        if isinstance(failure, Exception):
            raise failure
        return httpx.Response(failure)

    exporting.append(a_generation(), a_generation())
    exporting.collector.reply = away

    exporting.worker.run(exporting.stop)

    assert exporting.waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert (len(exporting.collector.ids), len(set(exporting.collector.ids))) == (18, 2)
    assert exporting.counted() == {"sent": 2}


def test_what_is_an_hour_late_is_counted_and_left_out(exporting: Exporting) -> None:
    exporting.append(a_generation(), a_generation(finished_at=101.0 + LATEST_SECONDS))
    exporting.now += LATEST_SECONDS

    exporting.worker.step()

    assert exporting.counted() == {"sent": 1, "expired": 1}


def test_what_a_collector_refuses_is_counted_and_not_sent_again(exporting: Exporting) -> None:
    partly = ExportTraceServiceResponse()
    partly.partial_success.rejected_spans = 1
    broken = ExportTraceServiceResponse()
    broken.partial_success.rejected_spans = -1
    replies = iter(
        [
            httpx.Response(400, text="no"),
            httpx.Response(200, content=partly.SerializeToString()),
            httpx.Response(200, text="<ok>"),
            httpx.Response(200, content=broken.SerializeToString()),
        ]
    )
    exporting.collector.reply = lambda: next(replies)
    for _ in range(4):
        exporting.append(a_generation(), a_generation())
        exporting.worker.step()

    assert len(exporting.collector.urls) == 4
    assert exporting.counted() == {"sent": 5, "refused": 3}


def test_its_position_is_no_reason_to_miss_records(exporting: Exporting, database: Database) -> None:
    exporting.append(a_generation())
    exporting.worker.step()

    with database.snapshot() as connection:
        assert read_positions(connection) == {}


def test_the_thread_sends_over_http_until_it_is_stopped(
    database: Database, event_log: LocalLog, tmp_path: Path
) -> None:
    seen = list[tuple[str, str]]()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            seen.append((self.path, self.headers["content-type"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *given: object) -> None:
            del given

    stop, held = threading.Event(), LocalLog(tmp_path / "log")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        telemetry = TelemetrySettings(otlp_endpoint=f"http://127.0.0.1:{server.server_port}/otel")
        thread = threading.Thread(target=exporter(telemetry, Database(database.url), held, stop))
        thread.start()
        wait_until(lambda: has_position(database))
        answer = a_generation(finished_at=time.time())
        event_log.append([message(GENERATIONS, answer.key, answer)])
        wait_until(lambda: seen)
        stop.set()
        thread.join()
        server.shutdown()

    assert seen == [("/otel/v1/traces", "application/x-protobuf")]


def has_position(database: Database) -> bool:
    with database.snapshot() as connection:
        found = connection.execute(select(position.c.partition).where(position.c.consumer_group == TELEMETRY)).all()
    return len(found) == NUM_PARTITIONS


def test_headers_are_those_of_opentelemetry() -> None:
    assert headers_of("") == {}
    assert headers_of("authorization=Basic%20abc==, x-scope=a") == {"authorization": "Basic abc==", "x-scope": "a"}
    for bad in ("=x", "a=%0A", "ä=1"):
        with pytest.raises(InvalidSettings, match="OTEL_EXPORTER_OTLP_HEADERS"):
            headers_of(bad)


@pytest.mark.parametrize("url", ["collector:4318", "ftp://x", "http://user:word@x", "http://x/?a", "http://"])
def test_an_endpoint_is_a_url_without_a_secret(url: str) -> None:
    with pytest.raises(InvalidSettings, match="otlp_endpoint"):
        make_section("[telemetry]", TelemetrySettings, otlp_endpoint=url)
    assert TelemetrySettings(otlp_endpoint="https://cloud.langfuse.com/api/public/otel").content is False
