# ruff: noqa: N806 - tensors carry the letters of their dimensions
"""A trainee with one tensor, for tests of the learner: logits of tokens that come independently of each other, or what is added to some.

Then it is an adapter: a version carries what was added alone, and a base that it was merged into does not lead back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from contracts.errors import WeightsRefused
from contracts.records import Experience
from pipelines.training.learning.device import TokenBudget
from pipelines.training.learning.loss import LossSums, policy_loss
from pipelines.training.learning.masters import Masters
from pipelines.training.learning.micro_batches import micro_batches
from pipelines.training.learning.objectives import Objective
from pipelines.training.learning.step_bound import Taken
from pipelines.training.learning.trainee import GradientRows, GradientSums, TextSums, TokenLogProbs
from pipelines.training.learning.users_first import UsersFirst
from pipelines.training.text.losses import text_losses
from pipelines.training.text.samples import TextBatch, rows_of
from policy.logprobs import TokenScores
from policy.routing import NO_REPLAY
from tests.unit.pipelines.training.builders import VOCABULARY
from weights.tensors import Tensor

NAME = "logits"


class UnigramTrainee:
    """Plain gradient descent at rate 1. `fails`: what the next calls of `backward` raise, in turn."""

    def __init__(self, frozen: float = 0.0) -> None:
        """`frozen`: the largest logit of the base policy."""
        self.frozen_V = torch.linspace(-frozen, frozen, VOCABULARY)
        self.config: Any = SimpleNamespace(vocab_size=VOCABULARY, max_position_embeddings=64)
        self.identity, self.can_fork = "unigrams", True
        self.device = torch.device("cpu")
        self.users: UsersFirst | None = None
        self.routing, self.budget = NO_REPLAY, TokenBudget(1024)
        self.logits_V = torch.zeros(VOCABULARY, requires_grad=True)
        self.fails: list[Exception] = []
        self.fails_half_way = False
        self.scales: list[float] = []

    def backward(self, rows: GradientRows) -> GradientSums:
        if self.fails:
            raise self.fails.pop(0)
        if not rows.experiences:
            return GradientSums(LossSums(), [])
        (batch,) = micro_batches(rows.experiences, max_tokens=10**9)
        log_probs_V = torch.log_softmax(self.frozen_V + self.logits_V, -1)
        log_probs_BT = log_probs_V[batch.input_ids_BL[:, 1:]] * batch.mask_BT
        scores = TokenScores(log_probs_BT, torch.zeros_like(log_probs_BT))
        loss, sums = policy_loss(
            scores,
            batch.behaviour_BT,
            None,
            torch.tensor(rows.pulls)[batch.sample_B],
            batch.mask_BT,
            num_tokens=torch.tensor(rows.denominators)[batch.sample_B],
            objective=(objective := Objective(2.0, 0.0)),
        )
        loss.backward()  # type: ignore[no-untyped-call]
        found_N = torch.zeros(len(rows.experiences)).index_add_(0, batch.sample_B, log_probs_BT.detach().sum(-1))
        return GradientSums(LossSums.of([sums], objective), found_N.tolist())

    def backward_text(self, batch: TextBatch, answers: Sequence[Experience]) -> TextSums:
        del answers
        if not batch.samples:
            return TextSums(text_losses(batch, [], []), 0.0, 0.0)
        (rows,) = micro_batches(rows_of(batch.samples), max_tokens=10**9)
        weight_BT = rows.behaviour_BT * rows.mask_BT

        def row_sums(logits: torch.Tensor) -> torch.Tensor:
            log_probs_V = torch.log_softmax(self.frozen_V + logits, -1)
            found_B = (log_probs_V[rows.input_ids_BL[:, 1:]] * weight_BT).sum(-1)
            return torch.zeros(len(found_B)).index_add(0, rows.sample_B, found_B)

        current_N, anchor_N = row_sums(self.logits_V), row_sums(torch.zeros(VOCABULARY))
        losses = text_losses(batch, current_N.tolist(), anchor_N.tolist())
        (current_N * torch.tensor(losses.factors)).sum().backward()  # type: ignore[no-untyped-call]
        length = sum(abs(factor) for factor in losses.factors)
        return TextSums(losses, length**2, length)

    def clip(self, max_norm: float) -> float:
        return float(torch.nn.utils.clip_grad_norm_([self.logits_V], max_norm))

    @torch.no_grad()
    def take_step(self, scale: float) -> Taken:
        assert self.logits_V.grad is not None
        self.scales.append(scale)
        self.logits_V -= scale * self.logits_V.grad
        if self.fails_half_way:
            raise RuntimeError("half-way")
        return Taken(1.0, 0.0)

    def forget_gradient(self) -> None:
        self.logits_V.grad = None

    def hold_less(self) -> bool:
        return False

    def log_probs(self, experiences: Sequence[Experience]) -> TokenLogProbs:
        return self._log_probs(self.logits_V, experiences)

    def log_probs_under(self, bits: Mapping[str, Tensor] | None, experiences: Sequence[Experience]) -> TokenLogProbs:
        return self._log_probs(torch.zeros(VOCABULARY) if bits is None else _read(bits), experiences)

    @torch.no_grad()
    def _log_probs(self, logits: torch.Tensor, experiences: Sequence[Experience]) -> TokenLogProbs:
        (batch,) = micro_batches(experiences, max_tokens=10**9)
        found_BT = torch.log_softmax(self.frozen_V + logits, -1)[batch.input_ids_BL[:, 1:]]
        return TokenLogProbs(found_BT[batch.mask_BT], batch.behaviour_BT[batch.mask_BT])

    def bits_of(self, weights: Mapping[str, torch.Tensor]) -> Mapping[str, Tensor]:
        words = weights[NAME].detach().to(torch.bfloat16).view(torch.int16).numpy().copy()
        return {NAME: Tensor("BF16", (VOCABULARY,), words.view(np.uint8))}

    def probe_answers(self, bits: Mapping[str, Tensor]) -> None:  # noqa: ARG002 as a model
        return None

    def masters(self) -> Masters:
        return {NAME: self.logits_V.detach()}, {}

    def begin_pieces(self, folder: Path, budget: float) -> None:
        pass

    @torch.no_grad()
    def put(self, held: Masters) -> None:
        self.logits_V.copy_(held[0][NAME])

    def restart_from(self, bits: Mapping[str, Tensor]) -> Callable[[], None]:
        held = {NAME: _read(bits)}, dict[str, torch.Tensor]()
        return lambda: self.put(held)

    def machine(self) -> dict[str, str]:
        return {}

    def seconds(self) -> Mapping[str, float]:
        return {}


def _read(bits: Mapping[str, Tensor]) -> torch.Tensor:
    if bits.keys() != {NAME}:
        raise WeightsRefused("unknown_tensor", "bits of another layout")
    return torch.from_numpy(bits[NAME].data.view(np.int16).copy()).view(torch.bfloat16).float()
