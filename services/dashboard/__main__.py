"""The process `dashboard`."""

from __future__ import annotations

from pathlib import Path

from runtime.settings import Settings, load_section
from runtime.train_settings import TrainSettings
from services.dashboard.app import create_app
from services.serving import clock_check, run_services, storage_check


def main(home: Path) -> None:
    """Serve until SIGTERM or SIGINT."""
    checks = {"storage": storage_check, "clock": clock_check}
    has_trains = load_section(home, "train", TrainSettings).enabled
    run_services("dashboard", home, lambda settings: {"/": create_app(settings, has_trains=has_trains)}, checks, _url)


def _url(settings: Settings) -> str:
    return settings.dashboard_url
