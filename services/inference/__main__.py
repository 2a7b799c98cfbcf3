"""The process `inference`."""

from __future__ import annotations

from pathlib import Path

from runtime.settings import load_section
from runtime.train_settings import TrainSettings
from services.engine_ready import engine_check
from services.inference.app import create_app
from services.serving import clock_check, run_services


def main(home: Path) -> None:
    """Serve until SIGTERM or SIGINT."""
    # Without its database or disk, inference still answers, so neither is checked.
    checks = {"engine": engine_check, "clock": clock_check}
    unit = load_section(home, "train", TrainSettings).unit
    run_services("inference", home, lambda own: {"/": create_app(own, unit=unit)}, checks, lambda own: own.web_url)
