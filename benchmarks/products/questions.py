"""What a product of this benchmark is: questions, the answers that its users want, and the wrong ones that its base gives.

Streams are endless and repeatable. A question belongs to a split by a hash of its text, so splits cannot overlap.
"""

# ruff: noqa: S311 simulated users need repeatable randomness, not secret randomness

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple

Split = Literal["train", "users", "sentinel", "held_out"]
_NUM_BUCKETS = 8


class ProductQuestion(NamedTuple):
    """One question. `reference`: the right answer, where a verifier needs it to grade a sentinel."""

    text: str
    wanted: str
    """An answer that users accept."""
    labels: tuple[tuple[str, float], ...]
    """Answers that the base is trained on, each with its share. Together they are wrong about half of the time."""
    reference: str | None = None

    def label(self, rng: Random) -> str:
        """An answer to train the base on."""
        answers, shares = zip(*self.labels, strict=True)
        return str(rng.choices(answers, shares)[0])


class ExtraProduct(NamedTuple):
    """A product. `is_right`: what its users hold, and nobody else may ask."""

    name: str
    task_file: Path
    draw: Callable[[Random], ProductQuestion]
    is_right: Callable[[ProductQuestion, str], bool]
    rubric: Callable[[str, str], bool] | None = None
    """What its judge says of the user's message and an answer. None: it has no judge."""


def stream(product: ExtraProduct, split: Split, seed: int) -> Iterator[ProductQuestion]:
    """Questions without end; equal arguments give equal streams. Sentinels and held-out questions do not repeat."""
    pool = "bulk" if split in {"train", "users"} else split
    rng, seen = Random(f"{product.name}:{split}:{seed}"), set[str]()
    while True:
        question = product.draw(rng)
        if _pool_of(question.text) != pool or question.text in seen:
            continue
        if pool != "bulk":
            seen.add(question.text)
        yield question


def _pool_of(text: str) -> str:
    bucket = blake2b(text.encode(), digest_size=8).digest()[0] % _NUM_BUCKETS
    return {0: "sentinel", 1: "held_out"}.get(bucket, "bulk")
