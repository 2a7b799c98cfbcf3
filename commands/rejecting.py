"""`millrace policy withdraw|revoke`: an operator rejects a version that not everybody has."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from commands.operators import WRITER, is_agreed, treatment_of, wake_followers
from commands.options import DEFAULT_HOME, HomeOption
from contracts import rejection
from contracts.revocations import claimed_parents
from contracts.rollback_effects import describe, read_effects
from contracts.version_history import BASE, stored_parents
from runtime.settings import load_settings
from weights.stores.opening import open_weight_store

ReasonOption = Annotated[str, typer.Option(help="Kept in the history.")]


def withdraw(
    version: Annotated[int, typer.Argument(help="Version that the train proves.")],
    home: HomeOption = DEFAULT_HOME,
    *,
    reason: ReasonOption = "withdrawn by an operator",
) -> None:
    """End the train of a version: its users get the live version, and it never departs again by itself. It is not revoked."""
    settings = load_settings(home)
    with settings.transaction() as connection:
        left = rejection.withdraw(connection, policy=settings.policy, version=version, writer=WRITER, reason=reason)
    wake_followers(settings)
    gone = f" and left {' and '.join(left)}" if left else ""  # a pin emptied them
    print(
        f"v{version} is withdrawn{gone}; it does not depart again. To serve it after all: "
        f"millrace policy promote {version}"
    )


def revoke(
    version: Annotated[int, typer.Argument(help="Version that is not live.")],
    home: HomeOption = DEFAULT_HOME,
    reason: ReasonOption = "revoked by an operator",
    *,
    treatment: Annotated[
        str,
        typer.Option(help="What happens to samples of the revoked versions: evidence or poison, as for a rollback."),
    ] = "evidence",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would happen, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask. Without a terminal, it never asks.")] = False,
) -> None:
    """Revoke a version that is not live, for example the canary, with its descendants. The trainer goes on from the live version."""
    ask = None if yes or not sys.stdin.isatty() else typer.confirm
    revoke_version(home, version, reason, treatment=treatment, dry_run=dry_run, ask=ask)


def revoke_version(
    home: Path,
    version: int,
    reason: str,
    *,
    treatment: str = "evidence",
    dry_run: bool = False,
    ask: Callable[[str], bool] | None = None,
) -> None:
    """Show what a revocation does; then do it if `ask`, where given, agrees.

    Raises:
        Conflict: it is already revoked.
        InvalidValue: no such treatment or version, or the live version is it or descends from it.
        StaleWrite: another version went live in the meantime.
    """
    chosen = treatment_of(treatment)
    settings = load_settings(home)
    store, policy, database = open_weight_store(settings), settings.policy, settings.database()
    with database.snapshot() as connection:
        parents = stored_parents(store, policy, BASE, claimed_parents(connection, policy))
        plan = rejection.read_plan(connection, policy, version, parents=parents)
        effects = read_effects(connection, plan)
    for line in describe(plan, effects):
        print(line)
    if not is_agreed(effects, chosen, f"Revoke v{version}?", dry_run=dry_run, ask=ask):
        return
    with database.transaction() as connection:
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
    wake_followers(settings)
    print(
        f"{', '.join(f'v{number}' for number in done.revoked)} revoked; v{done.live} stays live, and the trainer goes on from it"
    )
