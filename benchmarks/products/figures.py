"""What the users of one run felt, and what the run did not reach. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from examples.demo.curves import acceptance_curve, base_acceptance, exploring_acceptance, last_acceptance

MOST_POINTS = 4.0
"""By which honest users may accept less than the held-out accuracy."""
Clients = Sequence[Mapping[str, Any]]


def felt(clients: Clients, verdicts: Sequence[tuple[float, float]], seconds: float, share: float) -> dict[str, Any]:
    """What users accepted: of the base's answers, over time, and in the last fifth.

    Args:
        clients: the users' own list.
        verdicts: time and accuracy of each accepted verdict, in order.
        seconds: how long the users worked.
        share: of the answers that explore.
    """
    honest = [item for item in clients if item.get("honest", True)]
    kinds = [item["kind"] for item in clients]
    return {
        "accepted_base": base_acceptance(clients),
        "accepted_base_honest": base_acceptance(honest),
        "accepted_last": last_acceptance(clients, seconds)[0],
        "accepted_last_honest": last_acceptance(honest, seconds)[0],
        "exploring_honest": exploring_acceptance(honest, share, seconds),
        "answers": kinds.count("generation"),
        "signals": kinds.count("signal"),
        "failed_requests": kinds.count("failed"),
        "failures": [item["what"] for item in clients if item["kind"] == "failed"][:5],
        "curve": [item._asdict() for item in acceptance_curve(honest, verdicts)],
    }


def points_below(held_out: float, accepted: float | None) -> float | None:
    """By how many points users accept less than the held-out accuracy says; None if nobody spoke."""
    return None if accepted is None else 100 * (held_out - accepted)


def missed_by(found: Mapping[str, Any], *, quick: bool) -> list[str]:
    """What one product did not reach. A quick run learns little: it must only lose nothing."""
    met = {
        "no failed request": found["failed_requests"] == 0,
        "a balanced ledger": found["ledger_balanced"],
        "signals": found["signals"] > 0,
    }
    if not quick:
        points = found["points_below_held_out_honest"]
        met[f"at most {MOST_POINTS:g} points below held-out"] = points is not None and points <= MOST_POINTS
        met["users accept more than of the base"] = (found["accepted_last"] or 0.0) > (found["accepted_base"] or 0.0)
    return [goal for goal, is_met in met.items() if not is_met]
