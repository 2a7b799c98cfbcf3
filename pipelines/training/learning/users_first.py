"""Users first: where users and the trainer share a device, each micro-batch waits until no user waits.

    users wait? ──▶ wait, but at most 19 times as long as the micro-batch before took ──▶ micro-batch ──▶ users wait? ...

So a user waits for one micro-batch at most, and one as long as the latency budget is what is given here. Where users never pause, the trainer
keeps a twentieth of the time: then a long answer takes a twentieth longer. What is no micro-batch, such as the optimizer's step, does not wait.
Waiting changes no number. Waits for: the device, and the users.
"""

from __future__ import annotations

import math
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import structlog
import torch

from contracts.records import Experience, Segment, pack_floats, pack_ids
from contracts.sampling import Sampling, Span
from pipelines.training.learning.device import is_out_of_memory
from pipelines.training.learning.trainee import GradientRows
from runtime.operations import step_done

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pipelines.training.learning.figures import Stages
    from pipelines.training.learning.learner import Learner

LEAST_SHARE = 0.05
"""Of the time, for the trainer, where users never pause."""
FEWEST_TOKENS = 32
"""Of a micro-batch that is tried; then twice as many, and so on."""
TRIES = 5
"""Of a size: a machine that is busy for a moment must not make micro-batches small for good."""
_LONGEST_SECONDS = 60.0
"""Of a wait, also where the micro-batch before had to compile first."""
_LOOK_SECONDS = 0.002
Item = TypeVar("Item")

log = structlog.get_logger()


class UsersFirst:
    """What a trainee asks. One per trainer, in its thread."""

    def __init__(
        self,
        num_waiting: Callable[[], int],
        stop: threading.Event,
        device: torch.device,
        clock: Callable[[], float] = time.monotonic,
        computing: Callable[[], float] | None = None,
    ) -> None:
        """`num_waiting`: users, now. `stop`: nothing is waited for any more. `computing`: the clock of micro-batches."""
        self._num_waiting, self._stop, self._device, self._clock = num_waiting, stop, device, clock
        # On a CPU this thread's own time, which is the same however busy the machine is.
        self._computing = computing or (time.thread_time if device.type == "cpu" else clock)
        self.seconds = 0.0
        """Of the last micro-batch."""

    def wait(self) -> None:
        """Wait while users wait; see the module for how long."""
        end = self._clock() + min(self.seconds * (1 / LEAST_SHARE - 1), _LONGEST_SECONDS)
        while self._num_waiting() and self._clock() < end and not self._stop.wait(_LOOK_SECONDS):
            step_done()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The block of a micro-batch. It ends with the device: work that the host has only queued would compute while users wait."""
        began = self._computing()
        yield
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.seconds = self._computing() - began


def in_turn(batches: Iterable[Item], users: UsersFirst | None, stages: Stages) -> Iterator[Item]:
    """Micro-batches one after the other: users, if there are any, come before each."""
    for batch in batches:
        if users is None:
            yield batch
            continue
        with stages.stage("users"):
            users.wait()
        with users.turn():
            yield batch


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
