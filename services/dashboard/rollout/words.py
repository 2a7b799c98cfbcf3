"""Sentences of the Rollout page: what a person should know and no figure says. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from contracts.arms import shares_of
from contracts.assignments import PROVIDER, Assignment
from contracts.error_budget import TRAINS, BudgetShown
from contracts.holds import Hold
from services.dashboard.averages import accept_rate, quantile
from services.dashboard.formatting import percent, seconds, version
from services.dashboard.rollout.queries import Side


def unit_sentence(wanted: str, kinds: Mapping[str, int]) -> str:
    """What was drawn, from how many units of each kind have answers."""
    drawn = {kind: number for kind, number in kinds.items() if number}
    if not drawn:
        return f"an arm is drawn for each {wanted}; none has an answer yet"
    if set(drawn) == {wanted}:
        return f"an arm is drawn for each {wanted}"
    if wanted not in drawn:
        return f"drawn by {' and '.join(sorted(drawn))}: nobody sends `{wanted}`"
    total = sum(drawn.values())
    others = ", ".join(f"{percent(drawn[kind] / total, 0)} by {kind}" for kind in sorted(drawn) if kind != wanted)
    return f"an arm is drawn for each {wanted}; {others}, because those requests have no `{wanted}`"


def slot_sentences(
    slots: Collection[str],
    *,
    num_engines: int,
    is_enabled: bool = True,
    has_proved: bool = False,
    has_front: bool = False,
) -> list[str]:
    """What the train lacks because no engine has a slot for it; empty: nothing.

    `is_enabled`: [train] enabled. `has_proved`: there was a train already, so a version never goes live because a slot is missing.
    `has_front`: a provider has a share of the users.
    """
    if not is_enabled:
        return ["[train] enabled is false: there is no train, and a version that passed the gate goes live at once."]
    if num_engines == 0:
        return ["No engine has announced itself in the last seconds, so nothing is known about its slots."]
    lacks = []
    if "canary" not in slots and has_proved:
        lacks.append(
            "No engine has a canary slot now: versions that pass the gate wait for one, and none goes live unproven. If it was removed "
            "for good, write enabled = false into [train] and restart release; to let one version through: millrace policy promote."
        )
    elif "canary" not in slots:
        lacks.append(
            "No engine has a canary slot: there is no train, and a version that passed the gate goes live at once."
            + (" The provider keeps its users: add a slot (--slots live,candidate,canary)." if has_front else "")
        )
    if "learning" not in slots:
        lacks.append("No engine has a learning slot: the trainer learns only from the live version and the canary.")
    if "holdout" not in slots:
        lacks.append("No engine has a hold-out slot: the lift over the base cannot be measured.")
    return lacks


def side_sentences(sides: Mapping[str, Side], arms: Mapping[str, Assignment]) -> list[str]:
    """Price and latency beside quality: a provider in front, and the own versions. Empty: no provider stood in front."""
    if PROVIDER not in arms:
        return []
    own = 1.0 - shares_of(arms).get(PROVIDER, 0.0)
    total = sum(side.num for side in sides.values())
    lines = [f"By the draw {percent(own)} of the users get own versions, the others the provider."]
    for name, side in sides.items():
        if not side.num:
            continue
        accepted, whose = accept_rate(side.rewards), "The provider" if name == PROVIDER else "Own versions"
        says = [f"{whose}: {side.num:,} of the newest {total:,} answers"]
        says += [] if accepted is None else [f"{percent(accepted)} accepted of {len(side.rewards):,} labelled"]
        if side.costs and accepted:
            says.append(f"${sum(side.costs) / len(side.costs) / accepted:.3g} an accepted answer")
        if side.seconds:
            half, most = (quantile(sorted(side.seconds), part) for part in (0.5, 0.95))
            says.append(f"{seconds(half)} in the middle, {seconds(most)} for the slowest twentieth")
        lines.append(f"{'; '.join(says)}.")
    return lines


def hold_sentence(hold: Hold) -> str:
    """What an operator holds, by whom and why; its end is a time, which the page adds."""
    what = "Frozen" if hold.version is None else f"Everybody is pinned to {version(hold.version)}"
    return f"{what}: nothing moves by itself. {hold.writer}: {hold.reason}"


def budget_sentence(levels: Sequence[float], budget: Mapping[str, BudgetShown]) -> str:
    """What the trains of a year may cost: the chance of any false rollback among them; and what may still be spent."""
    if not levels:
        return "No train has left in the last year."
    chance = 1.0 - math.prod(1.0 - level for level in levels)
    trains = "1 train" if len(levels) == 1 else f"{len(levels):,} trains"
    said = (
        f"{trains} in the last year: the chance that any of them rolled back a version that was not worse is at most "
        f"{percent(chance)}, {percent(levels[0], 2)} for the newest."
    )
    return " ".join([said, *(left_sentence(part, shown) for part, shown in sorted(budget.items(), reverse=True))])


def left_sentence(part: str, shown: BudgetShown) -> str:
    """What one part of the year's budget may spend now."""
    whose = "trains" if part == TRAINS else "versions in the learning arm"
    return (
        f"Of the budget of {shown.per_year:g} false verdicts a year, {whose} may spend {shown.left:.2g} now; it refills evenly, and "
        "a version gets no more than is left."
    )
