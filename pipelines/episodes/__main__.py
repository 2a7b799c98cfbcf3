"""The process `episodes`."""

from __future__ import annotations

import threading
from pathlib import Path

from contracts.settings import load_settings
from contracts.tasks import load_tasks
from contracts.worker import Worker
from pipelines.episodes.handler import EpisodesHandler


def main(home: Path, stop: threading.Event) -> None:
    """Join until `stop` is set."""
    settings = load_settings(home)
    handler = EpisodesHandler(load_tasks(settings.tasks))
    Worker(handler, settings.database(), settings.event_log()).run(stop)
