"""Measures a judge against labels.

In: labels. Out: figures. Waits for: the models. In production a pre-gate, a cache, a budget and a fallback surround the judge.
Here it is measured without them, and the fallback by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from contracts.tasks.judges import PAIRWISE_LEVELS, JudgeRule
from rewards.judges.agreement import PASSES, kappa_interval, sensitivity, specificity, wilson
from rewards.judges.judge import Judge
from rewards.judges.labels import Labelled, Labels
from rewards.judges.openers import MASTER_KEYS
from rewards.judges.questions import Reading
from rewards.judges.report import Figures
from rewards.judges.store import JudgeCosts
from rewards.verifiers.check import Answer

NUM_PROMPTS = 5
"""Number of prompts that every master key is tried with."""
Progress = Callable[[int, int], None]


class AdmissionSample(NamedTuple):
    """Answers to show to a judge."""

    rule: JudgeRule
    answers: Sequence[Answer]


def measure(rule: JudgeRule, labels: Labels, make: Callable[[JudgeRule], Judge], progress: Progress) -> Figures:
    """Show every label, pair and master key to a judge. `progress` is called with the answers done and their total."""
    started = time.monotonic()
    bare = rule.model_copy(
        update={
            "pregate": False,
            "sample_share": 1.0,
            "tokens_per_minute": None,
            "money_per_day": None,
            "fallback": None,
        }
    )
    pairwise = bare.model_copy(update={"protocol": "pairwise"})
    is_pairwise = rule.protocol == "pairwise"
    labelled = labels.pairs if is_pairwise else labels.items
    samples = [
        AdmissionSample(bare, [item.answer for item in labelled]),
        AdmissionSample(bare, keys_for(rule, labelled)),
        AdmissionSample(pairwise, () if is_pairwise else [pair.answer for pair in labels.pairs]),
    ]
    total = sum(len(sample.answers) for sample in samples)
    readings: list[list[Reading]] = []
    spent = JudgeCosts()
    for sample in samples:
        judge = make(sample.rule)
        size = max(1, judge.rule.concurrency * 2)
        found: list[Reading] = []
        for start in range(0, len(sample.answers), size):
            found += judge.read_all(sample.answers[start : start + size])
            progress(sum(map(len, readings)) + len(found), total)
        readings.append(found)
        spent = spent.plus(judge.spent_in_all)
    judged, keys, compared = readings
    return _figures(
        bare, labelled, (judged, keys, judged if is_pairwise else compared), spent, time.monotonic() - started
    )


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
                siblings = (_better_of(item),) if rule.protocol == "pairwise" else ()
                answers.append(item.answer._replace(text=key, siblings=siblings))
    return answers


def _better_of(pair: Labelled) -> str:
    return pair.answer.text if PAIRWISE_LEVELS[pair.level] != "second" else pair.answer.siblings[0]


def _figures(
    rule: JudgeRule,
    labelled: Sequence[Labelled],
    readings: tuple[list[Reading], list[Reading], list[Reading]],
    spent: JudgeCosts,
    seconds: float,
) -> Figures:
    judged, keys, compared = readings
    last = len(rule.scale) - 1
    both = [
        (item.level, reading.check.value)
        for item, reading in zip(labelled, judged, strict=True)
        if reading.check.value is not None
    ]
    levels, values = [level for level, _ in both], [value for _, value in both]
    verdicts = [round(value * last) for value in values]
    truths = [level / last for level in levels]
    of_kappa = (levels, verdicts, last + 1)
    passed = [reading.check.value >= PASSES for reading in keys if reading.check.value is not None]
    all_readings = [*judged, *keys, *(compared if compared is not judged else [])]
    pairs, flips = sum(item.num_pairs for item in compared), sum(item.num_flips for item in compared)
    return Figures(
        num_labels=len(labelled),
        answered=len(both) / len(labelled),
        unparsable=sum(item.fate in {"unparsable", "provoked"} for item in all_readings) / len(all_readings),
        kappa=kappa_interval(*of_kappa) if both else None,
        weighted_kappa=kappa_interval(*of_kappa, weighted=True) if both else None,
        sensitivity=sensitivity(truths, values),
        specificity=specificity(truths, values),
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
