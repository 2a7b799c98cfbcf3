"""Grades the answers of several versions as one blind batch: in random order, without their versions. Pure except for the port.

Equal answers to one sentinel are graded once, so that a grader with random results cannot make equal versions differ.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from contracts.errors import Unavailable
from contracts.gating import Grade, SentinelFile
from pipelines.release.asking import SentinelAnswer


class _Place(NamedTuple):
    place: int
    text: str
    finish_reason: str


def grade_together(
    grade: Grade,
    sentinels: SentinelFile,
    task: str,
    answers: Mapping[int, Mapping[int, SentinelAnswer] | Sequence[SentinelAnswer]],
    shuffler: random.Random,
) -> dict[int, tuple[float, ...]]:
    """By version: the values of its answers to the sentinels of one task, in order.

    Args:
        grade: the port; called once.
        sentinels: the sentinels of all tasks.
        task: the task to grade.
        answers: by version, then by the place of the sentinel in the file.
        shuffler: orders the batch.

    Raises:
        Unavailable: a grader could not grade an answer. Then there is no verdict on any version.
    """
    places = sentinels.places_of(task)
    of_version = {
        version: [_Place(place, said[place].text, said[place].finish_reason) for place in places]
        for version, said in answers.items()
    }
    batch = sorted({item for items in of_version.values() for item in items})
    shuffler.shuffle(batch)
    scores = grade(task, [sentinels.items[item.place].answered(item.text, item.finish_reason) for item in batch])
    if len(scores) != len(batch):
        raise Unavailable(f"the graders of task {task!r} gave {len(scores)} scores for {len(batch)} answers")
    values: dict[_Place, float] = {}
    for item, score in zip(batch, scores, strict=True):
        if score.value is None:
            raise Unavailable(f"{sentinels.items[item.place].where}: not graded: {score.reason}")
        values[item] = score.value
    return {version: tuple(values[item] for item in items) for version, items in of_version.items()}
