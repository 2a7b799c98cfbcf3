"""All weights of a model that no rank holds as a whole: each rank has rows of them, of their gradient and of their moments.

forward, backward   whole weights of one layer at a time     gathered, then dropped
gradient            rows, the sum over all ranks              float32
optimizer           rows of masters and moments               plain tensors: a step, a snapshot and a checkpoint know no other rank
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from contracts.errors import InvalidSettings
from pipelines.training.checkpoints.pieces import LocalRows
from pipelines.training.checkpoints.tensor_files import TensorFile
from pipelines.training.learning.device import precision_of
from pipelines.training.learning.masters import identity_of
from pipelines.training.shards.loading import LocalPart, check_tensors, copy_rows, published_values
from pipelines.training.shards.parts import VersionInPieces
from pipelines.training.shards.sharded import Share
from policy.logprobs import TokenScorer
from policy.packing import make_packable
from policy.routing import within
from policy.weights import tensors_of
from weights.rows import rows_of
from weights.tensors import Tensor

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
    from weights.tensors import Tensor


class ShardedModel(Share):
    """A rank's rows of all weights. A `Trainee`, if all ranks do the same."""

    _bits: Mapping[str, Tensor] | None = None
    """Of rank 0: what all are about to continue from."""

    def __init__(self, files: BaseFiles, settings: TrainingSettings, device: str, group: Group) -> None:
        """Raises InvalidSettings: masters are to be in the host's memory."""
        if settings.masters == "host":
            raise InvalidSettings('[training] masters: "host" is for one process; several have a share on each device')
        self.files = files
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
        # Every rank reads all files for it, though rank 0 alone is asked: the others would wait for longer than the deadline.
        identity = identity_of(self.files, int(model.config.vocab_size))
        return {name: (each, each) for name, each in rows.items()}, identity, self._frozen

    def _frozen(self) -> ReferencePolicy:
        dtype = torch.bfloat16 if self.precision.is_reduced else torch.float32
        model = self.files.shards(self._group, device=str(self.device), dtype=dtype, trained=False)
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

    def bits_of(self, weights: Mapping[str, torch.Tensor]) -> Mapping[str, Tensor]:
        """As in `Trainee`; of a checkpoint, tensor by tensor as they are asked for: no rank holds all.

        To ask the model itself would drop what a pass in another thread has gathered.
        """
        if isinstance(weights, TensorFile):
            return VersionInPieces(self.files, weights)
        return tensors_of(self.files.layout, weights)

    def restart_from(self, bits: Mapping[str, Tensor]) -> Callable[[], None]:
        """As in `Trainee`, of rank 0; then every rank has to `copy_masters`."""
        check_tensors(bits, self.files.conversion)

        def restart() -> None:
            self._bits = bits

        return restart

    def copy_masters(self) -> None:
        """Continue from the bits of a version that rank 0 has: they come tensor by tensor, and each rank takes its rows."""
        self._pieces.keep()
        own = {name: rows_of(self._group.rank, self._group.world, shape) for name, shape in self._shapes().items()}
        parts = {name: LocalPart(self.optimizer.weights[name], first, shape) for name, (first, _, shape) in own.items()}
        for name, place in self.files.conversion.items():
            words = torch.empty(place.shape, dtype=torch.bfloat16)
            if self._bits is not None:
                words.copy_(published_values(self._bits[name]))
            self._group.copy([words.view(torch.uint8)])
            tensor = Tensor("BF16", tuple(place.shape), words.view(-1).view(torch.uint8).numpy())
            copy_rows(parts, {name: tensor}, {name: place})
        self._bits = None
        self.optimizer.restart()


class _FrozenShards:
    """The base policy in shards of its own. As `ReferencePolicy`."""

    def __init__(self, model: Any, precision: Precision) -> None:
        make_packable(model)
        self._model, self._scorer, self._precision = model, TokenScorer(model), precision

    @torch.no_grad()
    def log_probs(
        self, batches: Sequence[MicroBatch | PackedBatch], bits: Mapping[str, Tensor] | None = None
    ) -> list[torch.Tensor]:
        """As in `ReferencePolicy`. Raises InvalidSettings: no rank holds the bits of a version."""
        if bits is not None:
            raise InvalidSettings(
                "[training] mismatch_samples: versions of a model in shards are not measured; set it to 0"
            )
        with self._precision.computing():
            found = [batch.scored_by(self._scorer).log_probs_BT for batch in batches]
        self._model.reshard()  # embedding and head
        return found


def _nothing() -> None:
    """Only the model's hooks run."""
