"""What the answers of a train say now: every metric of every task, the sample ratio, silence. Pure.

    Answers ─▶ Strata: who counts, in which stratum ─▶ less the strangers ─▶ a Contrast per task ─▶ Difference per metric ─▶ verdict and sentence
                       ├▶ units per stage ─▶ sample ratio
                       └▶ answers per unit ─▶ are records lost, or do people stay away?

Fast facts count at once. A reward counts when its answer is old enough (`known_until`), as it was known at that age, in both arms alike;
answers that our own graders failed on are left out, and half hours in which they failed on many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.release.train.answers import UNSCORED, Answers, TaskRule, known_until
from pipelines.release.train.compare import Contrast, Floats, adjusted
from pipelines.release.train.metrics import ANSWERS, GUARDRAILS, PRIMARY, RESPONSE, TOKENS, Levels, canary_level, levels
from pipelines.release.train.parties import others_of
from pipelines.release.train.sequences import UnitRatio, expected_share, units_for_ratio
from pipelines.release.train.strata import Mask, Standing, Strata
from pipelines.release.train.verdicts import LEAST_UNITS, POWER, Question, fact_of, needed_units
from pipelines.release.train.words import in_words, promise
from runtime.train_settings import TrainSettings

ALL_TASKS = "all tasks"
RARE = 0.1
"""A task with a smaller share of the canary's answers need not be proven: it must only not be worse."""
OUTAGE_SHARE, _OUTAGE_ANSWERS = 0.2, 4
"""Graders fail: on more than this share of an arm's answers in one stratum of time, and on at least so many."""
_NO_CHANCE = 1e-4

Assessment = Mapping[str, Any]
"""What the answers say, as JSON: stored in the train's row, read by the page."""


class _Part(NamedTuple):
    """The answers of one task, or of all."""

    name: str
    rows: NDArray[np.int64]
    has_primary: bool
    is_required: bool


def assess(
    answers: Answers, tasks: Mapping[str, TaskRule], settings: TrainSettings, now: float, standing: Standing
) -> Assessment:
    """Compare canary and live. Answers from before `standing.started_at` or from the future are left out, by name."""
    seen = Strata(answers, tasks, settings, now, standing)
    harmed = seen.leave_out_strangers()
    num_primaries, pooled = sum(rule.has_primary for rule in tasks.values()), len(tasks) > 1
    allowed = levels(
        canary_level(settings),
        num_tasks=len(tasks) + pooled,
        num_primaries=num_primaries + (pooled and num_primaries > 0),
    )
    parts = _parts(seen, tasks)
    metrics = [fact for part in parts for fact in _part_facts(seen, part, allowed)]
    if parts:
        # A unit of which only some records are lost is missing in no sample ratio.
        each = Question(ANSWERS, parts[-1].name, ANSWERS.better, allowed.guardrail, is_required=True)
        metrics.append(_fact(seen, each, *seen.visits()))
    facts: dict[str, Any] = {
        "at": now,
        "num_canary_units": seen.num_units[0],
        "num_control_units": seen.num_units[1],
        "num_stage_units": seen.num_stage_units,
        "num_aged_units": seen.num_aged_units if num_primaries else None,
        "newest_at": seen.newest_at,
        "unit_kinds": seen.unit_kinds,
        "metrics": metrics,
        "sample_ratio": _ratio_fact(seen.sample_ratio(), settings, seen.rest_share),
        "left_out": seen.left_out,
        "harmed": harmed,
        "harmed_since": standing.harmed_since if harmed else None,
        "harmed_until": max(standing.stage_at, standing.harmed_since) + settings.harmed_seconds if harmed else None,
        "guardrails_only": not num_primaries,
        "first": _first(settings, allowed, has_primary=num_primaries > 0),
        "age_seconds": max(
            (2.0 * known_until(0.0, rule.age_seconds) for rule in tasks.values() if rule.has_primary), default=0.0
        ),
    }
    facts["stage_ready_at"] = _ready_at(standing, settings, facts)
    return facts | {"says": in_words(facts, settings), "promise": promise(facts, settings)}


def _ratio_fact(ratio: UnitRatio, settings: TrainSettings, rest_share: float) -> dict[str, Any]:
    fact: dict[str, Any] = ratio._asdict()
    broken, proven = fact.pop("is_broken"), fact.pop("is_proven")
    last = expected_share(settings.stages[-1], settings.control_ratio, rest_share)
    needed = math.ceil(last * units_for_ratio(last, settings.tuned_units, POWER))
    return fact | {"verdict": "broken" if broken else "fine" if proven else "unknown", "needed_units": needed}


def _first(settings: TrainSettings, allowed: Levels, *, has_primary: bool) -> dict[str, int]:
    """Units of the canary before there are data: at most so many for rewards, and for the slowest of all metrics."""
    reward = needed_units(Question(PRIMARY, "", PRIMARY.better, allowed.primary, is_required=True), None, settings)
    guardrails = [
        needed_units(Question(metric, "", metric.better, allowed.guardrail, is_required=True), None, settings).to_prove
        for metric in GUARDRAILS.values()
    ]
    slowest = max([*guardrails, reward.to_prove] if has_primary else guardrails)
    return {"needed_units": reward.to_prove, "found_units": reward.to_find, "all_units": slowest}


