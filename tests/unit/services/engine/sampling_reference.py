"""The distribution that each token should be drawn from, recomputed with numpy from a plain forward of the model: no code of the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

Logits = np.ndarray[Any, np.dtype[np.float64]]
Allowed = Callable[[list[int]], np.ndarray[Any, np.dtype[np.bool_]]]


def plain_logits(model: Any, prompt: list[int], answer: list[int]) -> Logits:
    """Logits [T, V] of the positions that predict the answer, by one forward without a cache."""
    with torch.no_grad():
        ids = torch.tensor([prompt + answer], device=model.device)
        logits = model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    found: Logits = logits.double().cpu().numpy()
    return found


def distributions(
    logits: Logits, prompt: list[int], answer: list[int], params: dict[str, Any], allowed: Allowed | None = None
) -> Logits:
    """Log-probs [T, V] of the distribution of each token of the answer, by vLLM's definitions in vLLM's order."""
    rows = []
    for place, found in enumerate(logits):
        row, made = found.copy(), answer[:place]
        if allowed is not None:
            row[~allowed(made)] = -np.inf
        for token_id, value in params.get("logit_bias", {}).items():
            row[int(token_id)] += value
        row = _penalised(row, prompt, made, params)
        temperature = params.get("temperature", 1.0)
        if temperature == 0:
            rows.append(np.where(np.arange(len(row)) == row.argmax(), 0.0, -np.inf))
            continue
        rows.append(_truncated(row / temperature, params))
    return np.array(rows)


def _penalised(row: Logits, prompt: list[int], made: Sequence[int], params: dict[str, Any]) -> Logits:
    row = row.copy()
    num_answer = params.get("num_made", 0)
    answer = prompt[len(prompt) - num_answer :] + list(made)
    for token_id in set(prompt) | set(made):
        penalty = params.get("repetition_penalty", 1.0)
        row[token_id] = row[token_id] / penalty if row[token_id] > 0 else row[token_id] * penalty
    for token_id in set(answer):
        row[token_id] -= params.get("frequency_penalty", 0.0) * answer.count(token_id)
        row[token_id] -= params.get("presence_penalty", 0.0)
    return row


def _truncated(row: Logits, params: dict[str, Any]) -> Logits:
    share = _softmax(row)
    row = np.where(share < params.get("min_p", 0.0) * share.max(), -np.inf, row)
    if params.get("top_k", 0) > 0:
        row = np.where(row < np.sort(row)[-params["top_k"]], -np.inf, row)
    share = _softmax(row)
    order = np.argsort(-share, kind="stable")
    before = np.cumsum(share[order]) - share[order]
    if params.get("top_p", 1.0) < 1:
        row = row.copy()
        row[order[before >= params["top_p"]]] = -np.inf
    with np.errstate(divide="ignore"):
        return np.log(_softmax(row))


def _softmax(row: Logits) -> Logits:
    shares = np.exp(row - row.max())
    found: Logits = shares / shares.sum()
    return found
