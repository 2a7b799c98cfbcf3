"""What the loss of each sample's tokens is divided by. Counted over the whole batch, before an objective masks anything. Pure.

    denominator = samples in the batch x mean tokens of the sample's task / temperature

Within a task every token counts the same (DAPO, arXiv 2503.14476), but a task with long answers does not drown one with short ones:
each has the weight of its samples. With one task at temperature 1 it is the batch's number of tokens.

Several answers to one prompt are compared with each other, so each counts as one sample whatever its length: its own tokens take the
place of the task's mean.

The gradient of log softmax(logits / T) grows as 1 / T, so an answer sampled at .3 would pull three times as hard as one at 1.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from pipelines.training.learning.batch import num_tokens, prompt_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from contracts.records import Experience


def denominators(experiences: Sequence[Experience]) -> np.ndarray:
    """One per sample, above 0: float64 [N]."""
    lengths = [num_tokens([item]) for item in experiences]
    prompts = Counter((item.task, prompt_of(item)) for item in experiences)
    samples, tokens = Counter(item.task for item in experiences), Counter[str]()
    for item, length in zip(experiences, lengths, strict=True):
        tokens[item.task] += length
    found = np.ones(len(experiences))
    for index, (item, length) in enumerate(zip(experiences, lengths, strict=True)):
        has_others = prompts[item.task, prompt_of(item)] > 1
        mean = length if has_others else tokens[item.task] / samples[item.task]
        found[index] = len(experiences) * mean / temperature_of(item)
    return found


def temperature_of(experience: Experience) -> float:
    """The mean over the sampled tokens."""
    counts = [segment.loss_mask.count(1) for segment in experience.segments]
    temperatures = [segment.sampling.temperature for segment in experience.segments]
    return float(np.average(temperatures, weights=counts))