def _parts(seen: Strata, tasks: Mapping[str, TaskRule]) -> list[_Part]:
    """Each task that has answers, and all together if there are several: many rare tasks are proven as a whole."""
    everything = np.flatnonzero(seen.counts)
    num = max(1, int(seen.all.is_canary[everything].sum()))
    parts = []
    for code, name in seen.tasks:
        rows = everything[seen.all.task[everything] == code]
        if len(rows):
            is_required = bool(seen.all.is_canary[rows].sum() >= RARE * num)
            parts.append(_Part(name, rows, tasks[name].has_primary, is_required))
    if len(tasks) > 1 and parts:
        parts.append(_Part(ALL_TASKS, everything, any(part.has_primary for part in parts), is_required=True))
    return parts


def _part_facts(seen: Strata, part: _Part, allowed: Levels) -> list[dict[str, Any]]:
    facts = []
    for metric, present, plan, values in seen.guardrails(part.rows):
        # A task without a reward: an answer that became much shorter is as suspicious as a longer one.
        better = "same" if metric.name == TOKENS and not part.has_primary else metric.better
        question = Question(metric, part.name, better, allowed.guardrail, part.is_required)
        facts.append(_fact(seen, question, plan, values, missing=_is_missing(seen, part.rows, present)))
    return [*_reward_facts(seen, part, allowed), *facts] if part.has_primary else facts


def _reward_facts(seen: Strata, part: _Part, allowed: Levels) -> list[dict[str, Any]]:
    questions = (
        Question(PRIMARY, part.name, PRIMARY.better, allowed.primary, part.is_required),
        Question(RESPONSE, part.name, RESPONSE.better, allowed.guardrail, part.is_required),
    )
    aged = part.rows[seen.is_aged[part.rows]]
    failed = seen.all.status[aged] == UNSCORED
    trouble = _trouble(seen, aged, failed)
    aged = aged[~failed & ~_outages(seen, aged, failed)]
    known, heard = seen.known(aged)
    spoken = aged[known]
    rewards = seen.all.reward[spoken]
    values = adjusted(rewards, seen.clusters()[spoken], seen.all.unit[spoken]) if len(spoken) else rewards
    missing = _is_missing(seen, aged, known)
    return [
        _fact(seen, questions[0], seen.plan(spoken), values, missing=missing, trouble=trouble),
        _fact(seen, questions[1], seen.plan(aged), heard, trouble=trouble),
    ]


def _fact(seen: Strata, question: Question, plan: Contrast, values: Floats, **said: Any) -> dict[str, Any]:
    """The verdict on one metric: it must hold without each party that is not most of the product."""
    is_log = question.metric.is_log
    asides = plan.compare_parties(values, is_log=is_log) if len(seen.parties.names) > 1 else []
    others = [aside.without for aside in others_of(asides)]
    return fact_of(question, plan.compare(values, is_log=is_log), seen.settings, others=others, **said)


def _is_missing(seen: Strata, rows: NDArray[np.int64], present: Mask) -> bool:
    """True if no unit of the canary has the value, although by live's share of them that is no chance."""
    is_canary = seen.all.is_canary[rows]
    if (present & is_canary).any() or not (present & ~is_canary).any():
        return False
    share = float(present[~is_canary].mean())
    num = np.count_nonzero(np.bincount(seen.all.unit[rows[is_canary]]))
    return bool(num >= LEAST_UNITS and (1.0 - share) ** num < _NO_CHANCE)


def _outages(seen: Strata, rows: NDArray[np.int64], failed: Mask) -> Mask:
    """The answers from times in which our graders failed on many answers of either arm."""
    if not failed.any():
        return failed
    bucket = seen.bucket[rows]
    out = np.zeros(int(bucket.max()) + 1, np.bool_)
    for arm in (seen.all.is_canary[rows], ~seen.all.is_canary[rows]):
        num, bad = (np.bincount(bucket[mask], minlength=len(out)) for mask in (arm, arm & failed))
        out |= (bad >= _OUTAGE_ANSWERS) & (bad > OUTAGE_SHARE * num)
    return out[bucket]


def _trouble(seen: Strata, rows: NDArray[np.int64], failed: Mask) -> str:
    """Why rewards cannot be believed: our graders fail on one arm more than on the other, or fail now."""
    if not failed.any():
        return ""
    is_canary = seen.all.is_canary[rows]
    shares = [float(failed[arm].mean()) if arm.any() else 0.0 for arm in (is_canary, ~is_canary)]
    few = min(int(is_canary.sum()), int((~is_canary).sum())) < LEAST_UNITS
    if not few and abs(shares[0] - shares[1]) > seen.settings.guardrail_margin:
        return f"graders failed on {shares[0]:.0%} of the canary's answers and {shares[1]:.0%} of live's"
    newest = seen.bucket[rows] == seen.bucket[rows].max()
    if _outages(seen, rows, failed)[newest].any():
        return (
            f"graders fail now, on {float(failed[newest].mean()):.0%} of the answers: no verdict until they work again"
        )
    return ""


def _ready_at(standing: Standing, settings: TrainSettings, facts: Mapping[str, Any]) -> float | None:
    """When the stage may end if units keep coming as they did; None if none came."""
    num_stage_units, ratio = facts["num_stage_units"], facts["sample_ratio"]
    passed = facts["at"] - standing.stage_at
    if standing.stage < 0 or passed <= 0.0 or not num_stage_units:
        return None
    wanted = settings.stage_units - num_stage_units
    if standing.stage == len(settings.stages) - 1:
        unproven = [fact for fact in facts["metrics"] if fact["required"] and fact["verdict"] != "proven"]
        wanted = max([wanted, *(fact["needed_units"] - fact["num_canary"] for fact in unproven)])
        if ratio["verdict"] != "fine":
            wanted = max(wanted, ratio["needed_units"] - num_stage_units)
    ready_at: float = facts["at"] + max(0, wanted) * passed / num_stage_units
    return max(standing.stage_at + settings.stage_seconds, ready_at)
