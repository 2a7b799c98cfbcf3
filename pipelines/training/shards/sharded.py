"""One rank's part of a model that no rank holds as a whole. All ranks call each verb together, with the same arguments.

    rows of a step ──▶ micro-batches, the same on all ranks ──▶ each computes every so many of them ──▶ results of all, on all

Every rank does as many forward and backward passes as any other: they gather the weights of a layer together. Who has none left computes
the smallest batch once more, with a share of 0. Results come in the order of the batches, so sums do not depend on who computed which.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from contracts.errors import StepsBroken
from pipelines.training.checkpoints.pieces import LocalRows, PieceWriter
from pipelines.training.known.experiences import row_lengths
from pipelines.training.learning.micro_batches import BatchScores
from pipelines.training.learning.users_first import in_turn
from pipelines.training.learning.whole_model import WholeModel

if TYPE_CHECKING:
    from pathlib import Path

    from pipelines.training.known.experiences import Segmented
    from pipelines.training.learning.micro_batches import Compute, MicroBatch, PackedBatch
    from pipelines.training.learning.step_bound import Taken
    from pipelines.training.settings import TrainingSettings
    from pipelines.training.shards.group import Group
    from weights.tensors import Tensor


# Of a view that nothing here writes to.
warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)


class Share(WholeModel):
    """What all sharded trainees have in common."""

    def __init__(self, model: Any, settings: TrainingSettings, device: str, group: Group) -> None:
        """`model`: with this rank's rows of the base policy."""
        self._group = group
        self.versions: dict[int, Mapping[str, Tensor]] = {}
        """Bits that rank 0 named, by its number for them."""
        self._pieces = PieceWriter(group.rank, ThreadPoolExecutor(1, "saving"))
        super().__init__(model, settings, device)
        self.model.reset_iter_state()  # a trial that failed, on every rank
        self.can_fork = False

    def machine(self) -> dict[str, str]:
        """As in `Trainee`."""
        return super().machine() | {"processes": str(self._group.world)}

    @property
    def is_cut(self) -> bool:
        """True if each rank has rows of the masters; else all have the same ones."""
        return isinstance(self.masters()[0], LocalRows)

    def begin_pieces(self, folder: Path, budget: float) -> None:
        """As in `Trainee`; rank 0 writes its own."""
        if self._group.rank:
            self._pieces.begin(folder, self.masters(), budget)

    def read_masters(self, folder: Path) -> None:
        """Return to what a checkpoint held, each rank to its rows."""
        self._pieces.keep()
        self.put(LocalRows.read(folder, self._group.rank, self._group.world))

    def take_step(self, scale: float) -> Taken:
        """As in `Trainee`."""
        self._pieces.keep()
        return super().take_step(scale)

    def copy_masters(self) -> None:
        """Make weights and moments those of rank 0."""
        self._pieces.keep()
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
            found = [compute(batch, 1.0) for batch in in_turn(batches[rank::world], self.users, self._stages)]
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
            says = f"failed in a pass that the others take with it: {type(error).__name__}: {error}"
            raise self._group.ended_by(says) from error
