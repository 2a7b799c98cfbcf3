"""The process `feedback`."""

from __future__ import annotations

from pathlib import Path

from services.feedback.app import create_app
from services.serving import clock_check, run_services, storage_check


def main(home: Path) -> None:
    """Serve until SIGTERM or SIGINT."""
    checks = {"storage": storage_check, "clock": clock_check}
    run_services("feedback", home, lambda own: {"/": create_app(own)}, checks, lambda own: own.feedback_url)
