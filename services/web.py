"""One port for apps and operators: inference, feedback and dashboard in one process."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from fastapi import FastAPI

from contracts.draws import UnitKind
from runtime.settings import Settings, load_section
from runtime.train_settings import TrainSettings
from services.dashboard.app import create_app as create_dashboard
from services.engine_ready import engine_check
from services.feedback.app import create_app as create_feedback
from services.inference.app import create_app as create_inference
from services.inference.sessions.routes import PREFIX
from services.serving import clock_check, run_services, storage_check

FEEDBACK_PREFIXES = ("/v1/feedback", "/v1/traces", "/v1/logs", "/api/public/")
CHECKS = {"storage": storage_check, "engine": engine_check, "clock": clock_check}


def make(settings: Settings, *, unit: UnitKind = "user", has_trains: bool = True) -> dict[str, FastAPI]:
    """The applications of one home, by the prefix of their paths. `unit`: what gets an arm; `has_trains`: [train] enabled."""
    links = settings.replica_links()
    inference = create_inference(settings, links=links, unit=unit)
    feedback = create_feedback(settings, links=links)
    return {
        **dict.fromkeys(FEEDBACK_PREFIXES, feedback),
        "/v1/": inference,
        "/hot_load/": inference,
        "/tokenize": inference,
        PREFIX: inference,
        "/": create_dashboard(settings, links=links, has_trains=has_trains),
    }


def main(home: Path) -> None:
    """Run the process `web` of a home until SIGTERM or SIGINT."""
    train = load_section(home, "train", TrainSettings)
    run_services(
        "web", home, partial(make, unit=train.unit, has_trains=train.enabled), CHECKS, lambda settings: settings.web_url
    )
