"""One port for apps and operators: inference, feedback and dashboard in one process."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI

from contracts.settings import Settings
from services.dashboard.app import create_app as create_dashboard
from services.feedback.app import create_app as create_feedback
from services.inference.app import create_app as create_inference
from services.serving import make_web, run_services


def create_app(settings: Settings) -> FastAPI:
    """All services of one home."""
    passing = settings.passing()
    children = {
        "/v1/feedback": create_feedback(settings, passing=passing),
        "/v1/": create_inference(settings, passing=passing),
        "/": create_dashboard(settings, passing=passing),
    }
    return make_web(settings, children, needs_engine=True)


def main(home: Path) -> None:
    """Run the process `web` of a home until SIGTERM or SIGINT."""
    run_services("web", home, create_app, lambda settings: settings.web_url)
