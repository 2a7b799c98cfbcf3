"""The process `inference`."""

from __future__ import annotations

from pathlib import Path

from runtime.settings import Settings
from services.inference.app import create_app
from services.serving import clock_check, engine_check, run_services


def main(home: Path) -> None:
    """Serve until SIGTERM or SIGINT."""
    # Neither the database nor the disk: without them it answers all the same, and with a clock that is off too.
    checks = {"engine": engine_check, "clock": clock_check}
    run_services("inference", home, lambda settings: {"/": create_app(settings)}, checks, _url)


def _url(settings: Settings) -> str:
    return settings.web_url
