"""Users who correct an answer instead of voting: how much of it they keep, and what the trainer's own losses of text make of an edit.

Shapes: N answers, P tokens of prompts, A tokens of answers; R rows of text.
"""

# ruff: noqa: N803, N806 - tensors carry the letters of their dimensions

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from rapidfuzz.distance import Levenshtein

from benchmarks.objectives.model import TinyPolicy
from pipelines.training.text.losses import text_losses
from pipelines.training.text.samples import TextBatch, TextSample, rows_of, token_weights

Ids = tuple[int, ...]


def completions(ids_NA: torch.Tensor) -> list[Ids]:
    """Answers without their padding."""
    return [tuple(token for token in row if token) for row in ids_NA.tolist()]


def kept_shares(answers_NA: torch.Tensor, right_NA: torch.Tensor) -> torch.Tensor:
    """The share [N] of each answer that its user keeps, who makes it right: as `kept_share` of the rewards, in tokens."""
    pairs = zip(completions(answers_NA), completions(right_NA), strict=True)
    return torch.tensor([Levenshtein.normalized_similarity(answer, right) for answer, right in pairs])


@torch.no_grad()
def text_kept(policy: TinyPolicy, prompts_NP: torch.Tensor, right_NA: torch.Tensor, times: int = 4) -> float:
    """The share of sampled answers that users would keep, mean over prompts; always with the same chance."""
    random = torch.Generator().manual_seed(0)
    found = [kept_shares(policy.sample(prompts_NP, random).ids_BA, right_NA).mean() for _ in range(times)]
    return float(torch.stack(found).mean())


def edits_of(
    prompts_NP: torch.Tensor, answers_NA: torch.Tensor, right_NA: torch.Tensor, *, rl: float, ce: float, pair: float
) -> list[TextSample]:
    """A target and a pair for each answer that is not right, by the weights of their streams. Without rewards, a right one is a target."""
    found = []
    answers, rights = completions(answers_NA), completions(right_NA)
    for number, (prompt, answer, right) in enumerate(zip(prompts_NP.tolist(), answers, rights, strict=True)):
        about: dict[str, Any] = {"key": str(number), "revision": 0, "prompt_ids": tuple(prompt), "chosen_ids": right}
        is_right, weights = answer == right, token_weights(answer, right)
        if ce and not (is_right and rl):
            found.append(TextSample(kind="target", token_weights=weights, weight=ce, **about))
        if pair and not is_right:
            found.append(TextSample(kind="pair", rejected_ids=answer, weight=pair, **about))
    return found


def text_loss(policy: TinyPolicy, base: TinyPolicy, samples: Sequence[TextSample]) -> torch.Tensor:
    """A scalar with the gradient of the trainer's losses of text."""
    rows = rows_of(samples)
    width = max(len(row.completion_ids) for row in rows)
    prompts_RP = torch.tensor([row.prompt_ids for row in rows])
    ids_RA = torch.tensor([row.completion_ids + (0,) * (width - len(row.completion_ids)) for row in rows])
    weights_RA = torch.tensor([row.token_weights + (0.0,) * (width - len(row.token_weights)) for row in rows])
    current_R = (policy.score(prompts_RP, ids_RA).log_probs_BT * weights_RA).sum(1)
    with torch.no_grad():
        anchor_R = (base.score(prompts_RP, ids_RA).log_probs_BT * weights_RA).sum(1)
    found = text_losses(TextBatch.of(samples), current_R.tolist(), anchor_R.tolist())
    return (current_R * torch.tensor(found.factors)).sum()
