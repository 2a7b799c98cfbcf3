"""`millrace policy promote|rollback|withdraw|revoke`: an operator decides which version is live, and which never is again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, get_args

import typer
from sqlalchemy import Connection

from commands.options import DEFAULT_HOME, HomeOption
from contracts import assignments, rejection
from contracts import rollback as rollback_plan
from contracts.assignments import LIVE, MOVED
from contracts.errors import InvalidValue
from contracts.revocations import Treatment, claimed_parents
from contracts.rollback import RollbackPlan
from contracts.rollback_effects import Effects, describe, describe_treatment, read_effects
from contracts.version_history import BASE, stored_parents
from runtime.settings import Settings, load_settings
from weights.stores.opening import open_weight_store

WRITER = "operator"
"""The name of the command line in the history of the arms."""
EVIDENCE: Treatment = "evidence"

Ask = Callable[[str], bool]
ReasonOption = Annotated[str, typer.Option(help="Kept in the history.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would happen, and change nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask. Without a terminal, it never asks.")]


def promote(
    version: Annotated[int, typer.Argument(help="Version to make live.")],
    home: HomeOption = DEFAULT_HOME,
    reason: ReasonOption = "promoted by an operator",
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before a rollback.")] = False,
) -> None:
    """Make a version live, whatever the gate's verdict. Below the live one it is a rollback. A revoked version is refused."""
    settings = load_settings(home)
    open_weight_store(settings).manifest(settings.policy, version)
    with settings.snapshot() as connection:
        live = assignments.read(connection, settings.policy).get(LIVE)
    if live is not None and live.version is not None and version < live.version:
        print(f"v{version} is below v{live.version}, which is live: this is a rollback.")
        roll_back(home, version, reason, ask=_asking(yes=yes))
        return
    with moving_arms(settings) as connection:
        rollback_plan.promote(connection, policy=settings.policy, to=version, writer=WRITER, reason=reason)
    print(f"v{version} is live now")


def rollback(
    home: HomeOption = DEFAULT_HOME,
    to: Annotated[
        int | None, typer.Option(help="Version to go back to. Default: the accepted one before the live one.")
    ] = None,
    reason: ReasonOption = "rolled back by an operator",
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
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Go back to an older live version and revoke the versions above it. The trainer goes on from the older one."""
    chosen = set(revoke or ()) or None
    roll_back(home, to, reason, treatment=treatment, revoke=chosen, dry_run=dry_run, ask=_asking(yes=yes))


def withdraw(
    version: Annotated[int, typer.Argument(help="Version that the train proves.")],
    home: HomeOption = DEFAULT_HOME,
    *,
    reason: ReasonOption = "withdrawn by an operator",
) -> None:
    """End the train of a version: its users get the live version, and it never departs again by itself. It is not revoked."""
    settings = load_settings(home)
    with moving_arms(settings) as connection:
        left = rejection.withdraw(connection, policy=settings.policy, version=version, writer=WRITER, reason=reason)
    gone = f" and left {' and '.join(left)}" if left else ""  # a pin emptied them
    print(
        f"v{version} is withdrawn{gone}; it does not depart again. To serve it after all: millrace policy promote {version}"
    )


def revoke(
    version: Annotated[int, typer.Argument(help="Version that is not live.")],
    home: HomeOption = DEFAULT_HOME,
    reason: ReasonOption = "revoked by an operator",
    *,
    treatment: Annotated[
        str,
        typer.Option(help="What happens to samples of the revoked versions: evidence or poison, as for a rollback."),
    ] = EVIDENCE,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Revoke a version that is not live, for example the canary, with its descendants. The trainer goes on from the live version."""
    revoke_version(home, version, reason, treatment=treatment, dry_run=dry_run, ask=_asking(yes=yes))


def roll_back(
    home: Path,
    to: int | None,
    reason: str,
    *,
    treatment: str = EVIDENCE,
    revoke: Collection[int] | None = None,
    dry_run: bool = False,
    ask: Ask | None = None,
) -> None:
    """Show what a rollback does; then do it if `ask`, where given, agrees.

    Raises InvalidValue: no such treatment, or the plan is impossible; StaleWrite: another version went live in the meantime.
    """
    chosen, settings = _treatment_of(treatment), load_settings(home)
    store, policy = open_weight_store(settings), settings.policy
    if to is not None:
        store.manifest(policy, to)
    with settings.snapshot() as connection:
        parents = stored_parents(store, policy, BASE, claimed_parents(connection, policy))
        plan = rollback_plan.read_plan(connection, policy, to=to, revoke=revoke, parents=parents)
        effects = read_effects(connection, plan)
    _show(plan, effects, chosen)
    if not _is_agreed(f"Roll back to v{plan.target}?", dry_run=dry_run, ask=ask):
        return
    with moving_arms(settings) as connection:
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
    print(f"v{done.target} is live now, and the trainer goes on from it")


def revoke_version(
    home: Path, version: int, reason: str, *, treatment: str = EVIDENCE, dry_run: bool = False, ask: Ask | None = None
) -> None:
    """Show what a revocation does; then do it if `ask`, where given, agrees.

    Raises Conflict: it is already revoked; InvalidValue: no such treatment or version, or the live version is it or descends from it;
    StaleWrite: another version went live in the meantime.
    """
    chosen, settings = _treatment_of(treatment), load_settings(home)
    store, policy = open_weight_store(settings), settings.policy
    with settings.snapshot() as connection:
        parents = stored_parents(store, policy, BASE, claimed_parents(connection, policy))
        plan = rejection.read_plan(connection, policy, version, parents=parents)
        effects = read_effects(connection, plan)
    _show(plan, effects, chosen)
    if not _is_agreed(f"Revoke v{version}?", dry_run=dry_run, ask=ask):
        return
    with moving_arms(settings) as connection:
        done = rejection.revoke(
            connection,
            policy=policy,
            version=version,
            writer=WRITER,
            reason=reason,
            treatment=chosen,
            parents=parents,
            seen_live=plan.live,
        )
    revoked = ", ".join(f"v{number}" for number in done.revoked)
    print(f"{revoked} revoked; v{done.live} stays live, and the trainer goes on from it")


@contextmanager
def moving_arms(settings: Settings) -> Iterator[Connection]:
    """One transaction; then replicas and gateways are told that the arms moved."""
    with settings.transaction() as connection:
        yield connection
    bell = settings.replica_links().bell
    bell.ring(MOVED)
    bell.close()


def _asking(*, yes: bool) -> Ask | None:
    return None if yes or not sys.stdin.isatty() else typer.confirm


def _treatment_of(text: str) -> Treatment:
    for treatment in get_args(Treatment):
        if text == treatment:
            return text  # type: ignore[return-value] # it is one of them
    raise InvalidValue(f"--treatment is {' or '.join(get_args(Treatment))}, not {text!r}", param="treatment")


def _show(plan: RollbackPlan, effects: Effects, chosen: Treatment) -> None:
    for line in describe(plan, effects):
        print(line)
    for offered in get_args(Treatment):
        mark = "*" if offered == chosen else " "
        print(f"{mark} --treatment {offered}: {describe_treatment(offered, effects)}")


def _is_agreed(question: str, *, dry_run: bool, ask: Ask | None) -> bool:
    if dry_run:
        print("This was a dry run: nothing was changed.")
        return False
    if ask is not None and not ask(question):
        print("Nothing was changed.")
        return False
    return True
