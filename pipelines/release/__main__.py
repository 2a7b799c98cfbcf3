"""The process `release`. It may not import the graders of `rewards`: `commands` passes them in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx

from contracts.engines import EngineReplica, fitting
from contracts.gating import Grade
from contracts.tasks import Task
from contracts.tasks.loading import load_tasks
from pipelines.release.asking import SentinelClient
from pipelines.release.releaser import Releaser
from pipelines.release.renewal import renewal
from pipelines.release.settings import ReleaseSettings
from pipelines.release.train import rules as train_rules  # noqa: F401 the conductor of the train decides by them
from runtime.base_policy import fingerprint
from runtime.engine_rows import read_engines
from runtime.sentinels import read_sentinels
from runtime.settings import load_section, load_settings

_ANSWER_SECONDS = 60.0


def main(home: Path, stop: threading.Event, make_grade: Callable[[Mapping[str, Task]], Grade]) -> None:
    """Judge candidates until `stop` is set. `make_grade` builds the graders of the gated tasks."""
    settings = load_settings(home)
    policy = settings.policy
    own = load_section(home, "release", ReleaseSettings)
    tasks = load_tasks(settings.tasks)
    sentinels = read_sentinels(own.sentinels, tasks)
    grade = make_grade({name: tasks[name] for name in sentinels.tasks})
    database, base = settings.database(), fingerprint(settings.base)

    def engines() -> list[EngineReplica]:
        return [fitting(row, settings.run, base) for row in read_engines(database, policy)]

    headers = {
        "Authorization": f"Bearer {(home / 'operator.key').read_text().strip()}",
        "x-millrace-purpose": "sentinel",
    }
    with httpx.Client(base_url=settings.web_url, headers=headers, timeout=_ANSWER_SECONDS) as client:
        sentinel_client = SentinelClient(
            client,
            policy=policy,
            concurrency=own.concurrency,
            patience_seconds=own.patience_seconds,
            engines=engines,
        )
        bell = settings.replica_links().bell
        Releaser(
            database,
            sentinel_client,
            sentinels,
            grade,
            tasks=tasks,
            policy=policy,
            settings=own,
            bell=bell,
            each_look=renewal(settings, database, policy),
        ).run(stop)
        bell.close()
