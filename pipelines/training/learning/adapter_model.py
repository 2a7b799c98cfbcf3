"""A trainee that trains a LoRA adapter beside a model on one device.

The adapter's weights are float32 masters; versions carry their bfloat16 rounding. The base never changes, so the policy without the adapter
is the reference and costs no memory.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch

from contracts.errors import WeightsRefused
from pipelines.training.learning.masters import move
from pipelines.training.learning.whole_model import WholeModel
from pipelines.training.settings import AdapterSettings
from policy.adapter import Adapter, AdapterBits, all_linear
from policy.weights import ModelBits, copied, stage_copy
from weights.adapters import AdapterConfig, config_of, weights_in
from weights.probe import NUM_TOP, ProbeAnswers, Scores, probe_prompts
from weights.tensors import root_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pipelines.training.learning.masters import Pair
    from pipelines.training.learning.micro_batches import MicroBatch, PackedBatch
    from pipelines.training.learning.reference import ReferencePolicy
    from pipelines.training.settings import TrainingSettings
    from policy.weights import Patches
    from weights.tensors import Tensor


class AdapterModel(WholeModel):
    """The model, its adapter and the adapter's optimizer. A `Trainee`."""

    adapter: Adapter

    def _trained_of(
        self, model: Any, settings: TrainingSettings
    ) -> tuple[Mapping[str, Pair], str, Callable[[], ReferencePolicy]]:
        wanted = settings.adapter or AdapterSettings()
        config = AdapterConfig(
            rank=wanted.rank,
            alpha=wanted.alpha,
            targets=tuple(sorted(wanted.targets or all_linear(model))),
            base_root=self._bring(model),
        )
        self.adapter = Adapter(model, config, dtype=torch.float32)
        self.adapter.requires_grad_(requires_grad=True)
        pairs = {name: (weight, weight) for name, weight in self.adapter.named_parameters()}
        return pairs, config.identity, partial(_WithoutAdapter, self)

    def _bring(self, model: Any) -> str:
        """Bring the base to its device; its root."""
        root = root_of(ModelBits(model))
        move(model, self.precision)
        return root

    def bits_of(self, weights: Mapping[str, torch.Tensor]) -> Mapping[str, Tensor]:
        """As in `Trainee`."""
        return copied(AdapterBits(self.adapter, weights=weights))

    @torch.no_grad()
    def probe_answers(self, bits: Mapping[str, Tensor]) -> ProbeAnswers:
        """As in `Trainee`; with the adapter beside the base."""
        num_ids = int(self.model.config.get_text_config().vocab_size)
        prompts, found = probe_prompts(num_ids), list[Scores]()
        for other in (self.adapter.off(), self.adapter.holding(_values(weights_in(bits, self.adapter.config)))):
            with other, self.precision.computing():
                logits_PV = self.model(torch.tensor(prompts, device=self.device)).logits[:, -1].float()
            top = logits_PV.log_softmax(-1).topk(min(NUM_TOP, num_ids))
            pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
            found.append([dict(zip(ids, values, strict=True)) for ids, values in pairs])
        base, adapted = found
        dtype: Literal["float32", "bfloat16"] = "bfloat16" if self.precision.is_reduced else "float32"
        return ProbeAnswers(dtype=dtype, prompts=prompts, base=base, adapted=adapted)

    def _staged(self, bits: Mapping[str, Tensor]) -> Patches:
        """Of an adapter like this one; of the base: an adapter that was not trained.

        Raises WeightsRefused: `other_adapter`, `other_model`, and as `stage_changes`.
        """
        config, own = config_of(bits), self.adapter.config
        if config is None and root_of(bits) != own.base_root:
            raise WeightsRefused("other_model", "these weights are neither an adapter nor the base of this one")
        if config is None:
            bits = self.bits_of(self.adapter.untrained())
        return stage_copy(self.adapter, weights_in(bits, own))


class _WithoutAdapter:
    """The base is the model with its adapter switched off; a version is the model with the version's adapter. As `ReferencePolicy`."""

    def __init__(self, trainee: AdapterModel) -> None:
        self._trainee = trainee

    @torch.no_grad()
    def log_probs(
        self, batches: Sequence[MicroBatch | PackedBatch], bits: Mapping[str, Tensor] | None = None
    ) -> list[torch.Tensor]:
        """As in `ReferencePolicy`."""
        adapter = self._trainee.adapter
        if bits is None or config_of(bits) is None:
            other = adapter.off()
        else:
            other = adapter.holding(_values(weights_in(bits, adapter.config)))
        with other, self._trainee.precision.computing():
            return [batch.scored_by(self._trainee.scorer).log_probs_BT for batch in batches]


def _values(bits: Mapping[str, Tensor]) -> dict[str, torch.Tensor]:
    return {
        name: torch.from_numpy(tensor.data.copy()).view(torch.bfloat16).view(tensor.shape)
        for name, tensor in bits.items()
    }
