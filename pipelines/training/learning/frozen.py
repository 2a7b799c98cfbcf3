"""Log-probs under published bits: for the KL to the anchor, and for the mismatch between engine and trainer."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import structlog
import torch

from pipelines.training.learning.batch import MicroBatch, single_version
from pipelines.training.learning.loss import LossSums, clamped_log_ratio
from pipelines.training.learning.packed import PackedBatch
from pipelines.training.learning.replay import score
from policy.frozen_copy import frozen_copy
from policy.logprobs import TokenScorer
from policy.weights import copy_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from contracts.records import Experience
    from pipelines.training.learning.precision import Precision
    from weights.tensors import Tensors


log = structlog.get_logger()

KEPT = 64
"""Versions whose mismatch is remembered. An older one that comes back is measured again."""


class FrozenPolicy:
    """A second copy of the model that is never trained. It loads the published bits that a call asks for."""

    def __init__(self, model: Any, precision: Precision) -> None:
        """Copies `model`, at 2 bytes per parameter, or 4 where the model reads its weights outside the modules that hold them."""
        self._precision = precision
        try:
            self._model = frozen_copy(model, precision.device, widen_layers=not precision.is_reduced)
            with precision.computing():
                self._scorer = TokenScorer(self._model)
        except RuntimeError as error:
            log.info("the frozen policy takes 4 bytes per parameter", reason=str(error))
            self._model = copy.deepcopy(model).to(precision.device).requires_grad_(requires_grad=False).eval()
            self._scorer = TokenScorer(self._model)
        self._version: int | None = None

    @torch.no_grad()
    def log_probs(self, version: int, tensors: Tensors, batch: MicroBatch | PackedBatch) -> torch.Tensor:
        """Log-probs [B, T] of a batch under the bits of a version."""
        if version != self._version:
            self._version = None
            copy_tensors(self._model, tensors)
            self._version = version
        with self._precision.computing():
            return score(self._scorer, batch).log_probs_BT


class Mismatch:
    """k1 and k3 in nats per token between logged log-probs and a recompute under the same published bits.

    A version is measured once, on its first samples: engine and bits stay the same. Each step reports the newest version measured so far.
    """

    def __init__(self, num_samples: int) -> None:
        """`num_samples`: on how many samples a version is measured."""
        self._num_samples = num_samples
        self._measured: dict[int, tuple[int, LossSums]] = {}

    def measure(
        self,
        frozen: FrozenPolicy | None,
        experiences: Sequence[Experience],
        published: Mapping[int, Tensors],
        cut: Callable[[Sequence[Experience]], Sequence[MicroBatch | PackedBatch]],
    ) -> None:
        """Measure on samples whose tokens are all of one version in `published`. `cut` makes micro-batches."""
        if frozen is None:
            return
        of_version: dict[int, list[Experience]] = {}
        for item in experiences:
            version = single_version(item)
            if version is not None and version in published:
                of_version.setdefault(version, []).append(item)
        for version, all_items in of_version.items():
            count, total = self._measured.pop(version, (0, LossSums()))
            items = all_items[: self._num_samples - count]
            for batch in cut(items) if items else ():
                log_probs_BT = frozen.log_probs(version, published[version], batch)
                log_ratio = clamped_log_ratio(log_probs_BT, batch.behaviour_BT, batch.mask_BT)[batch.mask_BT]
                total.add(
                    LossSums(
                        num_tokens=log_ratio.numel(),
                        ratio=float(log_ratio.exp().sum()),
                        log_ratio=float(log_ratio.sum()),
                    )
                )
            self._measured[version] = count + len(items), total
        while len(self._measured) > KEPT:
            del self._measured[min(self._measured)]

    def figures(self) -> dict[str, float | None]:
        """Of the newest version."""
        version = max(self._measured, default=None)
        total = LossSums() if version is None else self._measured[version][1]
        found = total.metrics() if total.num_tokens else {}
        return {
            "mismatch_k1": found.get("k1"),
            "mismatch_k3": found.get("k3"),
            "mismatch_tokens": total.num_tokens,
            "mismatch_version": version,
        }
