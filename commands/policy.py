"""`millrace policy`: the versions of a policy, and which of them serves whom."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from commands import holds, queries, rejecting, train, webhooks
from commands.home_gates import gates_of_home
from commands.operators import WRITER, is_agreed, treatment_of, wake_followers
from commands.options import DEFAULT_HOME, HomeOption
from contracts import assignments, revocations
from contracts import holds as held_arms
from contracts import rollback as rollback_plan
from contracts.arms import DRAWN
from contracts.assignments import LIVE, SLOTS, Assignment
from contracts.errors import NotFound, WeightsRefused
from contracts.holds import Hold
from contracts.revocations import Revocation, Treatment, claimed_parents
from contracts.rollback_effects import describe, read_effects
from contracts.version_history import BASE, stored_parents
from runtime.settings import load_section, load_settings
from runtime.train_settings import TrainSettings
from weights.stores.opening import open_weight_store

EVIDENCE: Treatment = "evidence"
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
        slots = train.slots_say(connection, policy, now, is_enabled=load_section(home, "train", TrainSettings).enabled)
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
    for line in (*arm_lines(arms, held), *slots):
        print(line)
    for line in _revoked_lines(revoked.values()):
        print(line)
    for gate in gates_of_home(settings):
        print(f"task {gate.task}: {gate.says}")


@app.command()
def promote(
    version: Annotated[int, typer.Argument(help="Version to make live.")],
    home: HomeOption = DEFAULT_HOME,
    reason: Annotated[str, typer.Option(help="Kept in the history.")] = "promoted by an operator",
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before a rollback.")] = False,
) -> None:
    """Make a version live, whatever the gate's verdict. Below the live one it is a rollback. A revoked version is refused."""
    settings = load_settings(home)
    policy, database = settings.policy, settings.database()
    open_weight_store(settings).manifest(policy, version)
    with database.snapshot() as connection:
        live = assignments.read(connection, policy).get(LIVE)
    if live is not None and live.version is not None and version < live.version:
        print(f"v{version} is below v{live.version}, which is live: this is a rollback.")
        roll_back(home, version, reason, ask=None if yes or not sys.stdin.isatty() else typer.confirm)
        return
    with database.transaction() as connection:
        rollback_plan.promote(connection, policy=policy, to=version, writer=WRITER, reason=reason)
    wake_followers(settings)
    print(f"v{version} is live now")


@app.command()
def rollback(
    home: HomeOption = DEFAULT_HOME,
    to: Annotated[
        int | None, typer.Option(help="Version to go back to. Default: the accepted one before the live one.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Kept in the history.")] = "rolled back by an operator",
    *,
    treatment: Annotated[
        str,
        typer.Option(
            help="What happens to samples of the revoked versions. evidence: they were merely worse, so learn from them "
            "again, as off-policy. poison: never learn from them again."
        ),
    ] = EVIDENCE,
    revoke: Annotated[
        list[int] | None,
        typer.Option(
            help="Revoke only this version and its descendants, not all above the target. Repeat it for more."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would happen, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask. Without a terminal, it never asks.")] = False,
) -> None:
    """Go back to an older live version and revoke the versions above it. The trainer goes on from the older one."""
    ask = None if yes or not sys.stdin.isatty() else typer.confirm
    roll_back(home, to, reason, treatment=treatment, revoke=set(revoke or ()) or None, dry_run=dry_run, ask=ask)


app.command("withdraw")(rejecting.withdraw)
app.command("revoke")(rejecting.revoke)
app.command("freeze")(holds.freeze)
app.command("pin")(holds.pin)
app.command("resume")(holds.resume)
app.command("holdout")(holds.holdout)
app.command("train")(train.print_train)
app.command("webhook-test")(webhooks.webhook_test)


def roll_back(
    home: Path,
    to: int | None,
    reason: str,
    *,
    treatment: str = EVIDENCE,
    revoke: Collection[int] | None = None,
    dry_run: bool = False,
    ask: Callable[[str], bool] | None = None,
) -> None:
    """Show what a rollback does; then do it if `ask`, where given, agrees.

    Raises:
        InvalidValue: no such treatment, or the plan is impossible.
        StaleWrite: another version went live in the meantime.
    """
    chosen = treatment_of(treatment)
    settings = load_settings(home)
    store, policy, database = open_weight_store(settings), settings.policy, settings.database()
    if to is not None:
        store.manifest(policy, to)
    with database.snapshot() as connection:
        parents = stored_parents(store, policy, BASE, claimed_parents(connection, policy))
        plan = rollback_plan.read_plan(connection, policy, to=to, revoke=revoke, parents=parents)
        effects = read_effects(connection, plan)
    for line in describe(plan, effects):
        print(line)
    if not is_agreed(effects, chosen, f"Roll back to v{plan.target}?", dry_run=dry_run, ask=ask):
        return
    with database.transaction() as connection:
        done = rollback_plan.roll_back(
            connection,
            policy=policy,
            writer=WRITER,
            reason=reason,
            to=plan.target,
            treatment=chosen,
            revoke=revoke,
            parents=parents,
            seen_live=plan.live,
        )
    wake_followers(settings)
    print(f"v{done.target} is live now, and the trainer goes on from it")


def _serves(version: int, arms: Mapping[str, Assignment], anchors: Mapping[int, list[str]], *, is_revoked: bool) -> str:
    """The arms that serve a version, and the tasks on which candidates are compared with it."""
    if is_revoked:
        return "revoked"
    served = (name for name in SLOTS if name in arms and arms[name].version == version)
    return ", ".join([*served, *(f"anchor of {task}" for task in anchors.get(version, ()))])


def arm_lines(arms: Mapping[str, Assignment], held: Hold | None) -> list[str]:
    """Which version each arm serves and to which share of the users, and why nothing moves."""
    serving = [
        f"{name} v{arm.version}" + (f" ({arm.share:.1%} of the users)" if name in DRAWN else "")
        for name in SLOTS
        if (arm := arms.get(name)) is not None and arm.version is not None
    ]
    lines = [f"arms: {', '.join(serving) or 'none'}"]
    return lines if held is None else [*lines, f"{held.words}: nothing moves. To go on: millrace policy resume"]


def _revoked_lines(found: Iterable[Revocation]) -> list[str]:
    """One line for each decision: the versions, the treatment, who revoked them and why."""
    decisions: dict[tuple[str, str, str], list[int]] = {}
    for item in found:
        decisions.setdefault((item.treatment, item.reason, item.writer), []).append(item.version)
    return [
        f"revoked as {treatment}: {', '.join(f'v{version}' for version in sorted(versions))} ({writer}: {reason})"
        for (treatment, reason, writer), versions in decisions.items()
    ]
