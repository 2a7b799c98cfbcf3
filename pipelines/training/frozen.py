"""Log-probs under published bits: for the KL to the anchor, and for the mismatch between engine and trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pipelines.training.batch import MicroBatch, single_version
from pipelines.training.loss import LossSums, clamped_log_ratio
from pipelines.training.packed import PackedBatch
from pipelines.training.replay import score
from policy.logprobs import TokenScorer
from policy.weights import copy_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from contracts.records import Experience
    from weights.tensors import Tensors


class FrozenPolicy:
    """A second copy of the model that is never trained. It loads the published bits that a call asks for."""

    def __init__(self, model: Any) -> None:
        self._model = model.requires_grad_(requires_grad=False).eval()
        self._scorer = TokenScorer(self._model)
        self._version: int | None = None

    @torch.no_grad()
    def log_probs(self, version: int, tensors: Tensors, batch: MicroBatch | PackedBatch) -> torch.Tensor:
        """Log-probs [B, T] of a batch under the bits of a version."""
        if version != self._version:
            self._version = None
            copy_tensors(self._model, tensors)
            self._version = version
        return score(self._scorer, batch).log_probs_BT


def mismatch(
    frozen: FrozenPolicy,
    experiences: Sequence[Experience],
    published: Mapping[int, Tensors],
    *,
    num_samples: int,
    cut: Callable[[Sequence[Experience]], Sequence[MicroBatch | PackedBatch]],
) -> dict[str, float | None]:
    """k1 and k3 in nats per token between logged log-probs and a recompute under the same published bits.

    It uses at most `num_samples` samples whose tokens are all of one version in `published`. `cut` makes micro-batches.
    """
    of_version: dict[int, list[Experience]] = {}
    for item in experiences:
        version = single_version(item)
        if version is not None and version in published and sum(map(len, of_version.values())) < num_samples:
            of_version.setdefault(version, []).append(item)
    total = LossSums()
    for version, items in of_version.items():
        for batch in cut(items):
            log_probs_BT = frozen.log_probs(version, published[version], batch)
            log_ratio = clamped_log_ratio(log_probs_BT, batch.behaviour_BT, batch.mask_BT)[batch.mask_BT]
            total.add(
                LossSums(
                    num_tokens=log_ratio.numel(), ratio=float(log_ratio.exp().sum()), log_ratio=float(log_ratio.sum())
                )
            )
    figures = total.metrics() if total.num_tokens else {}
    return {"mismatch_k1": figures.get("k1"), "mismatch_k3": figures.get("k3"), "mismatch_tokens": total.num_tokens}
