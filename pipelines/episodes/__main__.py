"""The process `episodes`."""

from __future__ import annotations

import threading
from pathlib import Path

from contracts.tasks.loading import load_tasks
from pipelines.episodes.handler import EpisodesHandler
from pipelines.episodes.telemetry.exporting import exporter
from pipelines.episodes.telemetry.settings import TelemetrySettings
from runtime.clocks import ClockWatch
from runtime.days import keep_days_ahead
from runtime.log.loss_detection import keep_noting
from runtime.settings import load_section, load_settings
from runtime.worker import Worker


def main(home: Path, stop: threading.Event) -> None:
    """Join until `stop` is set."""
    settings = load_settings(home)
    # Windows end by the time that all replicas share.
    clock = ClockWatch(settings.database())
    handler = EpisodesHandler(load_tasks(settings.tasks), clock.now)
    threading.Thread(target=keep_days_ahead, args=(settings.database(), stop), daemon=True).start()
    noting = (settings.database(), settings.event_log(), stop, home)
    threading.Thread(target=keep_noting, args=noting, daemon=True).start()
    telemetry = load_section(home, "telemetry", TelemetrySettings)
    if telemetry.otlp_endpoint:
        export = exporter(telemetry, settings.database(), settings.event_log(), stop)
        threading.Thread(target=export, daemon=True).start()
    Worker(handler, settings.database(), settings.event_log(), clock=clock.now).run(stop)
    clock.close()
