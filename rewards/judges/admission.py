"""Measures a judge against labels. In: labels. Out: figures; formulas with their sources. Waits for: the models.

In production a pre-gate, a cache, a budget and a fallback surround the judge. Here it is measured without them, and the
fallback by itself. A value of at least one half passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from contracts.intervals import share_interval
from contracts.tasks.judges import PAIRWISE_LEVELS, JudgeRule
from rewards.judges.budget import JudgeCosts
from rewards.judges.judge import Judge
from rewards.judges.labels import Labelled, Labels
from rewards.judges.pregate import MASTER_KEYS
from rewards.judges.questions import Reading
from rewards.judges.report import Figure, Figures
from rewards.verifiers.check import Answer

PASSES = 0.5
NUM_PROMPTS = 5
"""Number of prompts that every master key is tried with."""
_NUM_RESAMPLES = 2000
_BARE = {"pregate": False, "sample_share": 1.0, "tokens_per_minute": None, "money_per_day": None, "fallback": None}
Progress = Callable[[int, int], None]


def measure(rule: JudgeRule, labels: Labels, make: Callable[[JudgeRule], Judge], progress: Progress) -> Figures:
    """Show every label, pair and master key to a judge. `progress` is called with the answers done and their total."""
    started = time.monotonic()
    bare = rule.model_copy(update=_BARE)
    is_pairwise = rule.protocol == "pairwise"
    labelled = labels.pairs if is_pairwise else labels.items
    samples = [
        (bare, [item.answer for item in labelled]),
        (bare, keys_for(rule, labelled)),
        (
            bare.model_copy(update={"protocol": "pairwise"}),
            [] if is_pairwise else [pair.answer for pair in labels.pairs],
        ),
    ]
    total, num_done = sum(len(answers) for _, answers in samples), 0
    readings: list[list[Reading]] = []
    spent = JudgeCosts()
    for sample_rule, answers in samples:
        judge = make(sample_rule)
        size = max(1, judge.rule.concurrency * 2)
        readings.append([])
        for start in range(0, len(answers), size):
            found = judge.read_all(answers[start : start + size])
            readings[-1] += found
            num_done += len(found)
            progress(num_done, total)
        spent = spent.plus(judge.spent_in_all)
    return _figures(bare, labelled, readings, spent, time.monotonic() - started)


def keys_for(rule: JudgeRule, labelled: Sequence[Labelled]) -> list[Answer]:
    """Answers in which a master key replaces the judged text, for some of the prompts."""
    prompts = {str(item.answer.messages): item for item in labelled}
    answers = []
    for item in list(prompts.values())[:NUM_PROMPTS]:
        for key in MASTER_KEYS:
            if rule.about == "follow_up":
                # A blank follow-up counts as no message, so the judge would not be asked.
                metadata = {**item.answer.metadata, "follow_up": key if key.strip() else "."}
                answers.append(item.answer._replace(metadata=metadata))
            else:
                # Compared with a good answer: against a bad one, a tie would be fair.
                is_second = rule.protocol == "pairwise" and PAIRWISE_LEVELS[item.level] == "second"
                better = item.answer.siblings[0] if is_second else item.answer.text
                siblings = (better,) if rule.protocol == "pairwise" else ()
                answers.append(item.answer._replace(text=key, siblings=siblings))
    return answers


def _figures(
    rule: JudgeRule, labelled: Sequence[Labelled], readings: Sequence[list[Reading]], spent: JudgeCosts, seconds: float
) -> Figures:
    judged, keys, compared = readings
    last = len(rule.scale) - 1
    both = [
        (item.level, reading.check.value)
        for item, reading in zip(labelled, judged, strict=True)
        if reading.check.value is not None
    ]
    levels, values = [level for level, _ in both], [value for _, value in both]
    of_kappa = (levels, [round(value * last) for value in values], last + 1)
    truths = [level / last for level in levels]
    passed = [reading.check.value >= PASSES for reading in keys if reading.check.value is not None]
    all_readings = [*judged, *keys, *compared]
    in_pairs = judged if rule.protocol == "pairwise" else compared
    pairs, flips = sum(item.num_pairs for item in in_pairs), sum(item.num_flips for item in in_pairs)
    return Figures(
        num_labels=len(labelled),
        answered=len(both) / len(labelled),
        unparsable=sum(item.fate in {"unparsable", "provoked"} for item in all_readings) / len(all_readings),
        kappa=kappa(*of_kappa),
        weighted_kappa=kappa(*of_kappa, weighted=True),
        sensitivity=agreed(truths, values, passes=True),
        specificity=agreed(truths, values, passes=False),
        num_good=sum(truth >= PASSES for truth in truths),
        num_bad=sum(truth < PASSES for truth in truths),
        num_pairs=pairs,
        order_flips=wilson(flips, pairs),
        num_master_keys=len(passed),
        master_keys=wilson(sum(passed), len(passed)),
        num_calls=spent.num_calls,
        num_tokens=spent.num_tokens,
        money=round(spent.money, 6),
        seconds=round(seconds, 3),
    )


def kappa(
    labels: Sequence[int], verdicts: Sequence[int], num_levels: int, *, weighted: bool = False, seed: int = 0
) -> Figure | None:
    """Agreement beyond chance: (p_o - p_e) / (1 - p_e), Cohen 1960; None if agreement by chance is already perfect.

    Weighted: a disagreement counts by the distance of the levels (linear weights, Cohen 1968). Levels are 0 .. K-1. Bounds:
    percentile bootstrap (Efron 1979) over resampled items, so tables are drawn multinomially.
    """
    table = np.zeros((num_levels, num_levels))
    np.add.at(table, (np.asarray(labels, dtype=int), np.asarray(verdicts, dtype=int)), 1.0)
    value = _kappas(table[None], weighted)[0]
    if value is None:
        return None
    total = int(table.sum())
    dice = np.random.default_rng(seed)
    drawn = dice.multinomial(total, (table / total).ravel(), size=_NUM_RESAMPLES).reshape(-1, *table.shape)
    found = [other for other in _kappas(drawn.astype(float), weighted) if other is not None]
    low, high = np.quantile(found, [0.025, 0.975]) if found else (value, value)
    return Figure(value=value, low=float(low), high=float(high))


def wilson(num: int, total: int) -> Figure | None:
    """A share with its score interval (Wilson 1927); None if `total` is 0."""
    if total == 0:
        return None
    low, high = share_interval(num / total, total)
    return Figure(value=num / total, low=low, high=high)


def agreed(labels: Sequence[float], verdicts: Sequence[float], *, passes: bool) -> Figure | None:
    """Of the answers with a passing label, the share that the judge passes too (sensitivity, q1); or the same of failing ones (specificity, q0)."""
    found = [
        (verdict >= PASSES) == passes
        for label, verdict in zip(labels, verdicts, strict=True)
        if (label >= PASSES) == passes
    ]
    return wilson(sum(found), len(found))


def _kappas(tables: np.ndarray, weighted: bool) -> list[float | None]:
    """Kappa of each table [N, K, K]; 1 - sum(w o) / sum(w e), with w the weights of disagreement."""
    num_levels = tables.shape[1]
    levels = np.arange(num_levels)
    distance = np.abs(levels[:, None] - levels[None])
    weights = distance / max(1, num_levels - 1) if weighted else (distance > 0).astype(float)
    total = tables.sum(axis=(1, 2))
    expected = tables.sum(axis=2)[:, :, None] * tables.sum(axis=1)[:, None, :] / np.maximum(total, 1)[:, None, None]
    observed = (tables * weights).sum(axis=(1, 2))
    by_chance = (expected * weights).sum(axis=(1, 2))
    return [
        None if chance == 0 else float(1.0 - seen / chance) for seen, chance in zip(observed, by_chance, strict=True)
    ]
