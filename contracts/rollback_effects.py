"""The effects of a rollback or a revocation on samples, in numbers and in the words that command line and dashboard print first."""

from __future__ import annotations

import time
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, func, literal, or_, select

from contracts.ledger import PENDING, effective_state
from contracts.revocations import Treatment
from contracts.rollback import RollbackPlan
from contracts.tables import generation, training_step, version_claim


class Effects(NamedTuple):
    """Counts of users' samples, as the ledger knows them now."""

    num_learned: int
    """Learned samples in total."""
    num_undone: int
    """Of these, learned after the target version: no longer in the weights."""
    num_undone_revoked: int
    """Of these, learned in a revoked version, or not yet in any version."""
    num_said: int
    """Samples that the revoked versions answered."""
    num_said_waiting: int
    """Of these, not decided yet."""
    since: float | None = None
    """When the first version was cut whose learning is undone, UTC epoch seconds; None: not known."""
    num_steps: int = 0
    """Optimizer steps since then."""


def read_effects(connection: Connection, plan: RollbackPlan) -> Effects:
    """Count what a plan would change. Reads every learned row: for a dialog, not for frequent polling."""
    learned_in = generation.c.state_version
    learned = (generation.c.state == "trained", effective_state() == "trained")
    after = (*learned, learned_in.not_in(plan.kept))
    highest = max(plan.live, *plan.revoked, plan.target)
    # Samples in no version yet count for the next one, which would descend from a revoked version.
    in_revoked = or_(learned_in.in_(plan.revoked), and_(learned_in > highest, literal(bool(plan.revoked))))
    said = (generation.c.purpose == "user", generation.c.version.in_(plan.revoked))
    cut, num_steps = version_claim.c, 0
    left = select(func.min(cut.claimed_at)).where(cut.version > plan.target, cut.version.not_in(plan.kept))
    if (since := connection.execute(left).scalar_one()) is not None:
        steps = select(func.count()).select_from(training_step).where(training_step.c.at >= since)
        num_steps = connection.execute(steps).scalar_one()
    return Effects(
        num_learned=_count(connection, *learned),
        num_undone=_count(connection, *after),
        num_undone_revoked=_count(connection, *after, in_revoked),
        num_said=_count(connection, *said),
        num_said_waiting=_count(connection, *said, effective_state() == PENDING),
        since=since,
        num_steps=num_steps,
    )


def describe(plan: RollbackPlan, effects: Effects, now: float | None = None) -> list[str]:
    """The price, whatever the treatment, a sentence per line. `now`: UTC epoch seconds. A revocation is a plan whose target is `live`."""
    revoked = ", ".join(f"v{version}" for version in plan.revoked)
    what = f"Users get v{plan.target} instead of v{plan.live}"
    if plan.target == plan.live:
        what = f"v{plan.live} stays live; whoever has a revoked version gets v{plan.live} from now on"
    lines = [
        f"{what}, and training goes on from v{plan.target}.",
        f"Revoked for good: {revoked}. A revoked version never serves again and is compared with no other."
        if revoked
        else "No further version is revoked.",
        f"{effects.num_undone:,} of {effects.num_learned:,} learned samples are undone: the weights no longer contain them.",
    ]
    if plan.provider_share:
        lines.append(
            f"The provider gets {plan.provider_share:.0%} of the users again: they left it for a later version than v{plan.target}."
        )
    if effects.since is not None:
        began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(effects.since))
        hours = max(0.0, (time.time() if now is None else now) - effects.since) / 3600.0
        spent = f"{hours:.1f} h" if hours >= 1.0 else f"{60.0 * hours:.0f} min"
        lines.append(
            f"Everything learned since {began} is undone: {spent}, {effects.num_steps:,} steps of the trainer."
        )
    if revoked:
        lines.append(
            f"Users' samples that the revoked versions answered: {effects.num_said:,}, "
            f"of which {effects.num_said_waiting:,} wait to be decided."
        )
    kind = "revocation" if plan.target == plan.live else "rollback"
    for_good = f"A {kind} cannot be taken back. " if revoked else ""
    return [*lines, f"{for_good}Answers and signals stay readable, and requests in flight finish."]


def describe_treatment(treatment: Treatment, effects: Effects) -> str:
    """Effects of the treatment that the operator chooses."""
    if treatment == "evidence":
        return (
            f"{effects.num_undone:,} undone samples are pending and learned again from the log, those of revoked versions as "
            "off-policy data; what the log no longer holds is quarantined(rollback)."
        )
    others = effects.num_undone - effects.num_undone_revoked
    return (
        f"{effects.num_undone_revoked:,} undone samples are quarantined(rollback) and never learned again, and so are "
        "undecided and later samples of the revoked versions."
    ) + (
        f" {others:,} undone samples of versions that are not revoked are pending and learned again." if others else ""
    )


def _count(connection: Connection, *conditions: ColumnElement[bool]) -> int:
    return connection.execute(select(func.count()).select_from(generation).where(*conditions)).scalar_one()
