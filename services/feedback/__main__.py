"""The process `feedback`."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI

from contracts.settings import Settings
from services.feedback.app import create_app
from services.serving import make_web, run_services


def make(settings: Settings) -> FastAPI:
    """The service alone on its port."""
    return make_web(settings, {"/": create_app(settings)})


def main(home: Path) -> None:
    """Serve until SIGTERM or SIGINT."""
    run_services("feedback", home, make, lambda settings: settings.feedback_url)
