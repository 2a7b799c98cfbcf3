"""`millrace policy train`: the release train that runs, what it found, and the trains before it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated

import typer
from sqlalchemy import Connection

from commands.options import DEFAULT_HOME, HomeOption
from contracts import assignments, error_budget, holds
from contracts.arms import DRAWN
from contracts.engines import read_replicas
from pipelines.release.train import repository
from pipelines.release.train.repository import IN_SHADOW, Train
from runtime.settings import load_section, load_settings
from runtime.train_settings import TrainSettings
from services.dashboard.rollout.words import left_sentence, slot_sentences, unit_sentence


def print_train(
    home: HomeOption = DEFAULT_HOME,
    *,
    last: Annotated[int, typer.Option(min=0, max=100, help="How many trains that ended.")] = 5,
) -> None:
    """Print the running release train with what it measured, the trains before it, and which train the engines allow."""
    settings, own = load_settings(home), load_section(home, "train", TrainSettings)
    now = time.time()
    with settings.snapshot() as connection:
        train = repository.read_running(connection, settings.policy)
        ended = repository.read_ended(connection, settings.policy, last)
        held = holds.read(connection, settings.policy, now)
        arms = assignments.read(connection, settings.policy)
        budget = error_budget.read(connection, settings.policy, now)
        says = slots_say(connection, settings.policy, now, is_enabled=own.enabled)
    for line in says:
        print(line)
    drawn = [f"{name} v{arms[name].version} {arms[name].share:.1%}" for name in DRAWN if _serves(arms.get(name))]
    if drawn:
        print(f"shares of the users: {', '.join(drawn)}")
    if held is not None:
        print(f"{held.words}: the train waits. To go on: millrace policy resume")
    if train is None:
        print("no train runs: the next one departs with the newest version that passed the gate, once users ask")
    else:
        for line in train_lines(train, now):
            print(line)
    for part, shown in sorted(budget.items(), reverse=True):
        print(left_sentence(part, shown))
    for item in ended:
        print(
            f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(item.ended_at))}  v{item.version} against v{item.blessed}: {item.state} "
            f"after {_duration((item.ended_at or now) - item.started_at)}: {item.reason}"
        )


def slots_say(connection: Connection, policy: str, now: float, *, is_enabled: bool) -> list[str]:
    """What the train lacks because no engine that runs has a slot for it. `is_enabled`: [train] enabled."""
    running = [row for row in read_replicas(connection, policy) if row.is_fresh(now)]
    return slot_sentences(
        {arm for row in running for arm in row.slots},
        num_engines=len(running),
        is_enabled=is_enabled,
        has_proved=assignments.CANARY in assignments.read(connection, policy),
    )


def train_lines(train: Train, now: float) -> Iterator[str]:
    """Where a train is, what it says, and how long it may still take."""
    stages = train.settings["stages"]
    where = (
        "in shadow"
        if train.stage == IN_SHADOW
        else f"stage {train.stage + 1} of {len(stages)}, {stages[train.stage]:.1%}"
    )
    left = train.settings["patience_seconds"] + train.paused_seconds - (now - train.started_at)
    yield (
        f"v{train.version} against v{train.blessed}: {train.state}, {where}, for {_duration(now - train.stage_at)}; withdrawn unless "
        f"proven in {_duration(max(0.0, left))}"
    )
    yield train.reason
    facts = train.evidence
    if "num_canary_units" in facts:
        kinds = facts.get("unit_kinds", {})
        units = ", ".join(f"{count} by {kind}" for kind, count in kinds.items())
        yield f"answered so far: {facts['num_canary_units']} on the canary and {facts['num_control_units']} on live ({units or 'none'})"
        yield unit_sentence(train.settings["unit"], kinds)
    for item in facts.get("metrics", ()):
        yield f"  {item['task']}: {item['says']} ({item['num_canary']} and {item['num_live']} compared)"
    if ratio := facts.get("sample_ratio"):
        yield f"sample ratio {ratio['verdict']}: {ratio['seen']:.1%} came from the canary, {ratio['expected']:.1%} were drawn for it"
    if says := facts.get("says"):
        yield str(says)
    if promise := facts.get("promise"):
        yield f"what a proof takes: {promise}"
    if (ready_at := facts.get("stage_ready_at")) is not None:
        yield f"the stage may end in {_duration(max(0.0, ready_at - now))}, if answers keep coming"
    if following := facts.get("next"):
        yield f"next: {following['kind']}: {following['reason']}"


def _serves(arm: assignments.Assignment | None) -> bool:
    return arm is not None and arm.version is not None


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
