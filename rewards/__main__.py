"""The process `rewards`."""

from __future__ import annotations

import threading
from pathlib import Path

from contracts.tasks.loading import load_tasks
from rewards.worker import RewardsHandler
from runtime.settings import load_settings
from runtime.worker import Worker


def main(home: Path, stop: threading.Event) -> None:
    """Score until `stop` is set."""
    settings = load_settings(home)
    database = settings.database()
    handler = RewardsHandler(load_tasks(settings.tasks), database=database, secret=settings.run.encode()[:64])
    Worker(handler, database, settings.event_log()).run(stop)
    handler.close()
