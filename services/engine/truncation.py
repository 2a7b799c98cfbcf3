"""Leaves out unlikely tokens: min-p, top-k and top-p, as vLLM defines them. Pure functions of logits."""

from __future__ import annotations

import torch


def min_p(scores_bv: torch.Tensor, shares_b: torch.Tensor) -> torch.Tensor:
    """Leave out tokens less likely than a share of the likeliest (Nguyen et al. 2024, arXiv:2407.01082).

    p < share * max(p) is the same as logit < max(logit) + log(share). The likeliest token always stays; 0 leaves out nothing.
    """
    least = scores_bv.amax(-1) + shares_b.log()
    return scores_bv.masked_fill(scores_bv < least[:, None], -torch.inf)


def top_k(scores_bv: torch.Tensor, counts_b: torch.Tensor) -> torch.Tensor:
    """Leave out tokens with a smaller logit than the `count` likeliest; with ties more than `count` stay."""
    best = scores_bv.topk(int(counts_b.max()), dim=-1).values
    least = best.gather(1, counts_b[:, None] - 1)
    return scores_bv.masked_fill(scores_bv < least, -torch.inf)


def top_p(scores_bv: torch.Tensor, shares_b: torch.Tensor) -> torch.Tensor:
    """Keep the fewest likeliest tokens whose probabilities reach a share (Holtzman et al. 2019, arXiv:1904.09751).

    At least one token stays. The probabilities are those of the tokens that earlier filters left.
    """
    ascending, order = scores_bv.sort(dim=-1)
    is_out = ascending.softmax(-1).cumsum(-1) <= 1 - shares_b[:, None]
    is_out[:, -1] = False
    return scores_bv.masked_fill(torch.empty_like(is_out).scatter_(1, order, is_out), -torch.inf)
