"""What the two ways to run a model have in common: requests go in, the tokens of each step come out, pauses lie between steps.

`paged`: transformers' continuous batching, for models whose layers are all attention. `stepped`: a loop of our own, for models with
recurrent states (state spaces, convolutions, linear attention).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol

from contracts.errors import InvalidSettings
from policy.load import is_paged
from services.engine.prefixes import PrefixUse
from services.engine.sequence import SequenceSampling

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


class Runner(Protocol):
    """Runs a model on a generation thread. All methods may be called from any thread, except where noted."""

    def start(self) -> None:
        """Start the generation thread."""

    def add(
        self,
        request_id: str,
        token_ids: list[int],
        *,
        max_tokens: int,
        stops: Collection[int],
        sampling: SequenceSampling,
        prefix: PrefixUse | None = None,
    ) -> bool:
        """Take in a request; it ends after `max_tokens` or a token of `stops`. False if the runner takes none any more.

        With `prefix` it may start from keys and values that are kept, and its own are kept, if the runner can do so.
        """

    def cancel(self, request_id: str) -> None:
        """End a request without output; nothing happens if it has ended."""

    def pause(self) -> AbstractContextManager[None]:
        """A block in which no step runs. Raises RuntimeError if the generation thread is dead."""

    def stop(self) -> None:
        """End the generation thread after the current step, and wait for it; requests in flight get no output."""

    def wait(self) -> BaseException | None:
        """Wait until the generation thread ends. Returns the error that ended it, if any."""

    @property
    def serving(self) -> bool:
        """True while the generation thread runs and takes requests."""


def runner_for(model: Any) -> RunnerKind:
    """How to run a model.

    Raises:
        InvalidSettings: no runner can: it takes no cache that transformers' common cache classes provide.
    """
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
