"""Converts what users did to scores, with the values that the task file gives.

The first signal with a value, in the order of the task file, decides (weight 1); of several with one name, the newest counts. That an
answer was shown decides only if there is no other; a signal that users are asked for, but that came unasked, only if nothing else came.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rapidfuzz.distance import Levenshtein

from contracts.records import Score, Signal
from contracts.tasks import Task

VERSION = 2
_MAX_COMPARED = 20_000


class About(NamedTuple):
    """The answer that the signals are about. `finished_at`: UTC epoch seconds."""

    text: str
    finished_at: float
    was_asked: bool = True
    """The app was told to ask the user for feedback, if the task asks at all."""


def score_signals(task: Task, about: About, signals: Iterable[Signal]) -> list[Score]:
    """One score, in the task's range of rewards, for each signal that has a value in the task.

    A signal less than `min_seconds` after the answer is taken for an accident: its score is unlabelled, not zero.
    """
    newest = {signal.name: signal for signal in sorted(signals, key=lambda item: (item.at, item.id))}
    grader = f"signal/{VERSION}#{task.hash}"
    scores: list[Score] = []
    is_decided = False
    for name, rule in task.ranked_signals if about.was_asked else task.ranked_unasked:
        signal = newest.get(name)
        if signal is None or not rule.is_worth_something(signal.value):
            continue
        if rule.min_seconds > 0 and (early := signal.at - about.finished_at) < rule.min_seconds:
            reason = f"{early:.1f} s after the answer, sooner than min_seconds: taken as a mistake"
            scores.append(Score(name=name, grader=grader, value=None, weight=0.0, status="unlabelled", reason=reason))
            continue
        value, reason = rule.reward_of(signal.value), ""
        if rule.depends_on_answer:
            kept = kept_share(about.text, signal.correction if signal.correction is not None else str(signal.value))
            value, reason = kept - rule.threshold, f"{kept:.0%} kept"
        weight = 0.0 if is_decided else 1.0
        scores.append(Score(name=name, grader=grader, value=value, weight=weight, reason=reason))
        is_decided = True
    return scores


def kept_share(answer: str, edited: str) -> float:
    """The share of an answer that survived an edit, in [0, 1]: 1 - Levenshtein distance / length of the longer text.

    Only the beginnings of very long texts are compared, since the distance takes quadratic time.
    """
    return Levenshtein.normalized_similarity(answer[:_MAX_COMPARED], edited[:_MAX_COMPARED])
