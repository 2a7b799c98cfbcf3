"""One rank's part of a model that no rank holds as a whole. All ranks call each verb together, with the same arguments.

    rows of a step ──▶ micro-batches, the same on all ranks ──▶ each computes every so many of them ──▶ results of all, on all

Every rank does as many forward and backward passes as any other: they gather the weights of a layer together. Who has none left computes
the smallest batch once more, with a share of 0. Results come in the order of the batches, so sums do not depend on who computed which.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from contracts.errors import StepsBroken
from pipelines.training.known.experiences import row_lengths
from pipelines.training.learning.adapter_model import AdapterModel
from pipelines.training.learning.micro_batches import BatchScores
from pipelines.training.learning.whole_model import WholeModel

if TYPE_CHECKING:
    from pipelines.training.known.experiences import Segmented
    from pipelines.training.learning.micro_batches import Compute, MicroBatch, PackedBatch
    from pipelines.training.learning.step_bound import Taken
    from pipelines.training.settings import TrainingSettings
    from pipelines.training.shards.group import Group
    from pipelines.training.shards.loading import LoadedShards
    from weights.tensors import Tensors


# Of a view that nothing here writes to.
warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)


class Share(WholeModel):
    """What all sharded trainees have in common."""

    def __init__(self, loaded: LoadedShards, settings: TrainingSettings, device: str, group: Group) -> None:
        """`loaded`: the base policy in shards."""
        self._loaded, self._group = loaded, group
        self.versions: dict[int, Tensors] = {}
        """Bits that rank 0 named, by its number for them."""
        super().__init__(loaded.model, settings, device)
        self.model.reset_iter_state()  # a trial that failed, on every rank
        self.can_fork = False

    def machine(self) -> dict[str, str]:
        """As in `Trainee`."""
        return super().machine() | {"processes": str(self._group.world)}

    def copy_masters(self) -> None:
        """Make weights and moments those of rank 0."""
        weights, moments = self.masters()
        self._group.copy([*weights.values(), *moments.values()])

    def _most_tokens(self, experiences: Sequence[Segmented]) -> int:
        """Few enough for a batch per rank."""
        share = -(-sum(row_lengths(experiences)) // self._group.world)
        return min(super()._most_tokens(experiences), max(share, 1))

    def _micro_batches(self, experiences: Sequence[Segmented]) -> Sequence[MicroBatch | PackedBatch]:
        batches: Sequence[MicroBatch | PackedBatch] = ()
        failure = None
        try:
            batches = super()._micro_batches(experiences)
        except Exception as error:  # noqa: BLE001 the others must not go on to compute without this rank
            failure = error
        self._group.raise_together(failure)
        return batches

    def _each(self, batches: Sequence[MicroBatch | PackedBatch], compute: Compute) -> list[BatchScores]:
        if not batches:
            return []
        rank, world = self._group.rank, self._group.world
        with self._among_others():
            found = [compute(batch, 1.0) for batch in batches[rank::world]]
            is_short = len(found) * world < len(batches)
            spare = [compute(min(batches, key=lambda batch: batch.num_tokens), 0.0)] if is_short else []
            self.model.reshard()  # a pass without gradients leaves what belongs to no layer as it was gathered
        num_sums = len((found or spare)[0].sums_K)
        counts = [batch.mask_BT.numel() for batch in batches]
        sizes = [count + num_sums for count in counts]
        flat = torch.zeros(sum(sizes), dtype=torch.float64, device=self.device)
        parts = torch.split(flat, sizes)
        for part, (log_probs_BT, sums_K) in zip(parts[rank::world], found, strict=True):
            torch.cat([log_probs_BT.flatten(), sums_K], out=part)
        self._group.sum(flat)
        return [
            BatchScores(part[:count].float().view(batch.mask_BT.shape), part[count:])
            for part, count, batch in zip(parts, counts, batches, strict=True)
        ]

    @contextmanager
    def _among_others(self) -> Iterator[None]:
        """Passes that gather weights with the other ranks: whoever leaves one ends the group, for the others wait for it."""
        try:
            yield
        except StepsBroken:
            raise
        except Exception as error:
            says = f"rank {self._group.rank} of the trainer failed in a pass that the others take with it"
            raise StepsBroken(f"{says}: {type(error).__name__}: {error}; the group ends") from error


class ShardedAdapter(Share, AdapterModel):
    """A frozen base in shards; adapter, moments and what is published of them are whole on every rank, and the same."""

    _is_summed = False
    """The gradient is that of all ranks."""

    def _bring(self, model: Any) -> str:  # noqa: ARG002 it is there
        return self._loaded.root

    def clip(self, max_norm: float) -> float:
        """As in `Trainee`."""
        self._sum_gradient()
        return super().clip(max_norm)

    def take_step(self, scale: float) -> Taken:
        """As in `Trainee`."""
        self._sum_gradient()
        return super().take_step(scale)

    def forget_gradient(self) -> None:
        """As in `Trainee`."""
        super().forget_gradient()
        self._is_summed = False

    def _differentiate(self, loss: torch.Tensor, share: float) -> None:
        if self._is_summed and self._group.rank:
            self.optimizer.zero_grad()  # rank 0 has it
        self._is_summed = False
        super()._differentiate(loss, share)

    def _sum_gradient(self) -> None:
        if self._is_summed:
            return
        weights = [weight for _, weight in self.adapter.named_parameters()]
        has_one = torch.tensor([float(weight.grad is not None) for weight in weights], device=self.device)
        self._group.sum(has_one)
        for weight, number in zip(weights, has_one.tolist(), strict=True):
            if number:
                weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
                self._group.sum(weight.grad)
        self._is_summed = True
