"""What a model says about given tokens: log-probabilities and entropy, without ever holding the full logits.

Shapes: B rows, L tokens of a right-padded row, T = L - 1 predicted tokens (position t predicts token t + 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trl.trainer import add_fused_lm_head

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

IGNORED_LABEL = -100


@dataclass(frozen=True)
class TokenScores:
    """Per predicted token, zero where the mask is: natural logarithms, nats."""

    log_probs_BT: torch.Tensor
    entropy_BT: torch.Tensor


class TokenScorer:
    """Scores tokens under one causal language model, at the temperature they were sampled with.

    trl's fused head binds its temperature when it is added, so a scorer keeps one forward per temperature and puts the
    right one in place before each call. The module itself is called, so hooks and wrappers keep working.
    """

    def __init__(self, model: Any, *, module: Any = None) -> None:
        """`model` is the transformers module that is patched, `module` what is called (a wrapper of it, if any)."""
        self._model = model
        self._module = model if module is None else module
        self._plain_forward = model.forward
        self._forwards: dict[float, Callable[..., Any]] = {}

    def __call__(
        self,
        input_ids_BL: torch.Tensor,
        attention_mask_BL: torch.Tensor,
        mask_BT: torch.Tensor,
        temperature: float,
    ) -> TokenScores:
        """Score the tokens that `mask_BT` selects, under softmax(logits / temperature)."""
        labels_BL = input_ids_BL.clone()
        labels_BL[:, 0] = IGNORED_LABEL
        labels_BL[:, 1:].masked_fill_(~mask_BT, IGNORED_LABEL)
        self._model.forward = self._forward_at(temperature)
        output = self._module(
            input_ids=input_ids_BL, attention_mask=attention_mask_BL, labels=labels_BL, fused_lm_head=True
        )
        return TokenScores(log_probs_BT=output.log_probs, entropy_BT=output.entropy)

    def _forward_at(self, temperature: float) -> Callable[..., Any]:
        if temperature not in self._forwards:
            self._model.forward = self._plain_forward
            add_fused_lm_head(self._model, temperature=temperature, outputs=("log_probs", "entropy"))
            self._forwards[temperature] = self._model.forward
        return self._forwards[temperature]
