"""Min-p per request: leaves out tokens less likely than a share of the likeliest (Nguyen et al. 2024, arXiv:2407.01082)."""

from __future__ import annotations

from typing import Any

import torch
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor


class MinP(ContinuousBatchingLogitsProcessor):  # type: ignore[misc] # transformers is untyped
    """transformers lacks this processor for continuous batching. The likeliest token always stays; 0 leaves out nothing."""

    supported_kwargs = {"min_p": float}  # noqa: RUF012 transformers declares it so
    ignored_kwargs = ()

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """Off: a float32 0 and an int32 0 have the same bits."""
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        """The values of the next step's requests [B], as bits."""
        values = [request.state.logit_processor_kwargs.get("min_p", 0.0) for request in requests_with_new_token]
        return torch.tensor(values, dtype=torch.float32, device="cpu").view(dtype=torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """Logits [B, V], filtered: p < min_p * max(p) is the same as logit < max(logit) + log(min_p)."""
        min_p = tensor_arg[: scores.size(0)].view(dtype=torch.float32)
        least = scores.amax(-1, keepdim=True) + min_p.log().unsqueeze(-1).to(scores.dtype)
        return scores.masked_fill(scores < least, -torch.inf)
