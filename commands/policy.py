"""`millrace policy`: the versions of a policy, which of them serves whom, and the release train that runs or ran."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy import Connection

from commands import holds, operators, queries
from commands.home_gates import gates_of_home
from commands.options import DEFAULT_HOME, HomeOption
from contracts import assignments, error_budget, revocations
from contracts import holds as held_arms
from contracts.arms import DRAWN
from contracts.assignments import PROVIDER, SLOTS, Assignment, provider_share
from contracts.engines import read_replicas
from contracts.errors import InvalidSettings, NotFound, WeightsRefused
from contracts.holds import Hold
from contracts.revocations import Revocation
from pipelines.release.train import repository
from pipelines.release.train.repository import IN_SHADOW, Train
from pipelines.release.webhooks import repository as webhook_rows
from pipelines.release.webhooks.messages import make_test_event, read_secret
from pipelines.release.webhooks.sending import make_client, send
from pipelines.release.webhooks.settings import WebhookSettings
from runtime.settings import load_section, load_settings
from runtime.settings_file import settings_file
from runtime.train_settings import TrainSettings
from services.dashboard.rollout.queries import read_sides
from services.dashboard.rollout.words import left_sentence, side_sentences, slot_sentences, unit_sentence
from services.provider import load_provider
from weights.stores.opening import open_weight_store

_ROW = "{:<8} {:<7} {:<12} {:>7} {:>8} {:>8}  {:<11} {}"
"""Fits into 80 columns; the gate's reason stands below."""

app = typer.Typer(
    help="List versions, promote one, roll back, reject one; freeze or pin the arms, hold users out.",
    no_args_is_help=True,
)


@app.command("list")
def print_versions(home: HomeOption = DEFAULT_HOME) -> None:
    """List the versions, newest first: parent, size, verdict of the gate, and the arm that serves them."""
    settings = load_settings(home)
    policy, store = settings.policy, open_weight_store(settings)
    with settings.snapshot() as connection:
        arms = assignments.read(connection, policy)
        verdicts = queries.verdicts(connection, policy)
        anchors = queries.anchors(connection, policy)
        revoked = revocations.read(connection, policy)
        held = held_arms.read(connection, policy, now := time.time())
        slots = _slots_say(connection, policy, home, now)
    print(_ROW.format("version", "parent", "made", "samples", "delta", "changed", "verdict", "serves").rstrip())
    for version in reversed(store.versions(policy)):
        try:
            manifest = store.manifest(policy, version)
        except (NotFound, WeightsRefused) as error:
            print(_ROW.format(f"v{version}", "", "", "", "", "", error.code, "").rstrip())
            continue
        verdict = verdicts.get(version)
        row = _ROW.format(
            f"v{version}",
            "" if manifest.parent is None else f"v{manifest.parent}",
            time.strftime("%m-%d %H:%M", time.localtime(manifest.created_at)),
            manifest.num_samples,
            f"{manifest.payload_bytes / 1000:.0f} kB",
            f"{manifest.density:.1%}",
            "not judged" if verdict is None else "accepted" if verdict.accepted else "refused",
            _serves(version, arms, anchors, is_revoked=version in revoked),
        )
        print(row.rstrip())
        if verdict is not None:
            print(f"  {verdict.reason}")
    for line in (*_arm_lines(arms, held), *slots, *_revoked_lines(revoked.values())):
        print(line)
    for gate in gates_of_home(settings):
        print(f"task {gate.task}: {gate.says}")


def print_train(
    home: HomeOption = DEFAULT_HOME,
    *,
    last: Annotated[int, typer.Option(min=0, max=100, help="How many trains that ended.")] = 5,
) -> None:
    """Print the running release train with what it measured, the trains before it, and which train the engines allow."""
    settings, now = load_settings(home), time.time()
    with settings.snapshot() as connection:
        train = repository.read_running(connection, settings.policy)
        ended = repository.read_ended(connection, settings.policy, last)
        held = held_arms.read(connection, settings.policy, now)
        arms = assignments.read(connection, settings.policy)
        budget = error_budget.read(connection, settings.policy, now)
        says = _slots_say(connection, settings.policy, home, now)
        sides = read_sides(connection, settings.policy) if PROVIDER in arms else {}
    for line in [*says, *side_sentences(sides, arms)]:
        print(line)
    serving = (arms[name] for name in DRAWN if name in arms and arms[name].version is not None)
    if drawn := [f"{arm.arm} v{arm.version} {arm.share:.1%}" for arm in serving]:
        print(f"shares of the users: {', '.join(drawn)}")
    if held is not None:
        print(f"{held.words}: the train waits. To go on: millrace policy resume")
    if train is None:
        print("no train runs: the next one departs with the newest version that passed the gate, once users ask")
    else:
        for line in _train_lines(train, now):
            print(line)
    for part, shown in sorted(budget.items(), reverse=True):
        print(left_sentence(part, shown))
    for item in ended:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(item.ended_at))
        after = _duration((item.ended_at or now) - item.started_at)
        print(f"{when}  v{item.version} against {item.against}: {item.state} after {after}: {item.reason}")


