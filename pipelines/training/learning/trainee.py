"""What a learner trains, as the learner sees it: gradients, steps, log-probs, and what is kept of them.

A trainee knows which tensors are trained, what a checkpoint holds of them, and what a version carries; the learner does not. The learner
decides which rows count, whether a step is taken and how long it is; a trainee decides nothing. What it computes over rows are sums, so
that several processes could each take a share of the rows and reduce them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import torch

    from contracts.records import Experience
    from pipelines.training.learning.device import TokenBudget
    from pipelines.training.learning.loss import LossSums
    from pipelines.training.learning.masters import Masters
    from pipelines.training.learning.step_bound import Taken
    from pipelines.training.learning.users_first import UsersFirst
    from pipelines.training.text.losses import TextLosses
    from pipelines.training.text.samples import TextBatch
    from policy.routing import Routing
    from weights.probe import ProbeAnswers
    from weights.tensors import Tensor


Published = Mapping[int, "Mapping[str, Tensor] | None"]
"""Versions whose bits are in memory; None: the base policy, which every trainee has."""


class GradientRows(NamedTuple):
    """Samples to compute a gradient of. Each list has one number per sample."""

    experiences: Sequence[Experience]
    pulls: Sequence[float]
    """Advantage times weight."""
    denominators: Sequence[float]
    """What the loss of each sample's tokens is divided by."""
    are_new: bool
    """Samples follow the objective and are pulled towards the base policy. Corrections do neither: they weigh min(ratio, bound), because
    a correction that the objective masks would be reported as learned."""


class GradientSums(NamedTuple):
    """Of the rows whose gradient was computed. `log_probs`: today's of each sample, summed over its tokens."""

    sums: LossSums
    log_probs: list[float]


class TextSums(NamedTuple):
    """Of text whose gradient was computed."""

    losses: TextLosses
    expected_square: float
    expected_length: float
    """As in `LossSums`."""


class TokenLogProbs(NamedTuple):
    """Of the sampled tokens of some samples, float32 [S]: the same order in both."""

    found_S: torch.Tensor
    logged_S: torch.Tensor


class Trainee(Protocol):
    """Weights and moments, wherever they are: a model, or an adapter beside it; in one process or in several."""

    config: Any
    """The model's configuration."""
    device: torch.device
    """Whose random generators a step may depend on."""
    identity: str
    """The hash of the base policy, and whatever else versions and checkpoints must have in common to descend from each other."""
    routing: Routing
    budget: TokenBudget
    can_fork: bool
    """A child of this process can compute too."""
    users: UsersFirst | None
    """Who is asked before each micro-batch, if others compute on the device too."""

    def backward(self, rows: GradientRows) -> GradientSums:
        """Add to the gradient."""

    def backward_text(self, batch: TextBatch, answers: Sequence[Experience]) -> TextSums:
        """Add the gradient of text, after that of answers. `answers`: the others that it belongs to, whose rewards do not pull."""

    def clip(self, max_norm: float) -> float:
        """Scale the gradient down to `max_norm`; returns its norm before."""

    def take_step(self, scale: float) -> Taken:
        """Take a step along the gradient, its learning rate times `scale`; shortened if it moves the policy too far."""

    def forget_gradient(self) -> None:
        """Drop what `backward` added."""

    def hold_less(self) -> bool:
        """Hold less memory per row from now on; False if nothing can be saved any more."""

    def log_probs(self, experiences: Sequence[Experience]) -> TokenLogProbs:
        """Log-probs under today's weights. Changes nothing."""

    def log_probs_under(self, bits: Mapping[str, Tensor] | None, experiences: Sequence[Experience]) -> TokenLogProbs:
        """Log-probs under the bits of a version; None: under the base policy. Changes nothing."""

    def bits_of(self, weights: Mapping[str, torch.Tensor]) -> Mapping[str, Tensor]:
        """What a version with these weights carries, a copy; in any thread. `weights`: as a checkpoint names them."""

    def probe_answers(self, bits: Mapping[str, Tensor]) -> ProbeAnswers | None:
        """What the base and a version say behind the probe's prompts; None: versions have whole weights, which engines compare themselves."""

    def masters(self) -> Masters:
        """What a checkpoint holds: the tensors themselves, which a step changes. Their names are the trainee's own."""

    def begin_pieces(self, folder: Path, budget: float) -> None:
        """Other processes begin to write what they hold into the folder of a checkpoint, see `PieceWriter`. Nothing, if one holds all."""

    def put(self, held: Masters) -> None:
        """Return to what a checkpoint held."""

    def restart_from(self, bits: Mapping[str, Tensor]) -> Callable[[], None]:
        """How to continue from a version of which only the bits are left, as if no step had been taken: the moments are lost.

        Raises WeightsRefused: what is trained cannot be had from these bits, as an adapter from a model that it was merged into.
        """

    def machine(self) -> dict[str, str]:
        """What the last bits of a step depend on: releases, devices, the number of threads and processes."""

    def seconds(self) -> Mapping[str, float]:
        """Seconds of each stage since the last call."""
