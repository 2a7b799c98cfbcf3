"""Find the samples of a batch that break its step, by trying halves of it. Pure, except for the caller's `fails`."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from contracts.records import Experience, Segment, pack_floats, pack_ids
from contracts.sampling import Sampling, Span

STEP_ERROR = "step_error"
Item = TypeVar("Item")


class Failure(NamedTuple):
    """Why a step failed: the reason for the outcome, and the exception for a bundle."""

    reason: str
    error: str = ""
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The exception as text. The exception object would keep every tensor of its frames alive."""
        text = "".join(traceback.format_exception(error))
        return cls(STEP_ERROR, f"{type(error).__name__}: {error}", text)


def find_culprits(
    items: Sequence[Item],
    failure: Failure,
    fails: Callable[[Sequence[Item]], Failure | None],
    most: float = math.inf,
) -> list[tuple[Item, Failure]]:
    """The items that fail alone, each with its own failure; none if the items fail only together.

    Args:
        items: failed together.
        failure: how they failed. For a single item this is the answer.
        fails: tries some of them, without side effects. It is called about 2 k log2(n) times for k culprits among n.
        most: the search ends once there are more culprits than this.
    """
    if len(items) == 1:
        return [(items[0], failure)]
    middle = len(items) // 2
    found: list[tuple[Item, Failure]] = []
    for half in (items[:middle], items[middle:]):
        if len(found) <= most and (its := fails(half)) is not None:
            found += find_culprits(half, its, fails, most - len(found))
    return found


def canary(policy: str) -> Experience:
    """A valid sample of two tokens. If a step fails even with it, the samples are not to blame."""
    segment = Segment(
        token_ids=pack_ids([0, 0]),
        loss_mask=bytes([0, 1]),
        logprobs=pack_floats([0.0, -1.0]),
        spans=(Span(0, 0),),
        sampling=Sampling(temperature=1.0, max_tokens=1),
    )
    return Experience(
        key="canary", revision=0, policy=policy, task="", task_hash="", tenant="", purpose="user", baseline_key="",
        segments=(segment,), scores=(), reward=0.0, status="scored", generated_at=0.0, scored_at=0.0, engine="none",
        dtype="float32",
    )  # fmt: skip