@app.command("webhook-test")
def webhook_test(home: HomeOption = DEFAULT_HOME) -> int:
    """Send a test to every URL of the section webhooks. Status 1 if one does not accept it. A URL that had answered 410 is told again."""
    settings = load_settings(home)
    webhooks = load_section(home, "webhooks", WebhookSettings)
    if not webhooks.urls:
        raise InvalidSettings(f'{settings_file(home)} names no URL: write [webhooks] and urls = ["https://..."]')
    secret, event, num_failed = read_secret(home), make_test_event(settings.policy), 0
    for url in webhooks.urls:
        began = time.monotonic()
        with make_client() as client:
            tried = send(client, webhooks.signed(url, secret), event, time.time())
        print(f"{url}: {tried.fate}, {tried.says}, after {time.monotonic() - began:.2f} s")
        if tried.fate != "accepted":
            num_failed += 1
            continue
        with settings.transaction() as connection:
            webhook_rows.set_receiver_problem(connection, settings.policy, url, "")
    return int(num_failed > 0)


app.command("promote")(operators.promote)
app.command("rollback")(operators.rollback)
app.command("withdraw")(operators.withdraw)
app.command("revoke")(operators.revoke)
app.command("freeze")(holds.freeze)
app.command("pin")(holds.pin)
app.command("resume")(holds.resume)
app.command("holdout")(holds.holdout)
app.command("provider")(holds.provider)
app.command("train")(print_train)


def _serves(version: int, arms: Mapping[str, Assignment], anchors: Mapping[int, list[str]], *, is_revoked: bool) -> str:
    if is_revoked:
        return "revoked"
    served = (name for name in SLOTS if name in arms and arms[name].version == version)
    return ", ".join([*served, *(f"anchor of {task}" for task in anchors.get(version, ()))])


def _arm_lines(arms: Mapping[str, Assignment], held: Hold | None) -> list[str]:
    serving = [
        f"{name} v{arms[name].version}" + (f" ({arms[name].share:.1%} of the users)" if name in DRAWN else "")
        for name in SLOTS
        if name in arms and arms[name].version is not None
    ]
    serving += [f"{PROVIDER} ({arms[PROVIDER].share:.1%} of the users)"] if PROVIDER in arms else []
    lines = [f"arms: {', '.join(serving) or 'none'}"]
    return lines if held is None else [*lines, f"{held.words}: nothing moves. To go on: millrace policy resume"]


def _revoked_lines(found: Iterable[Revocation]) -> list[str]:
    decisions: dict[tuple[str, str, str], list[int]] = {}
    for item in found:
        decisions.setdefault((item.treatment, item.reason, item.writer), []).append(item.version)
    return [
        f"revoked as {treatment}: {', '.join(f'v{version}' for version in sorted(versions))} ({writer}: {reason})"
        for (treatment, reason, writer), versions in decisions.items()
    ]


def _slots_say(connection: Connection, policy: str, home: Path, now: float) -> list[str]:
    settings = load_settings(home)
    if not settings.base and (provider := load_provider(settings)) is not None:
        return [provider.says]
    running = [row for row in read_replicas(connection, policy) if row.is_fresh(now)]
    arms = assignments.read(connection, policy)
    return slot_sentences(
        {arm for row in running for arm in row.slots},
        num_engines=len(running),
        is_enabled=load_section(home, "train", TrainSettings).enabled,
        has_proved=assignments.CANARY in arms,
        has_front=provider_share(arms) > 0.0,
    )


def _train_lines(train: Train, now: float) -> Iterator[str]:
    stages, at = train.settings["stages"], train.stage
    where = "in shadow" if at == IN_SHADOW else f"stage {at + 1} of {len(stages)}, {stages[at]:.1%}"
    left = train.settings["patience_seconds"] + train.paused_seconds - (now - train.started_at)
    who = f"v{train.version} against {train.against}: {train.state}, {where}, for {_duration(now - train.stage_at)}"
    yield f"{who}; withdrawn unless proven in {_duration(max(0.0, left))}"
    yield train.reason
    facts = train.evidence
    if "num_canary_units" in facts:
        kinds = facts.get("unit_kinds", {})
        units = ", ".join(f"{count} by {kind}" for kind, count in kinds.items()) or "none"
        yield f"answered so far: {facts['num_canary_units']} on the canary and {facts['num_control_units']} on live ({units})"
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


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    if minutes >= 60:  # noqa: PLR2004 an hour
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
