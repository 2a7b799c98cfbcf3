"""A thread that sends users' answers to a collector, as spans.

In: generations, from the end of the log on when it first starts. Out: OTLP over HTTP, at least once; each span has the same ids each time.
Waits for: the collector; nobody waits for this thread. The log is its queue. While the collector does not answer, it tries again after
growing pauses, and spans that are an hour late are counted and left out.
"""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import NoReturn
from urllib.parse import unquote

import httpx
import structlog
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from sqlalchemy import Connection

from contracts.errors import InvalidRecord, InvalidSettings, Unavailable
from contracts.event_log import EventLog, LogRecord, Message
from contracts.records import Generation, decode
from contracts.topics import GENERATIONS
from pipelines.episodes.telemetry.settings import TelemetrySettings
from pipelines.episodes.telemetry.spans import requests_of
from runtime.batch import Handler
from runtime.database import Database
from runtime.log.loss_detection import TELEMETRY
from runtime.metrics import SPANS
from runtime.secret_values import secret_value
from runtime.worker import Worker

LATEST_SECONDS = 3600.0
HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
_SEND_SECONDS = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_AGAIN = frozenset((429, 502, 503, 504))
"""OTLP's statuses for: send it again."""

log = structlog.get_logger()


@dataclass(eq=False)
class SpanExport(Handler[tuple[Generation, ...]]):
    """See the module. `wait`: for so many seconds, or until the end; `clock`: UTC epoch seconds."""

    name = TELEMETRY
    topics = (GENERATIONS,)
    batch_size = 200

    client: httpx.Client
    _: KW_ONLY
    url: str
    with_content: bool
    wait: Callable[[float], object]
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._pause = _FIRST_PAUSE

    def read(self, record: LogRecord) -> tuple[Generation, ...]:
        """See `Handler.read`. It buries no record: the join does. Raises NewerSchema."""
        try:
            answer = decode(Generation, record.value)
        except InvalidRecord:
            SPANS.labels("unreadable").inc()
            return ()
        return (answer,) if answer.purpose == "user" else ()

    def prepare(self, items: Sequence[tuple[Generation, ...]]) -> Sequence[tuple[Generation, ...]]:
        """Send. Raises Unavailable: the collector does not take them now; the worker comes again."""
        answers = [answer for item in items for answer in item]
        due = [answer for answer in answers if answer.finished_at > self.clock() - LATEST_SECONDS]
        for num, body in requests_of(due, with_content=self.with_content):
            self._send(num, body)
        SPANS.labels("expired").inc(len(answers) - len(due))
        return items

    def handle(self, connection: Connection, items: Sequence[tuple[Generation, ...]]) -> list[Message]:
        """Nothing: the worker moves the positions."""
        del connection, items
        return []

    def _send(self, num: int, body: bytes) -> None:
        headers = {"content-type": "application/x-protobuf", "content-encoding": "gzip"}
        try:
            answer = self.client.post(self.url, content=gzip.compress(body, 1), headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # some addresses fail only here
            self._come_again(f"{type(error).__name__}: {error}")
        if answer.status_code in _AGAIN:
            self._come_again(str(answer.status_code))
        self._pause = _FIRST_PAUSE
        num_refused = min(num, _num_rejected(answer.content)) if answer.is_success else num
        if num_refused:
            log.warning("spans refused", num=num_refused, status=answer.status_code, reason=answer.text[:200])
        SPANS.labels("refused").inc(num_refused)
        SPANS.labels("sent").inc(num - num_refused)

    def _come_again(self, reason: str) -> NoReturn:
        self.wait(self._pause)
        self._pause = min(_LONGEST_PAUSE, 2.0 * self._pause)
        raise Unavailable(f"the collector at {self.url} takes no spans now ({reason[:200]})")


def headers_of(text: str) -> dict[str, str]:
    """The headers of `key=value,key=value`, with percent signs as in URLs. Raises InvalidSettings."""
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    found = {name.strip(): unquote(value.strip()) for name, _, value in pairs}
    if not all(name and (name + value).isascii() and (name + value).isprintable() for name, value in found.items()):
        raise InvalidSettings(f"{HEADERS} is not of the form name=value,name=value")
    return found


def exporter(
    telemetry: TelemetrySettings, database: Database, event_log: EventLog, stop: threading.Event
) -> Callable[[], None]:
    """What sends spans until `stop` is set. A fault here is logged, and ends nothing else. Raises InvalidSettings: the headers are none."""
    headers = headers_of(secret_value(HEADERS) or "")

    def export() -> None:
        with httpx.Client(timeout=_SEND_SECONDS, headers=headers) as client:
            url = f"{telemetry.otlp_endpoint}/v1/traces"
            sending = SpanExport(client, url=url, with_content=telemetry.content, wait=stop.wait)
            while not stop.is_set():
                try:
                    Worker(sending, database, event_log, follows=True, done=lambda: None).run(stop)
                except Exception:  # the join must not end with it
                    log.exception("spans not sent")
                    stop.wait(_LONGEST_PAUSE)
        event_log.close()
        database.close()

    return export


def _num_rejected(content: bytes) -> int:
    try:
        return max(0, int(ExportTraceServiceResponse.FromString(content).partial_success.rejected_spans))
    except DecodeError:
        return 0  # some collectors answer a page
