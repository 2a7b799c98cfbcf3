"""Who of a batch breaks its step: found by trying halves of it. Pure, but for what `fails` does."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from contracts.records import Experience, Sampling, Segment, Span, pack_floats, pack_ids

STEP_ERROR = "step_error"
Item = TypeVar("Item")


class Failure(NamedTuple):
    """What went wrong: the outcome's reason, and for a bundle what was raised."""

    reason: str
    error: str = ""
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """What was raised, as text: the exception itself would hold every tensor of its frames."""
        text = "".join(traceback.format_exception(error))
        return cls(STEP_ERROR, f"{type(error).__name__}: {error}", text)


def find_culprits(
    items: Sequence[Item], failure: Failure, fails: Callable[[Sequence[Item]], Failure | None]
) -> list[tuple[Item, Failure]]:
    """Those of `items` that fail alone, each with its own failure; none if they fail only together.

    Args:
        items: which failed together, with `failure`.
        failure: theirs; of a lone item it is the answer.
        fails: tries some of them, without any effect. It is asked about 2 k log2(n) times for k culprits among n.
    """
    if len(items) == 1:
        return [(items[0], failure)]
    middle = len(items) // 2
    found = []
    for half in (items[:middle], items[middle:]):
        if (its := fails(half)) is not None:
            found += find_culprits(half, its, fails)
    return found


def canary(policy: str) -> Experience:
    """A sample of two tokens that nothing is wrong with: if a step fails with it, the samples are not to blame."""
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
