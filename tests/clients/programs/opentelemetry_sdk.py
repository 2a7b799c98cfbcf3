"""OpenTelemetry's SDK and OTLP exporters for Python, as their users call them."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

from cases import KEY, case, run_all, same, true
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from telemetry import BASE, Said, ask, refusal_of

# The SDK for Python documents its logs under these names.
LOGS, SDK_LOGS = import_module("opentelemetry._logs"), import_module("opentelemetry.sdk._logs")
EXPORT = import_module("opentelemetry.sdk._logs.export")
EXPORTER = import_module("opentelemetry.exporter.otlp.proto.http._log_exporter")
HEADERS = {"authorization": f"Bearer {KEY}"}
EVALUATION = "gen_ai.evaluation.result"
said = Said("opentelemetry")


def evaluation(name: str, value: Any, **more: Any) -> dict[str, Any]:
    """The attributes of an event."""
    kind = "label" if isinstance(value, str) else "value"
    return {"gen_ai.evaluation.name": name, f"gen_ai.evaluation.score.{kind}": value, **more}


def spans(
    compression: Compression, *events: dict[str, Any], response: str = "", key: str = KEY, join: bool = False
) -> None:
    """A span with such events, exported as an app's provider does it."""
    exporter = OTLPSpanExporter(
        f"{BASE}/v1/traces", headers={"authorization": f"Bearer {key}"}, compression=compression, timeout=20
    )
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    with provider.get_tracer("app").start_as_current_span("chat m") as span:
        if join:
            ask(metadata={"join_key": f"{span.get_span_context().trace_id:032x}"})
        span.set_attribute("gen_ai.operation.name", "chat")
        if response:
            span.set_attribute("gen_ai.response.id", response)
        for event in events:
            span.add_event(EVALUATION, event)
    provider.shutdown()


def logs(about: str) -> None:
    """A log record that is the same event."""
    provider = SDK_LOGS.LoggerProvider()
    provider.add_log_record_processor(
        EXPORT.BatchLogRecordProcessor(
            EXPORTER.OTLPLogExporter(f"{BASE}/v1/logs", headers=HEADERS, compression=Compression.Gzip)
        )
    )
    attributes = evaluation("stars", 4.0, **{"gen_ai.response.id": about, "gen_ai.evaluation.explanation": "clear"})
    provider.get_logger("app").emit(
        LOGS.LogRecord(timestamp=time.time_ns(), event_name=EVALUATION, attributes=attributes)
    )
    provider.shutdown()


def flawless() -> None:
    """The exporters log what they could not send."""
    same(said.take(), "")


@case("an event of a span, about its response")
def of_span() -> None:
    spans(Compression.NoCompression, evaluation("accepted", 1.0), response=ask())
    flawless()


@case("the same, gzip")
def zipped() -> None:
    spans(Compression.Gzip, evaluation("accepted", 1.0), response=ask())
    flawless()


@case("the same, deflate")
def deflated() -> None:
    spans(Compression.Deflate, evaluation("accepted", 1.0), response=ask())
    flawless()


@case("a label, about the event's own response")
def label() -> None:
    spans(Compression.Gzip, evaluation("thumbs", "up", **{"gen_ai.response.id": ask()}))
    flawless()


@case("an event of a span, about its trace")
def of_trace() -> None:
    spans(Compression.Gzip, evaluation("accepted", 1.0), join=True)
    flawless()


@case("a log record")
def of_log() -> None:
    logs(ask())
    flawless()


@case("spans without evaluations")
def without() -> None:
    spans(Compression.Gzip)
    flawless()


@case("an unknown name: accepted in part, which this SDK does not show")
def unknown() -> None:
    spans(Compression.Gzip, evaluation("helpfulness", 1.0), response=ask())
    flawless()


@case("a wrong key")
def wrong_key() -> None:
    spans(Compression.Gzip, evaluation("accepted", 1.0), key="mr-app-none-none")
    told = said.take()
    true("401" in told, told)


if __name__ == "__main__":
    run_all(refusal_of)
