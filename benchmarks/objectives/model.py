"""A tiny transformer on one core: it samples a batch of answers with a cache, and scores them with gradients.

Prompts are padded on the left with a token that the model learns to ignore, so that every answer begins at the same place.

Shapes: B rows, P tokens of prompts, A tokens of answers, V vocabulary, H heads, D width.
"""

# ruff: noqa: N803, N806, N815 - tensors carry the letters of their dimensions

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from policy.logprobs import TokenScores


class TinyShape(NamedTuple):
    """The size of a policy and of its rows."""

    vocabulary: int
    prompt: int
    answer: int
    width: int = 48
    layers: int = 2
    heads: int = 4


class TinyAnswers(NamedTuple):
    """Sampled answers: tokens, the log-probs they were sampled with, and True up to the end of each answer."""

    ids_BA: torch.Tensor
    log_probs_BA: torch.Tensor
    mask_BA: torch.Tensor


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(
        self, states_BLD: torch.Tensor, past: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """The states after the block, and keys and values [B, H, L, D / H] of all tokens so far."""
        B, L, D = states_BLD.shape
        query, key, value = (
            self.qkv(self.before(states_BLD))
            .view(B, L, 3, self.heads, D // self.heads)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        if past is not None:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=past is None)
        states_BLD = states_BLD + self.out(mixed.transpose(1, 2).reshape(B, L, D))
        return states_BLD + self.down(functional.relu(self.up(self.between(states_BLD)))), (key, value)


class TinyPolicy(nn.Module):
    """A causal transformer with learned positions and tied embeddings; token 0 pads, token 1 ends an answer."""

    def __init__(self, shape: TinyShape) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.prompt + shape.answer, shape.width)
        self.blocks = nn.ModuleList(_Block(shape.width, shape.heads) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=shape.width**-0.5)

    def _states(
        self, ids_BL: torch.Tensor, start: int, past: list[tuple[torch.Tensor, torch.Tensor]] | None
    ) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
        states_BLD = self.tokens(ids_BL) + self.positions.weight[start : start + ids_BL.shape[1]]
        kept = []
        for index, block in enumerate(self.blocks):
            states_BLD, both = block(states_BLD, None if past is None else past[index])
            kept.append(both)
        return states_BLD, kept

    def _logits(self, states_BLD: torch.Tensor) -> torch.Tensor:
        return functional.linear(self.norm(states_BLD), self.tokens.weight)

    def score(self, prompts_BP: torch.Tensor, answers_BA: torch.Tensor) -> TokenScores:
        """Log-prob and entropy of every token of the answers."""
        states_BLD, _ = self._states(torch.cat([prompts_BP, answers_BA[:, :-1]], 1), 0, None)
        log_probs_BAV = self._logits(states_BLD[:, self.shape.prompt - 1 :]).log_softmax(-1)
        with torch.no_grad():
            entropy_BA = torch.special.entr(log_probs_BAV.exp()).sum(-1)
        return TokenScores(log_probs_BAV.gather(2, answers_BA[..., None])[..., 0], entropy_BA)

    @torch.no_grad()
    def sample(self, prompts_BP: torch.Tensor, generator: torch.Generator) -> TinyAnswers:
        """One answer per prompt, at temperature 1."""
        states_BLD, past = self._states(prompts_BP, 0, None)
        ended_B = torch.zeros(len(prompts_BP), dtype=torch.bool)
        ids, log_probs, mask = [], [], []
        for step in range(self.shape.answer):
            log_probs_BV = self._logits(states_BLD[:, -1]).log_softmax(-1)
            drawn_B = torch.multinomial(log_probs_BV.exp(), 1, generator=generator)[:, 0]
            drawn_B = torch.where(ended_B, 0, drawn_B)
            ids.append(drawn_B)
            log_probs.append(torch.where(ended_B, 0.0, log_probs_BV.gather(1, drawn_B[:, None])[:, 0]))
            mask.append(~ended_B)
            ended_B = ended_B | (drawn_B == 1)
            if bool(ended_B.all()):
                break
            states_BLD, past = self._states(drawn_B[:, None], self.shape.prompt + step, past)
        found = [torch.stack(each, 1) for each in (ids, log_probs, mask)]
        return TinyAnswers(*(functional.pad(each, (0, self.shape.answer - each.shape[1])) for each in found))

    @torch.no_grad()
    def share_right(self, prompts_BP: torch.Tensor, answers_BA: torch.Tensor) -> float:
        """The chance that a sampled answer is the right one, mean over prompts: exact, because there is one right answer."""
        scores = self.score(prompts_BP, answers_BA)
        return float(torch.where(answers_BA > 0, scores.log_probs_BT, 0.0).sum(1).exp().mean())
