"""What a provider and an own model gave the users of a demo, side by side, from the users' own list. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from contracts.intervals import share_interval
from examples.demo.curves import positive_share
from examples.reservations.summary import percentile

OWN, PROVIDER = "own", "provider"
NUM_LAST = 200
"""Answers at the end, of which the own model must give its share."""
OWN_SHARE, MARGIN = 0.95, 0.03
"""What the own model must answer at the end; and how much rarer its answers may be accepted than the provider's."""


class ArmFigures(NamedTuple):
    """One of the two. None: nothing was measured."""

    answers: int
    num_signals: int
    accepted: float | None
    """Share of its signals that accept."""
    seconds_p50: float | None
    seconds_p95: float | None
    dollars_per_accepted: float | None
    """Its cost by the number of its answers that users accept, if those who are silent would accept as many."""


def own_share(clients: Sequence[Mapping[str, Any]]) -> float:
    """The share of the last answers that the own model gave; 0 without any."""
    last = _answers(clients)[-NUM_LAST:]
    return sum(not item["provided"] for item in last) / len(last) if last else 0.0


def first_shares(clients: Sequence[Mapping[str, Any]]) -> tuple[float | None, float | None]:
    """Seconds from the first answer to the own model's first one, and to the last one of the provider."""
    answers = _answers(clients)
    own, provided = ([item["at"] for item in answers if item["provided"] is by] for by in (False, True))
    begun = answers[0]["at"] if answers else 0.0
    return (round(own[0] - begun, 1) if own else None), (round(provided[-1] - begun, 1) if provided else None)


def arms_of(clients: Sequence[Mapping[str, Any]], dollars: Mapping[str, float]) -> dict[str, ArmFigures]:
    """Both arms. `dollars`: what all answers of each cost."""
    return {name: _figures(clients, name == PROVIDER, dollars[name]) for name in (PROVIDER, OWN)}


def _figures(clients: Sequence[Mapping[str, Any]], is_provided: bool, dollars: float) -> ArmFigures:
    answers = {item["key"]: item for item in _answers(clients) if item["provided"] is is_provided}
    signals = [item for item in clients if item["kind"] == "signal" and item["key"] in answers]
    accepted = positive_share(signals)
    waits = [item["seconds"] for item in answers.values()]
    cost = dollars / len(answers) / accepted if accepted else None
    return ArmFigures(len(answers), len(signals), accepted, percentile(waits, 0.5), percentile(waits, 0.95), cost)


def broken_goals(summary: Mapping[str, Any]) -> list[str]:
    """What a take-over must reach and did not, in words. What chance alone may do breaks nothing. `summary`: of the demo, with both arms."""
    share, last = summary["own_share"], summary["accepted_last"] or 0.0
    own, provider = (ArmFigures(**summary["arms"][name]) for name in (OWN, PROVIDER))
    before = provider.accepted or 0.0
    reached = {
        f"the own model gives {share:.1%} of the last {NUM_LAST} answers, less than {OWN_SHARE:.0%}": share
        >= OWN_SHARE,
        f"users accept {last:.1%} at the end, and accepted {before:.1%} of the provider's answers": share_interval(
            last, summary["num_last"]
        )[1]
        >= before - MARGIN,
        "an accepted answer of the own model costs no less than one of the provider": own.dollars_per_accepted
        is not None
        and own.dollars_per_accepted < (provider.dollars_per_accepted or 0.0),
    }
    return [what for what, is_reached in reached.items() if not is_reached]


def _answers(clients: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted((item for item in clients if item["kind"] == "generation"), key=lambda item: float(item["at"]))
