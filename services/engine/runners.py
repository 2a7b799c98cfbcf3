"""What the two ways to run a model have in common.

`paged`: transformers' continuous batching, for models whose layers are all attention. `stepped`: a loop of our own, for models with
recurrent states (state spaces, convolutions, linear attention).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from contracts.errors import InvalidSettings
from policy.load import is_paged

RunnerKind = Literal["paged", "stepped"]
CACHE_ARGUMENTS = ("past_key_values", "cache_params")
"""The names under which models of transformers take a cache."""


class StepOutput(NamedTuple):
    """One request after a step: all of its tokens so far, or why it failed."""

    request_id: str
    token_ids: list[int]
    logprobs: list[float]
    finished: bool = False
    error: str | None = None


Receive = Callable[[list[StepOutput]], None]
"""Takes the outputs of a step on the generation thread, before the next step begins."""


class ForwardPart(NamedTuple):
    """The tokens at positions [start, start + length) of one request: prompt and answer, counted from the prompt's first token.

    The parts of a forward are consecutive tokens of its flattened input. Of a position that is computed again, the later result counts.
    """

    request_id: str
    start: int
    length: int


class ForwardObserver:
    """Called on the generation thread, around each forward; this one observes nothing. It must not wait, and an error in it ends the generation thread."""

    def before(self, parts: Sequence[ForwardPart]) -> None:
        """The next forward computes these tokens."""

    def after(self) -> None:
        """The forward ended; what hooks on modules recorded belongs to the parts."""

    def finish(self, request_id: str, num_tokens: int) -> bytes:  # noqa: ARG002 for observers that keep records
        """A request ended with so many tokens, prompt included: its experts as an .npy file; empty without a record."""
        return b""

    def forget(self, request_id: str) -> None:
        """A request ended without an answer. Called on any thread."""


def runner_for(model: Any) -> RunnerKind:
    """How to run a model. Raises InvalidSettings if no runner can: it takes none of transformers' common caches."""
    if is_paged(model):
        return "paged"
    if cache_argument(model) is None or not hasattr(model, "generate"):
        raise InvalidSettings(
            f"{type(model).__name__} cannot be served: it has layers without pages, and takes no cache under the names "
            f"{', '.join(CACHE_ARGUMENTS)}"
        )
    return "stepped"


def cache_argument(model: Any) -> str | None:
    """The name under which a model takes a cache; None if it takes none."""
    known = inspect.signature(model.forward).parameters
    return next((name for name in CACHE_ARGUMENTS if name in known), None)
