"""Tells an observer which tokens of which requests each forward of the model computes, in either runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class ForwardPart(NamedTuple):
    """The tokens at positions [start, start + length) of one request: prompt and answer, counted from the prompt's first token.

    The parts of a forward are consecutive tokens of its flattened input, in order. A position may be computed again, after the
    cache of a request was given up: the later result counts.
    """

    request_id: str
    start: int
    length: int


class ForwardObserver(Protocol):
    """Called on the generation thread, around each forward. It must not wait, and an error in it ends the generation thread."""

    def before(self, parts: Sequence[ForwardPart]) -> None:
        """The next forward computes these tokens."""

    def after(self) -> None:
        """The forward ended; what hooks on modules recorded belongs to the parts."""

    def finish(self, request_id: str, num_tokens: int) -> bytes:
        """A request ended with so many tokens, prompt included: its experts as an .npy file; empty without a record."""

    def forget(self, request_id: str) -> None:
        """A request ended without an answer. Called on any thread."""


class NoObserver:
    """Observes nothing."""

    def before(self, parts: Sequence[ForwardPart]) -> None:
        """Nothing."""

    def after(self) -> None:
        """Nothing."""

    def finish(self, request_id: str, num_tokens: int) -> bytes:  # noqa: ARG002 of the protocol
        """No record."""
        return b""

    def forget(self, request_id: str) -> None:
        """Nothing."""
