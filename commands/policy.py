"""`millrace policy list|promote|rollback`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.table import Table

from commands import queries
from commands.gate_home import gates_of_home
from contracts import assignments, revocations
from contracts import rollback as rollback_plan
from contracts.assignments import MOVED
from contracts.errors import InvalidValue, NotFound, WeightsRefused
from contracts.revocations import Revocation, Treatment, claimed_parents
from contracts.rollback_effects import describe, describe_treatment, read_effects
from contracts.version_parents import BASE, stored_parents
from runtime.settings import Settings, load_settings
from weights.stores.opening import open_weight_store

EVIDENCE: Treatment = "evidence"
_WRITER = "operator"


def print_versions(home: Path) -> None:
    """One line a version, newest first."""
    settings = load_settings(home)
    store = open_weight_store(settings)
    with settings.database().snapshot() as connection:
        arms = assignments.read(connection, settings.policy)
        verdicts = queries.verdicts(connection, settings.policy)
        anchors = queries.anchors(connection, settings.policy)
        revoked = revocations.read(connection, settings.policy)
    serving = {arm.version: name for name, arm in arms.items() if arm.version is not None and name != "training"}
    table = Table("version", "parent", "made", "samples", "density", "delta", "verdict", "serves")
    for version in reversed(store.versions(settings.policy)):
        try:
            manifest = store.manifest(settings.policy, version)
        except (NotFound, WeightsRefused) as error:
            table.add_row(f"v{version}", "", "", "", "", error.code, "", "")
            continue
        table.add_row(
            f"v{version}",
            "" if manifest.parent is None else f"v{manifest.parent}",
            time.strftime("%H:%M:%S", time.localtime(manifest.created_at)),
            str(manifest.num_samples),
            f"{manifest.density:.3f}",
            f"{manifest.payload_bytes / 1000:.0f} kB",
            _verdict_text(verdicts.get(version)),
            _serves(version, serving, anchors, is_revoked=version in revoked),
        )
    Console().print(table)
    for line in _revoked_lines(revoked.values()):
        print(line)
    for gate in gates_of_home(settings):
        print(f"task {gate.task}: {gate.says}")


def promote(home: Path, version: int, reason: str) -> None:
    """Point `live` at a version that the store holds."""
    settings = load_settings(home)
    open_weight_store(settings).manifest(settings.policy, version)
    with settings.database().transaction() as connection:
        rollback_plan.promote(connection, policy=settings.policy, to=version, writer=_WRITER, reason=reason)
    _tell(settings)
    print(f"v{version} is assigned to live")


def rollback(
    home: Path,
    to: int | None,
    reason: str,
    *,
    treatment: str = EVIDENCE,
    revoke: Collection[int] | None = None,
    dry_run: bool = False,
    ask: Callable[[str], bool] | None = None,
) -> None:
    """Take the live version back, once it was shown what that does, and `ask`, if there is anybody, says yes.

    Raises:
        InvalidValue: no such treatment, or `roll_back` says so.
        StaleWrite: another version went live while the operator was thinking.
    """
    chosen = _treatment(treatment)
    settings = load_settings(home)
    store = open_weight_store(settings)
    if to is not None:
        store.manifest(settings.policy, to)
    database, policy = settings.database(), settings.policy
    with database.snapshot() as connection:
        parents = stored_parents(store, policy, BASE, claimed_parents(connection, policy))
        plan = rollback_plan.read_plan(connection, policy, to=to, revoke=revoke, parents=parents)
        effects = read_effects(connection, plan)
    for line in describe(plan, effects):
        print(line)
    for offered in get_args(Treatment):
        mark = "*" if offered == chosen else " "
        print(f"{mark} --treatment {offered}: {describe_treatment(offered, effects)}")
    if dry_run:
        print("This was a dry run: nothing is changed.")
        return
    if ask is not None and not ask(f"Roll back to v{plan.target}?"):
        print("Nothing is changed.")
        return
    with database.transaction() as connection:
        done = rollback_plan.roll_back(
            connection,
            policy=policy,
            writer=_WRITER,
            reason=reason,
            to=plan.target,
            treatment=chosen,
            revoke=revoke,
            parents=parents,
            seen_live=plan.live,
        )
    _tell(settings)
    print(f"v{done.target} is assigned to live, and the trainer goes on from it")


def _treatment(text: str) -> Treatment:
    for treatment in get_args(Treatment):
        if text == treatment:
            return text  # type: ignore[return-value] # it is one of them
    raise InvalidValue(f"--treatment is {' or '.join(get_args(Treatment))}, not {text!r}", param="treatment")


def _tell(settings: Settings) -> None:
    bell = settings.replica_links().bell
    bell.ring(MOVED)
    bell.close()


def _verdict_text(verdict: queries.Verdict | None) -> str:
    if verdict is None:
        return "not judged"
    return f"{'accepted' if verdict.accepted else 'refused'}: {verdict.reason}"


def _serves(version: int, serving: Mapping[int, str], anchors: Mapping[int, list[str]], *, is_revoked: bool) -> str:
    """Which arm a version serves, and the tasks on which candidates are compared with it."""
    if is_revoked:
        return "revoked"
    return ", ".join(
        filter(None, [serving.get(version, ""), *(f"anchor of {task}" for task in anchors.get(version, ()))])
    )


def _revoked_lines(found: Iterable[Revocation]) -> list[str]:
    """One line for each decision: what it revoked, as what, why and by whom."""
    decisions: dict[tuple[str, str, str], list[int]] = {}
    for item in found:
        decisions.setdefault((item.treatment, item.reason, item.writer), []).append(item.version)
    return [
        f"revoked as {treatment}: {', '.join(f'v{version}' for version in sorted(versions))} ({writer}: {reason})"
        for (treatment, reason, writer), versions in decisions.items()
    ]
