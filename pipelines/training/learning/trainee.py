"""What a learner trains, as the learner sees it: gradients, steps, log-probs and bits.

A trainee knows which tensors are trained, which are saved and which a version carries; the learner does not. The learner decides which
rows count, whether a step is taken and how long it is; a trainee decides nothing. What it computes over rows are sums, so that several
processes could each take a share of the rows and reduce them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from contracts.records import Experience
    from pipelines.training.learning.device import TokenBudget
    from pipelines.training.learning.loss import LossSums
    from pipelines.training.learning.masters import Checkpoint, Masters
    from pipelines.training.learning.step_bound import Taken
    from policy.routing import Routing
    from weights.tensors import Tensors


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
    """Of the rows whose gradient was computed."""

    sums: LossSums
    log_probs: list[float]
    """Today's log-prob of each sample, summed over its tokens."""


class PublishedBits(NamedTuple):
    """A version, and the bits it carries."""

    version: int
    bits: Tensors


class TokenLogProbs(NamedTuple):
    """Of the sampled tokens of some samples, float32 [S]: the same order in both."""

    found_S: torch.Tensor
    logged_S: torch.Tensor


class Trainee(Protocol):
    """Weights and moments, wherever they are."""

    config: Any
    """The model's configuration."""
    device: torch.device
    identity: str
    """The hash of the base policy: versions and checkpoints descend from it."""
    routing: Routing
    budget: TokenBudget

    def backward(self, rows: GradientRows) -> GradientSums:
        """Add to the gradient."""

    def clip(self, max_norm: float) -> float:
        """Scale the gradient down to `max_norm`; returns its norm before."""

    def take_step(self, scale: float) -> Taken:
        """Take a step along the gradient, its learning rate times `scale`; shortened if it moves the policy too far."""

    def forget_gradient(self) -> None:
        """Drop what `backward` added."""

    def hold_less(self) -> bool:
        """Hold less memory per row from now on; False if nothing can be saved any more."""

    def log_probs(self, experiences: Sequence[Experience], of: PublishedBits | None = None) -> TokenLogProbs:
        """Log-probs under today's weights, or under the bits of a version. Changes nothing."""

    def bits(self) -> Tensors:
        """What a version carries that is cut now; a copy."""

    def bits_of(self, weights: Mapping[str, torch.Tensor]) -> Tensors:
        """What a version with these weights carries; in any thread. `weights`: as a checkpoint names them."""

    def masters(self) -> Masters:
        """What a checkpoint holds: the tensors themselves, which a step changes."""

    def check(self, checkpoint: Checkpoint) -> None:
        """Check that a checkpoint belongs here; raises WeightsRefused as `masters.check`. Changes nothing."""

    def put(self, held: Masters) -> None:
        """Return to what a checkpoint held."""

    def restart(self, bits: Tensors) -> None:
        """Continue from the bits of a version, as if no step had been taken: the moments are of other weights."""

    def seconds(self) -> Mapping[str, float]:
        """Seconds of each stage since the last call."""
