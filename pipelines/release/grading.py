"""Grades the answers of several versions as one blind batch: in random order, without their versions. Pure except for the port."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from contracts.errors import Unavailable
from contracts.gating import GateScore, Grade, Sentinel, SentinelFile
from pipelines.release.asking import SentinelAnswer

AnswerPlace = tuple[int, int]
"""The version that answered, and the place of the question."""


def grade_blind(
    grade: Grade, task: str, questions: Sequence[Sentinel], said: Mapping[AnswerPlace, SentinelAnswer]
) -> dict[AnswerPlace, GateScore]:
    """The scores of answers to questions of one task, by one call of the port.

    Equal answers to one question are graded once, so that a grader with random results cannot make equal versions differ.

    Raises Unavailable: the graders gave another number of scores.
    """
    given = {name: (name[1], answer.text, answer.finish_reason) for name, answer in said.items()}
    batch = sorted(set(given.values()))
    random.Random().shuffle(batch)  # noqa: S311 an order that graders cannot know, not a secret
    scores = grade(task, [questions[place].answered(*rest) for place, *rest in batch])
    if len(scores) != len(batch):
        raise Unavailable(f"the graders of task {task!r} gave {len(scores)} scores for {len(batch)} answers")
    found = dict(zip(batch, scores, strict=True))
    return {name: found[item] for name, item in given.items()}


def grade_together(
    grade: Grade,
    sentinels: SentinelFile,
    task: str,
    answers: Mapping[int, Mapping[int, SentinelAnswer] | Sequence[SentinelAnswer]],
) -> dict[int, tuple[float, ...]]:
    """By version: the values of its answers to the sentinels of one task, in order. `answers`: by version, then by place.

    Raises Unavailable: a grader could not grade an answer. Then there is no verdict on any version.
    """
    places = sentinels.places_of(task)
    said = {(version, place): given[place] for version, given in answers.items() for place in places}
    values: dict[AnswerPlace, float] = {}
    for name, score in grade_blind(grade, task, sentinels.items, said).items():
        if score.value is None:
            raise Unavailable(f"{sentinels.items[name[1]].where}: not graded: {score.reason}")
        values[name] = score.value
    return {version: tuple(values[version, place] for place in places) for version in answers}
