"""The headline figures at the top of the Loop page and of a tenant's page, ready to print. Pure.

A new figure is one `Tile` here: the pages draw whatever tiles the state contains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from contracts.assignments import CANDIDATE, LIVE
from contracts.ledger import PENDING
from services.dashboard.formatting import count, figure, percent, version
from services.dashboard.live.answers import accept_rate, mean
from services.dashboard.live.identities import Identities, Identity
from services.dashboard.live.queries import LoopRows, ScoredAnswer

NUM_LATEST = 200
"""Labelled answers, newest first, that the averages are made of."""


class Tile(msgspec.Struct, frozen=True):
    """One figure: its name, its value as text, and a line that explains it."""

    name: str
    value: str
    detail: str
    mood: Literal["", "good", "bad"] = ""


def loop_tiles(rows: LoopRows, accuracies: Mapping[int, float | None], identities: Identities) -> list[Tile]:
    """The figures of the whole loop. `accuracies`: version to its accuracy on the sentinels."""
    live, candidate = rows.version_of(LIVE), rows.version_of(CANDIDATE)
    base = accuracies.get(0)
    balanced = not identities.generations.problems and not identities.signals.problems
    return [
        Tile("Live", version(live), "no candidate" if candidate is None else f"{version(candidate)} is being judged"),
        *_user_tiles(rows.scores),
        Tile(
            "Sentinel accuracy",
            percent(accuracies.get(live) if live is not None else None),
            "not judged yet" if base is None else f"base {percent(base)}",
        ),
        _trained_tile(identities.generations),
        Tile("Ledger", "balanced", "every answer and signal has a state", "good")
        if balanced
        else Tile("Ledger", "unbalanced", "see the alarm above", "bad"),
    ]


def tenant_tiles(
    live: int | None, answers: Sequence[ScoredAnswer], generations: Identity, signals: Identity
) -> list[Tile]:
    """The figures of one tenant. `answers`: scored ones, newest first."""
    return [
        Tile("Live", version(live), "what answers your users"),
        *_user_tiles(answers),
        _trained_tile(generations),
        Tile("Answers", count(generations.total), "logged"),
        Tile("Signals", count(signals.total), "received"),
    ]


def _user_tiles(answers: Sequence[ScoredAnswer]) -> list[Tile]:
    labelled = [row.reward for row in answers if row.reward is not None][:NUM_LATEST]
    labels = f"of the last {count(len(labelled))} labelled" if labelled else "no labels yet"
    return [
        Tile("Users accept", percent(accept_rate(labelled)), labels),
        Tile("Mean reward", figure(mean(labelled), 2), "same answers, 0 to 1" if labelled else labels),
    ]


def _trained_tile(generations: Identity) -> Tile:
    states = dict(zip(generations.names, generations.counts, strict=True))
    off = states["off_support"]
    named = f"; {percent(off / generations.total)} off support" if off else ""
    return Tile("Trained on", count(states["trained"]), f"answers; {count(states[PENDING])} pending{named}")
