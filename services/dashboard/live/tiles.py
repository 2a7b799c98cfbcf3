"""The headline figures at the top of the Loop page and of a tenant's page, ready to print. Pure.

A new figure is one `Tile` here: the pages draw whatever tiles the state contains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from contracts.assignments import CANDIDATE, LIVE
from contracts.intervals import share_interval
from contracts.ledger import PENDING
from contracts.version_history import BASE
from services.dashboard.averages import accept_rate, mean
from services.dashboard.formatting import MISSING, between, count, figure, percent, version
from services.dashboard.live.identities import Identities, Identity
from services.dashboard.live.queries import Costs, LoopRows, ScoredAnswer
from services.dashboard.live.timeline import Version
from services.provider import ProviderSettings

LEAST_FOR_RATE = 10
"""With fewer answers a rate says nothing, so the counts are shown."""
TOO_FEW = "too few"
NUM_LATEST = 200
"""Labelled answers, newest first, that the averages are made of."""


class Tile(msgspec.Struct, frozen=True):
    """One figure: its name, its value as text, and a line that explains it."""

    name: str
    value: str
    detail: str
    mood: Literal["", "good", "bad"] = ""


class FrontFigures(NamedTuple):
    """What stands in front, if a provider answers, and what its answers cost."""

    provider: ProviderSettings
    costs: Costs


def loop_tiles(
    rows: LoopRows, versions: Mapping[int, Version], identities: Identities, front: FrontFigures | None = None
) -> list[Tile]:
    """The figures of the whole loop."""
    live, candidate = rows.version_of(LIVE), rows.version_of(CANDIDATE)
    balanced = not any(identity.problems for identity in identities.by_kind.values())
    judged = "no candidate" if candidate is None else f"{version(candidate)} is being judged"
    ledger = Tile("Ledger", "balanced", "every answer and signal has a state", "good")
    if not balanced:
        ledger = Tile("Ledger", "unbalanced", "see the alarm above", "bad")
    if front is not None:
        by, cost = provider_tiles(front)
        answers = Tile("Answers", count(identities.generations.total), "logged")
        return [by, *_user_tiles(rows.scores), cost, answers, ledger]
    return [
        Tile("Live", version(live), judged),
        *_user_tiles(rows.scores),
        _sentinel_tile(versions.get(live) if live is not None else None, versions.get(BASE)),
        _trained_tile(identities.generations),
        ledger,
    ]


def provider_tiles(front: FrontFigures) -> list[Tile]:
    """Who answers, and what it costs that a user accepts an answer: with the answers that nobody accepted."""
    name, (rewards, num_known, dollars) = "Cost per accepted answer", front.costs
    by, accepted = _front_tile(front.provider), accept_rate(rewards)
    if not num_known:
        has_prices = front.provider.input_price is not None and front.provider.output_price is not None
        unknown = "no usage of labelled answers is known yet"
        return [by, Tile(name, MISSING, unknown if has_prices else "set input_price and output_price in [provider]")]
    each = dollars / num_known
    said = f"${each:.3g} an answer, of the last {count(len(rewards))} labelled"
    said += f"; {count(len(rewards) - num_known)} without a known cost" if num_known < len(rewards) else ""
    return [by, Tile(name, f"${each / accepted:.3g}" if accepted else MISSING, said)]


def tenant_tiles(
    live: int | None,
    answers: Sequence[ScoredAnswer],
    generations: Identity,
    signals: Identity,
    provider: ProviderSettings | None = None,
) -> list[Tile]:
    """The figures of one tenant. `answers`: scored ones, newest first."""
    return [
        Tile("Live", version(live), "what answers your users") if provider is None else _front_tile(provider),
        *_user_tiles(answers),
        *([] if provider else [_trained_tile(generations)]),
        Tile("Answers", count(generations.total), "logged"),
        Tile("Signals", count(signals.total), "received"),
    ]


def _user_tiles(answers: Sequence[ScoredAnswer]) -> list[Tile]:
    labelled = [row.reward for row in answers if row.reward is not None][:NUM_LATEST]
    num, accepted, reward = len(labelled), accept_rate(labelled), mean(labelled)
    if accepted is None or reward is None:
        return [Tile("Users accept", MISSING, "no labels yet"), Tile("Mean reward", MISSING, "no labels yet")]
    if num < LEAST_FOR_RATE:
        said = f"{round(accepted * num)} of {num} labelled answers; a rate needs {LEAST_FOR_RATE}"
        return [Tile("Users accept", TOO_FEW, said), Tile("Mean reward", TOO_FEW, "the same answers")]
    low, high = share_interval(reward, num)
    return [
        Tile("Users accept", percent(accepted), f"{between(accepted, num)}, of the last {count(num)} labelled"),
        Tile("Mean reward", figure(reward, 2), f"{figure(low, 2)} to {figure(high, 2)}, same answers, 0 to 1"),
    ]


def _front_tile(provider: ProviderSettings) -> Tile:
    return Tile("Answered by", provider.model, f"{provider.origin}; {provider.terms}")


def _sentinel_tile(live: Version | None, base: Version | None) -> Tile:
    accuracy = live.accuracy if live is not None else None
    if live is None or accuracy is None:
        return Tile("Sentinel accuracy", MISSING, "not judged yet")
    says = [f"{between(accuracy, live.num_sentinels)}, of {count(live.num_sentinels)}"] if live.num_sentinels else []
    says += [f"base {percent(base.accuracy)}"] if base is not None and base.accuracy is not None else []
    return Tile("Sentinel accuracy", percent(accuracy), "; ".join(says))


def _trained_tile(generations: Identity) -> Tile:
    states = dict(zip(generations.names, generations.counts, strict=True))
    off = states["off_support"]
    named = f"; {percent(off / generations.total)} off support" if off else ""
    return Tile("Trained on", count(states["trained"]), f"answers; {count(states[PENDING])} pending{named}")
