"""The verdict on one metric of one task, and its sentence. Pure.

worse      worse beyond chance at the metric's level; a guardrail must also have lost more than its margin, as far as can be seen
proven     not worse by more than the margin, at the level of a proof
fine       neither, so far
unknown    too few units, or our own graders failed
missing    live has the metric and the canary does not
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pipelines.release.train.compare import Difference
from pipelines.release.train.metrics import HEARD, REWARD, Better, Metric, margin_of
from pipelines.release.train.sequences import one_sided, time_for
from runtime.train_settings import TrainSettings

MetricVerdict = Literal["fine", "worse", "proven", "unknown", "missing"]
LEAST_UNITS = 20
"""Of each arm, before anything is concluded from them."""
POWER = 0.95
"""With which the promised number of units proves that a version which is the same is not worse."""
_FAST_PART, _LEAST_TUNED = 20.0, 20.0
"""Fast facts are decided early: their sequences are narrowest at this part of the settings' units."""
_PERCENT = 100.0
_LARGEST_SPREAD = 0.25
"""Of a number in [0, 1]; for logarithms, 1."""


class Question(NamedTuple):
    """One comparison to be made."""

    metric: Metric
    task: str
    better: Better
    level: float
    """Of a false `worse`."""
    is_required: bool
    """False: the task is too rare to wait for its proof."""


class MetricBounds(NamedTuple):
    """What a difference shows, in the metric's own scale."""

    low: float
    high: float
    is_worse: bool
    is_proven: bool


def bounds_of(question: Question, found: Difference, settings: TrainSettings) -> MetricBounds:
    """The interval at the level of a proof on each side, and what follows."""
    metric, tuned = question.metric, _tuned(question.metric, settings)
    margin = _own_scale(metric, margin_of(metric, settings))
    half = math.sqrt(found.variance) * one_sided(found.time, settings.proof_level, tuned)
    low, high = found.difference - half, found.difference + half
    losses = {"higher": (-found.difference,), "lower": (found.difference,)}.get(
        question.better, (found.difference, -found.difference)
    )
    loss = max(losses)
    is_share = metric.name != REWARD and not metric.is_log
    seen = found.variance_if_equal if is_share else max(found.variance, found.variance_if_equal)
    needed = 0.0 if metric.name == REWARD else margin
    level = question.level / len(losses)
    is_worse = loss > needed and loss > math.sqrt(seen) * one_sided(2.0 * found.spread / seen, level, tuned)
    # A reward that lies below live's, as it seems, must not arrive while more answers can still tell.
    is_doubtful = metric.name == REWARD and high < 0.0
    return MetricBounds(low, high, is_worse, is_proven=loss + half < margin and not is_doubtful)


class NeededUnits(NamedTuple):
    """Units of the canary that suffice with probability `POWER`, if the arms keep their proportion."""

    to_prove: int
    """That a version which is the same is not worse by the margin."""
    to_find: int
    """A loss as large as the margin."""


def needed_units(
    question: Question, found: Difference | None, settings: TrainSettings, others: Sequence[Difference | None] = ()
) -> NeededUnits:
    """As the data say; before there are any, the most that it can be. `others`: see `fact_of`."""
    metric = question.metric
    spread = found.spread if found is not None else 1.0 if metric.is_log else _LARGEST_SPREAD
    margin, tuned = _own_scale(metric, margin_of(metric, settings)), _tuned(metric, settings)
    per_time = 1.0
    if found is not None:
        per_time = found.canary_units / min(one.time for one in (found, *others) if one is not None)
    times = (
        time_for(margin, spread, level=level, tuned=tuned, power=POWER)
        for level in (settings.proof_level, question.level)
    )
    return NeededUnits(*(math.ceil(per_time * time) for time in times))


