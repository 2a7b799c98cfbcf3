"""The gate's questions, and the port through which release has answers graded without knowing rewards."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from contracts.records import FinishReason, GenerationBody

_SEED_BYTES = 4
_MAX_SEED = 2**31 - 1


class GateAnswer(NamedTuple):
    """An answer to a sentinel, as graders see it: they cannot tell which version gave it."""

    text: str
    messages: Sequence[Mapping[str, Any]]
    metadata: Mapping[str, str]
    """With the reference, if the sentinel has one."""
    finish_reason: str = "stop"


class GateScore(NamedTuple):
    """The verdict of all graders of a task on one answer."""

    value: float | None
    """In [0, 1]. None: a grader failed, which says nothing about the answer."""
    reason: str = ""


class Grade(Protocol):
    """Grades answers of one task: all of them with the same version of its graders, none from a cache of an earlier run."""

    def __call__(self, task: str, answers: Sequence[GateAnswer]) -> Sequence[GateScore]:
        """A score for each answer, in order."""


class MarkAnswer(Protocol):
    """Looks at the form of an answer alone: cheap, without a reference, a judge or a sandbox."""

    def __call__(self, task: str, body: GenerationBody, finish_reason: FinishReason) -> Mapping[str, float]:
        """Marks by name, each in [0, 1], 0 is good. A mark that could not be given is missing.

        `refuses`, `invalid_tool_call`, `empty`; and `misshapen`, if the task checks the form of its answers.
        """


class Sentinel(NamedTuple):
    """One question. `seed` and the number of a draw give the seed of its sampling."""

    task: str
    messages: list[dict[str, Any]]
    metadata: Mapping[str, str]
    seed: int
    where: str = ""
    """`file:line`, or another name."""
    options: Mapping[str, Any] = {}

    def seed_of(self, draw: int) -> int:
        """The seed of one draw: versions that are compared are sampled with the same seed."""
        return seed_from(f"{self.seed}:{draw}".encode())

    def answered(self, text: str, finish_reason: str = "stop") -> GateAnswer:
        """An answer to it."""
        return GateAnswer(text, self.messages, self.metadata, finish_reason)


class SentinelFile(NamedTuple):
    """The sentinels, and a hash over them and their sampling. Answers stored under another hash are not reused."""

    items: tuple[Sentinel, ...]
    hash: str
    ungated: Mapping[str, str]
    """Tasks that no sentinel can gate, and why."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The gated tasks, in the order of their first sentinels."""
        return tuple(dict.fromkeys(item.task for item in self.items))

    def places_of(self, task: str) -> list[int]:
        """Indices in `items` of the sentinels of a task."""
        return [place for place, item in enumerate(self.items) if item.task == task]


def seed_from(content: bytes, place: int = 0) -> int:
    """A seed that depends on all of `content`, and on a place in it."""
    digest = hashlib.blake2b(content, digest_size=_SEED_BYTES, salt=place.to_bytes(8, "big")).digest()
    return int.from_bytes(digest, "big") & _MAX_SEED
