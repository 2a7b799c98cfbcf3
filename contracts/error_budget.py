"""How many false verdicts a year may bring: each version that is put to the test spends its level from a budget.

The level of a version is the chance that it is revoked although it is no worse. So the expected number of false verdicts is at most the
sum of all levels, however the versions depend on each other. A tenth of a part may be spent at once and nine tenths refill over a year, so
no 365 days spend more than the part. A version gets its full level while enough is left, else what is left: trains never wait for it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from sqlalchemy import Connection, select, update

from contracts.errors import StaleWrite
from contracts.tables import error_budget
from contracts.tables.statements import insert_new

BudgetPart = Literal["trains", "learning"]
TRAINS: BudgetPart = "trains"
LEARNING: BudgetPart = "learning"
PARTS: dict[BudgetPart, float] = {TRAINS: 0.8, LEARNING: 0.2}
"""Of the budget. Versions in the learning arm are many: without a part of their own they would leave nothing to the trains."""
AT_ONCE = 0.1
YEAR_SECONDS = 365 * 86_400.0
LEAST_LEVEL = 1e-12
"""A version gets at least this: a version a second would spend .00003 of it in a year."""


class BudgetLeft(NamedTuple):
    """What is left of one part."""

    left: float
    at: float
    """UTC epoch seconds at which this was so."""


class BudgetLevel(NamedTuple):
    """The level that a version gets, and what it leaves."""

    level: float
    left: BudgetLeft


class BudgetShown(NamedTuple):
    """A part as a person sees it."""

    per_year: float
    """The whole budget, in false verdicts a year."""
    left: float


def refilled(part: BudgetPart, before: BudgetLeft | None, per_year: float, now: float) -> BudgetLeft:
    """What is left now. `before`: None, if nothing was ever spent; `per_year`: the budget, in false verdicts a year."""
    whole = PARTS[part] * per_year
    most = AT_ONCE * whole
    if before is None:
        return BudgetLeft(most, now)
    came = (1.0 - AT_ONCE) * whole * max(0.0, now - before.at) / YEAR_SECONDS
    return BudgetLeft(min(most, before.left + came), now)


def grant(part: BudgetPart, before: BudgetLeft | None, wanted: float, per_year: float, now: float) -> BudgetLevel:
    """The level of one more version: `wanted`, or what is left."""
    found = refilled(part, before, per_year, now)
    spent = min(wanted, found.left)
    return BudgetLevel(max(LEAST_LEVEL, spent), BudgetLeft(found.left - spent, now))


def spend(
    connection: Connection, policy: str, part: BudgetPart, name: str, *, wanted: float, per_year: float, now: float
) -> float:
    """Spend the level of a comparison; the same `name` as last goes on with its own. Raises StaleWrite: nothing is changed."""
    mine = (error_budget.c.policy == policy, error_budget.c.part == part)
    row = connection.execute(select(error_budget).where(*mine)).one_or_none()
    if row is not None and row.name == name:
        return float(row.level)
    granted = grant(part, None if row is None else BudgetLeft(row.left, row.at), wanted, per_year, now)
    values = {"per_year": per_year, "left": granted.left.left, "at": now, "name": name, "level": granted.level}
    if row is None:
        is_spent = insert_new(connection, error_budget, {"policy": policy, "part": part, "epoch": 1, **values})
    else:
        held = update(error_budget).where(*mine, error_budget.c.epoch == row.epoch)
        is_spent = connection.execute(held.values(epoch=row.epoch + 1, **values)).rowcount == 1
    if not is_spent:
        raise StaleWrite(f"another process spent of the error budget ({part}); it is looked at anew")
    return granted.level


def read(connection: Connection, policy: str, now: float) -> dict[str, BudgetShown]:
    """What each part has left, by the settings of its last version; a part of which nothing was ever spent is missing."""
    found = connection.execute(select(error_budget).where(error_budget.c.policy == policy)).all()
    return {
        row.part: BudgetShown(row.per_year, refilled(row.part, BudgetLeft(row.left, row.at), row.per_year, now).left)
        for row in found
        if row.part in PARTS
    }