def fact_of(
    question: Question,
    found: Difference | None,
    settings: TrainSettings,
    *,
    others: Sequence[Difference | None] = (),
    missing: bool = False,
    trouble: str = "",
) -> dict[str, Any]:
    """The verdict as JSON.

    `others`: the same without one of those who asked, for each: the verdict must hold there too. `trouble`: why nothing can be
    concluded, in words.
    """
    metric, needed = question.metric, needed_units(question, found, settings, others)
    fact: dict[str, Any] = dict.fromkeys(("canary", "live", "difference", "low", "high"))
    fact |= {"name": metric.name, "task": question.task, "kind": "primary" if metric.name == REWARD else "guardrail"}
    fact |= {"better": question.better, "margin": margin_of(metric, settings), "required": question.is_required}
    fact |= {"needed_units": needed.to_prove, "found_units": needed.to_find, "num_canary": 0, "num_live": 0}
    fact |= {"blames_version": metric.blames_version, "trouble": trouble, "verdict": "unknown"}
    if found is not None:
        fact |= {"num_canary": found.canary_units, "num_live": found.live_units}
        bounds = bounds_of(question, found, settings)
        fact["verdict"] = _verdict_of(question, [found, *others], settings)
        limit = math.inf if metric.is_log else 1.0
        shown = (found.difference, max(bounds.low, -limit), min(bounds.high, limit))
        fact |= dict(zip(("difference", "low", "high"), (_natural(metric, value) for value in shown), strict=True))
        means = {"live": found.live, "canary": found.live + found.difference}
        fact |= {name: _natural_mean(metric, mean) for name, mean in means.items()}
        if min(found.canary_units, found.live_units) < LEAST_UNITS or trouble:
            fact["verdict"] = "unknown"
    if missing:
        fact["verdict"] = "missing"
    return fact | {"says": _sentence(question, fact, trouble)}


def _verdict_of(question: Question, found: Sequence[Difference | None], settings: TrainSettings) -> MetricVerdict:
    bounds = [None if one is None else bounds_of(question, one, settings) for one in found]
    if all(one is not None and one.is_worse for one in bounds):
        return "worse"
    return "proven" if all(one is not None and one.is_proven for one in bounds) else "fine"


def _sentence(question: Question, fact: Mapping[str, Any], trouble: str) -> str:
    metric = question.metric
    about = f"{metric.label.capitalize()} ({fact['task']})"
    if fact["verdict"] == "missing":
        return f"{about}: live has them, the canary does not."
    if trouble:
        return f"{about}: {trouble}."
    if fact["difference"] is None or fact["verdict"] == "unknown":
        return f"{about}: too few answers yet."
    unit, scale = ("%", _PERCENT) if metric.is_log else (" points", _PERCENT)
    low, middle, high = (f"{scale * fact[name]:+.1f}" for name in ("low", "difference", "high"))
    margin = f"{scale * fact['margin']:g}{unit}"
    harmless = "no harm seen, not proven yet" if fact["required"] else "no harm seen; too rare to wait for a proof"
    seems_worse = fact["name"] == REWARD and fact["high"] < 0.0
    end = {
        "worse": "worse beyond chance",
        "proven": f"not worse by more than {margin}" if fact["better"] != "same" else f"the same within {margin}",
        "fine": "it seems worse, but that may still be chance" if seems_worse else harmless,
    }[fact["verdict"]]
    if fact["verdict"] == "worse" and fact["low"] <= 0.0 <= fact["high"]:
        # The interval has the spread as seen; the verdict has that of equal versions, behind which few faults cannot hide.
        return f"{about}: {middle}{unit}, {end}: equal versions would differ so much with a chance below {question.level:.2g}."
    return f"{about}: {middle}{unit} [{low}, {high}], {end}."


def _tuned(metric: Metric, settings: TrainSettings) -> float:
    part = 1.0 if metric.name in {REWARD, HEARD} else _FAST_PART
    return max(_LEAST_TUNED, settings.tuned_units / part)


def _own_scale(metric: Metric, natural: float) -> float:
    return math.log1p(natural) if metric.is_log else natural


def _natural(metric: Metric, value: float) -> float:
    """A difference: of logarithms, the ratio - 1."""
    return math.expm1(value) if metric.is_log else value


def _natural_mean(metric: Metric, value: float) -> float:
    """Of logarithms, the geometric mean, less what was added; what is estimated of a share stays a share."""
    return max(0.0, math.exp(value) - metric.added) if metric.is_log else min(1.0, max(0.0, value))
