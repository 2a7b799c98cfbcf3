"""How many tokens a micro-batch may have beside users: measured as the trainer starts, by rows that teach nothing."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

import structlog

from contracts.records import Experience, Segment, pack_floats, pack_ids
from contracts.sampling import Sampling, Span
from pipelines.training.learning.device import is_out_of_memory
from pipelines.training.learning.trainee import GradientRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipelines.training.learning.learner import Learner
    from pipelines.training.learning.users_first import UsersFirst

FEWEST_TOKENS = 32
"""Of a micro-batch that is tried; then twice as many, and so on."""
TRIES = 5
"""Of a size: a machine that is busy for a moment must not make micro-batches small for good."""

log = structlog.get_logger()


def keep_short(learner: Learner, users: UsersFirst, seconds: float) -> float:
    """Measure how many tokens a micro-batch may have to take `seconds` at most, and let all have no more from now on.

    They are 32 times a power of two, so that a start measures what the last one did. Rows are not cut: the log says how long one of the whole
    context takes. Returns the seconds of a micro-batch.
    """
    took, most = _measured(learner, users, FEWEST_TOKENS, seconds), FEWEST_TOKENS
    shortest = took
    while took <= seconds and 2 * most <= learner.budget.most:
        if (longer := _measured(learner, users, 2 * most, seconds)) > seconds:
            break
        took, most = longer, 2 * most
    learner.budget.limit(most)
    log.info("micro-batches are short for users", tokens=most, milliseconds=1000 * took, allowed=1000 * seconds)
    if shortest > seconds:
        log.warning(
            "[gpu] added_p99_ms is less than any micro-batch takes here", tokens=FEWEST_TOKENS, takes=1000 * shortest
        )
    whole = took / most * learner.max_length
    if seconds < whole and learner.max_length < sys.maxsize:
        log.warning(
            "a row of the whole context takes longer than [gpu] added_p99_ms: rows are not cut",
            tokens=learner.max_length,
            takes=1000 * whole,
        )
    return took


def _measured(learner: Learner, users: UsersFirst, num_tokens: int, seconds: float) -> float:
    """Seconds of a micro-batch: of the first that takes `seconds` at most, or the shortest of some. Nothing is learned."""
    num_all = num_tokens * int(learner.trainee.machine().get("processes", "1"))  # each takes its part of the rows
    rows, shortest = rows_of_length(num_all, learner.max_length, learner.vocabulary_size), math.inf
    for _ in range(TRIES):
        try:
            learner.trainee.backward(GradientRows(rows, [1.0] * len(rows), [1.0] * len(rows), are_new=True))
            shortest = min(shortest, users.seconds)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        finally:
            learner.trainee.forget_gradient()
        if shortest <= seconds:
            break
    learner.trainee.seconds()
    return shortest


def rows_of_length(num_tokens: int, longest: int, num_ids: int) -> Sequence[Experience]:
    """Rows of so many tokens in all, each of which computes on its own: no two begin alike."""
    starts = range(0, num_tokens - 1, longest)
    lengths = [min(longest, num_tokens - start) for start in starts]
    return [a_row([(row + at) % num_ids for at in range(length)]) for row, length in enumerate(lengths)]


def a_row(token_ids: Sequence[int], policy: str = "") -> Experience:
    """A valid sample of these tokens: all but the first were sampled."""
    num = len(token_ids)
    segment = Segment(
        token_ids=pack_ids([*token_ids]),
        loss_mask=bytes([0, *[1] * (num - 1)]),
        logprobs=pack_floats([0.0, *[-1.0] * (num - 1)]),
        spans=(Span(0, 0),),
        sampling=Sampling(temperature=1.0, max_tokens=max(num - 1, 1)),
    )
    return Experience(
        key="canary", revision=0, policy=policy, task="", task_hash="", tenant="", purpose="user", baseline_key="",
        segments=(segment,), scores=(), reward=0.0, status="scored", generated_at=0.0, scored_at=0.0, engine="none",
        dtype="float32",
    )  # fmt: skip
