"""The section [telemetry]: the collector that gets users' answers as spans."""

from __future__ import annotations

from pydantic import Field

from runtime.settings import Section


class TelemetrySettings(Section):
    """Empty: no spans leave."""

    otlp_endpoint: str = Field(default="", pattern=r"^(https?://[^@?#/\s]+(/[^@?#/\s]+)*)?$")
    """OTLP collector; `/v1/traces` is appended. Headers: OTEL_EXPORTER_OTLP_HEADERS."""
    content: bool = False
    """Send messages too."""
