"""All weights of a model that no rank holds as a whole: each rank has rows of them, of their gradient and of their moments.

forward, backward   whole weights of one layer at a time     gathered, then dropped
gradient            rows, the sum over all ranks              float32
optimizer           rows of masters and moments               plain tensors: a step, a snapshot and a checkpoint know no other rank
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from contracts.errors import InvalidSettings
from pipelines.training.learning.device import precision_of
from pipelines.training.learning.masters import identity_of
from pipelines.training.shards.loading import LocalPart, check_tensors, copy_rows
from pipelines.training.shards.pieces import LocalRows
from pipelines.training.shards.sharded import Share
from policy.conversion import conversion_of
from policy.logprobs import TokenScorer
from policy.packing import make_packable
from policy.routing import within
from weights.rows import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pipelines.training.learning.device import Precision
    from pipelines.training.learning.masters import Masters, Pair
    from pipelines.training.learning.micro_batches import MicroBatch, PackedBatch
    from pipelines.training.learning.reference import ReferencePolicy
    from pipelines.training.learning.step_bound import Taken
    from pipelines.training.settings import TrainingSettings
    from pipelines.training.shards.group import Group
    from pipelines.training.shards.loading import BaseFiles
    from weights.tensors import Tensors


class ShardedModel(Share):
    """A rank's rows of all weights. A `Trainee`, if all ranks do the same."""

    def __init__(self, files: BaseFiles, settings: TrainingSettings, device: str, group: Group) -> None:
        """Raises InvalidSettings: masters are to be in the host's memory."""
        if settings.masters == "host":
            raise InvalidSettings('[training] masters: "host" is for one process; several have a share on each device')
        self._files = files
        is_reduced = precision_of(settings, torch.device(device)).is_reduced
        computes = torch.bfloat16 if is_reduced else None
        model = files.shards(group, device=device, dtype=torch.float32, trained=True, computes=computes)
        super().__init__(model, settings, device, group)

    def _trained_of(
        self, model: Any, _settings: TrainingSettings
    ) -> tuple[Mapping[str, Pair], str, Callable[[], ReferencePolicy]]:
        with torch.no_grad():
            within(model, _nothing)  # from the first call on, the rows stay where they are
        model.reshard()
        self._cut = dict(model.named_parameters())
        rows = {name: torch.nn.Parameter(each.to_local().detach()) for name, each in self._cut.items()}
        # Rank 0 alone is asked for it, and has to read all files for it.
        identity = "" if self._group.rank else identity_of(self._files, int(model.config.vocab_size))
        return {name: (each, each) for name, each in rows.items()}, identity, self._frozen

    def _frozen(self) -> ReferencePolicy:
        dtype = torch.bfloat16 if self.precision.is_reduced else torch.float32
        model = self._files.shards(self._group, device=str(self.device), dtype=dtype, trained=False)
        return _FrozenShards(model, self.precision)

    def clip(self, max_norm: float) -> float:
        """As in `Trainee`."""
        self._take_gradient()
        with self._stages.stage("backward"):
            return self.optimizer.clip(max_norm, self._norm_of_all)

    def _norm_of_all(self, norm: torch.Tensor) -> torch.Tensor:
        square = norm.double().square()
        self._group.sum(square)
        return square.sqrt().float()

    def take_step(self, scale: float) -> Taken:
        """As in `Trainee`."""
        self._take_gradient()
        return super().take_step(scale)

    def forget_gradient(self) -> None:
        """As in `Trainee`."""
        super().forget_gradient()
        for each in self._cut.values():
            each.grad = None

    def _take_gradient(self) -> None:
        """Let the optimizer see this rank's rows of the gradient."""
        for each, (_, rows) in zip(self._cut.values(), self.optimizer.pairs, strict=True):
            rows.grad = None if each.grad is None else each.grad.to_local()

    def masters(self) -> Masters:
        """As in `Trainee`; this rank's rows."""
        return LocalRows.masters(self._group.rank, self._group.world, self._shapes(), super().masters())

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(each.shape) for name, each in self._cut.items()}

    def restart_from(self, bits: Tensors) -> Callable[[], None]:
        """As in `Trainee`; every rank takes its rows."""
        conversion = conversion_of(self.model)
        check_tensors(bits, conversion)

        def restart() -> None:
            own = {name: rows_of(self._group.rank, self._group.world, shape) for name, shape in self._shapes().items()}
            parts = {
                name: LocalPart(self.optimizer.weights[name], first, shape) for name, (first, _, shape) in own.items()
            }
            copy_rows(parts, bits, conversion)
            self.optimizer.restart()

        return restart


class _FrozenShards:
    """The base policy in shards of its own. As `ReferencePolicy`."""

    def __init__(self, model: Any, precision: Precision) -> None:
        make_packable(model)
        self._scorer, self._precision = TokenScorer(model), precision

    @torch.no_grad()
    def log_probs(self, batches: Sequence[MicroBatch | PackedBatch], bits: Tensors | None = None) -> list[torch.Tensor]:
        """As in `ReferencePolicy`. Raises InvalidSettings: no rank holds the bits of a version."""
        if bits is not None:
            raise InvalidSettings(
                "[training] mismatch_samples: versions of a model in shards are not measured; set it to 0"
            )
        with self._precision.computing():
            return [batch.scored_by(self._scorer).log_probs_BT for batch in batches]


def _nothing() -> None:
    """Only the model's hooks run."""
