"""The process `release`. It may not import the graders of `rewards`: `commands` passes them in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx

from contracts.engines import EngineReplica, fitting
from contracts.gating import Grade, MarkAnswer
from contracts.tasks import Task
from contracts.tasks.loading import load_tasks
from pipelines.release.asking import SentinelClient
from pipelines.release.releaser import Releaser
from pipelines.release.renewal import renewal
from pipelines.release.settings import ReleaseSettings
from pipelines.release.train import rules as train_rules  # noqa: F401 the conductor of the train decides by them
from pipelines.release.train.reading.intake import TrainIntake, read_evidence
from runtime.base_policy import fingerprint
from runtime.engine_rows import read_engines
from runtime.sentinels import read_sentinels
from runtime.settings import Settings, load_section, load_settings
from runtime.train_settings import TrainSettings

_ANSWER_SECONDS = 60.0


def main(
    home: Path,
    stop: threading.Event,
    make_grade: Callable[[Mapping[str, Task]], Grade],
    make_marks: Callable[[Mapping[str, Task]], MarkAnswer],
) -> None:
    """Judge candidates and prove them until `stop` is set.

    Args:
        home: the home folder.
        stop: ends it.
        make_grade: builds the graders of the gated tasks.
        make_marks: builds the fast marks of all tasks.
    """
    settings = load_settings(home)
    policy = settings.policy
    own = load_section(home, "release", ReleaseSettings)
    tasks = load_tasks(settings.tasks)
    sentinels = read_sentinels(own.sentinels, tasks)
    grade = make_grade({name: tasks[name] for name in sentinels.tasks})
    reading = _start_reading(settings, tasks, make_marks(tasks), stop)
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
    reading.join()


def _start_reading(
    settings: Settings, tasks: Mapping[str, Task], mark: MarkAnswer, stop: threading.Event
) -> threading.Thread:
    """Read what the trains compare, in a thread of its own."""
    database = settings.database()
    intake = TrainIntake(
        database, tasks, mark, policy=settings.policy, settings=load_section(settings.home, "train", TrainSettings)
    )
    reading = threading.Thread(
        target=read_evidence, args=(intake, database, settings.event_log(), stop), name="evidence", daemon=True
    )
    reading.start()
    return reading
