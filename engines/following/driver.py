"""What every driver of an engine says and takes. A follower knows no more of an engine than this."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol


class WeightDifference(NamedTuple):
    """What a server computes with, against a version."""

    num_equal: int
    different: tuple[str, ...]
    unknown: tuple[str, ...]
    """Weights of the server, or tensors of the version, that could not be compared."""

    @property
    def is_exact(self) -> bool:
        """True if every weight was compared and is equal."""
        return self.num_equal > 0 and not self.different and not self.unknown


class VersionFile(NamedTuple):
    """A version on the server's own disk."""

    version: int
    root: str
    path: Path
    """One safetensors file, which every worker can read."""


class HeldVersions(NamedTuple):
    """What a server says about itself."""

    name: str
    """As its tokens are labelled: `v7`, `v6-to-v7`, or `default` after a start."""
    version: int | None
    root: str | None
    """Of the weights that all its workers hold; None: its own checkpoint, or the workers differ."""
    is_broken: bool

    @property
    def is_whole(self) -> bool:
        """True if name and weights agree."""
        return not self.is_broken and self.version is not None and self.name == f"v{self.version}"


class ServerFacts(NamedTuple):
    """How a server was started."""

    model: str
    """Its folder of config.json, on this host."""
    tokenizer: str
    """Its folder of tokenizer.json."""
    dtype: str
    has_sampled_logprobs: bool
    """True if log-probs are those of the distribution sampled from, at least without filters."""
    has_constraints: bool
    has_seeds: bool
    num_top_logprobs: int
    """The most likely tokens that it reports at each place."""
    has_experts: bool
    """True if it records the experts of each token."""


class EngineDriver(Protocol):
    """One server of another project. Not for several threads."""

    def facts(self) -> ServerFacts:
        """How it was started. Raises Unavailable; InvalidSettings if it was started in a way that cannot be followed."""

    def held(self) -> HeldVersions:
        """What it serves. Raises Unavailable."""

    def check(self) -> None:
        """Raises Unavailable if it does not answer, or its engine died."""

    def stage(self, target: VersionFile, base_root: str | None) -> None:
        """Prepare a version while the server goes on. `base_root`: of the weights that it must replace; None: any."""

    def push(self, target: VersionFile, base: VersionFile | None) -> float:
        """Make the server serve a staged version; without a base whatever it holds. Returns the seconds of the pause.

        Raises:
            WeightsRefused: nothing was changed.
            Unavailable: with the fact `mixed` it stays paused: stage and push without a base.
        """

    def compare(self, target: VersionFile) -> WeightDifference:
        """Compare what it computes with against a version. It makes no tokens meanwhile. Raises Unavailable."""

    def is_paused(self) -> bool:
        """True if it may make no tokens. Raises Unavailable."""

    def resume(self) -> None:
        """Let a server that holds a whole version go on. Raises Unavailable."""
