"""The process `release`. It may not import the graders of `rewards`: `commands` passes them in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx

from contracts import assignments
from contracts.assignments import CANARY, CANDIDATE
from contracts.engines import EngineReplica
from contracts.gating import Grade, MarkAnswer
from contracts.records import Purpose
from contracts.tasks import Task
from contracts.tasks.gate import without_reference
from contracts.tasks.loading import load_tasks
from engines.fitting import fitting
from pipelines.release.asking import SentinelClient
from pipelines.release.gauges import ReleaseGauges
from pipelines.release.looping import Companions
from pipelines.release.releaser import Releaser
from pipelines.release.renewal import renewal
from pipelines.release.settings import ReleaseSettings
from pipelines.release.train.answers import task_rules
from pipelines.release.train.conductor import Conductor
from pipelines.release.train.lift import Lift
from pipelines.release.train.reading.intake import TrainIntake, read_evidence
from pipelines.release.train.shadow.shadow import PairedShadow
from pipelines.release.train.standing import TrainSlots
from pipelines.release.webhooks.settings import WebhookSettings
from pipelines.release.webhooks.teller import tellers
from runtime.base_policy import fingerprint
from runtime.clocks import ClockWatch
from runtime.engine_rows import read_engines
from runtime.operator_key import operator_key
from runtime.sentinels import read_sentinels
from runtime.settings import load_section, load_settings
from runtime.train_settings import TrainSettings

_ANSWER_SECONDS = 60.0


def main(
    home: Path,
    stop: threading.Event,
    make_grade: Callable[[Mapping[str, Task]], Grade],
    make_shadow_grade: Callable[[Mapping[str, Task]], Grade],
    make_marks: Callable[[Mapping[str, Task]], MarkAnswer],
) -> None:
    """Judge candidates and prove them on users until `stop` is set.

    `make_grade` builds the graders of the gated tasks, `make_shadow_grade` those of them that need no reference, and `make_marks` the fast
    marks of all tasks.
    """
    settings = load_settings(home)
    policy = settings.policy
    own, train = load_section(home, "release", ReleaseSettings), load_section(home, "train", TrainSettings)
    webhooks = load_section(home, "webhooks", WebhookSettings)
    tasks = load_tasks(settings.tasks)
    sentinels = read_sentinels(own.sentinels, tasks)
    grade = make_grade({name: tasks[name] for name in sentinels.tasks})
    database, base = settings.database(), fingerprint(settings.base)

    def engines() -> list[EngineReplica]:
        return [fitting(row, settings.run, base) for row in read_engines(database, policy)]

    def is_assigned(version: int) -> bool:
        with database.snapshot() as connection:
            return version in {arm.version for arm in assignments.read(connection, policy).values()}

    def client(purpose: Purpose) -> httpx.Client:
        headers = {"Authorization": f"Bearer {operator_key(home)}", "x-millrace-purpose": purpose}
        return httpx.Client(base_url=settings.web_url, headers=headers, timeout=_ANSWER_SECONDS)

    def asker(http: httpx.Client, slot: str, *, skips: bool = False) -> SentinelClient:
        limits = (own.concurrency, own.patience_seconds)
        return SentinelClient(http, policy, *limits, engines, slot=slot, skips=skips, is_assigned=is_assigned)

    clock, bell = ClockWatch(settings.database()), settings.replica_links().bell
    slots = TrainSlots(policy, run=settings.run, base=base, settings=train)
    rules = task_rules(tasks, train)
    marks = make_marks(tasks)
    shadowed = {name: task for name, task in tasks.items() if without_reference(task.grader_rules, task.gate_graders)}
    intake = TrainIntake(settings.database(), tasks, marks, policy=policy, settings=train, clock=clock.now)
    lift = Lift(settings.database(), policy=policy, settings=train, tasks=rules, clock=clock.now)
    gauges = ReleaseGauges(settings.database(), policy, webhooks.urls, clock.now)
    told = list(tellers(settings, webhooks, clock.now))
    companions = Companions(stop)
    with client("sentinel") as gate_http, client("shadow") as shadow_http:
        shadow = PairedShadow(
            settings.database(),
            asker(shadow_http, CANARY, skips=True),
            marks,
            make_shadow_grade(shadowed),
            policy=policy,
            tasks=tasks,
            graded=frozenset(shadowed),
            clock=clock.now,
        )
        conductor = Conductor(
            settings.database(),
            policy=policy,
            settings=train,
            tasks=rules,
            slots=slots,
            bell=bell,
            lift_since=lift.since,
            shadow=shadow,
            clock=clock.now,
        )
        renew = renewal(settings, database, policy)

        def each_look() -> None:
            conductor.check()
            renew()

        releaser = Releaser(
            database,
            asker(gate_http, CANDIDATE),
            sentinels,
            grade,
            tasks=tasks,
            policy=policy,
            settings=own,
            bell=bell,
            slots=slots,
            each_look=each_look,
        )
        beside = [
            ("train", conductor.run),
            ("lift", lift.run),
            ("gauges", gauges.run),
            *(("webhook", tell) for tell in told),
        ]
        for name, run in beside:
            companions.start(name, run)
        companions.start(
            "evidence", lambda stop: read_evidence(intake, settings.database(), settings.event_log(), stop)
        )
        try:
            releaser.run(stop)
        finally:
            companions.join()
    bell.close()
    clock.close()
