"""A plain training step, which the trainer's step is compared with: no objective beyond a policy gradient, no guard, no bound, no shared prefix.

Rows are packed one after the other, attention is torch's over rows of different lengths, float32 masters compute in bfloat16 by autocast,
the head runs in chunks over sampled tokens, fused AdamW steps. With `compiled` its blocks are compiled. It imports nothing of the product.

Shapes: N tokens of all rows of a micro-batch, B rows, S sampled tokens, C of them in a chunk, D the width, H heads, E of one head.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # of an older torch
    varlen_attn = None

ATTENTION = "plain_packed"
"""The name under which transformers finds the attention below."""
CHUNK = 2048
"""Sampled tokens whose logits exist at once: 1.9 GB at a vocabulary of 151,936."""
LONGEST = 4096
"""Of a row. Always the same number, so that nothing is compiled for each length."""


class PlainRows(NamedTuple):
    """Rows of one forward pass, one after the other."""

    ids_N: torch.Tensor
    positions_N: torch.Tensor
    bounds_B: torch.Tensor
    """int32: where each row begins, and the end: one more than rows."""
    states_S: torch.Tensor
    """Places of the states that predict the sampled tokens."""
    labels_S: torch.Tensor
    advantages_S: torch.Tensor


def plain_rows(rows: Sequence[tuple[list[int], int, float]], max_tokens: int, device: str) -> list[PlainRows]:
    """Micro-batches of rows: token ids, the number of sampled tokens at the end, the advantage. In order, each within `max_tokens`."""
    found: list[list[tuple[list[int], int, float]]] = []
    room = 0
    for row in rows:
        if len(row[0]) > room or not found:
            found.append([])
            room = max_tokens
        found[-1].append(row)
        room -= len(row[0])
    return [_joined(each, device) for each in found]


def _joined(rows: Sequence[tuple[list[int], int, float]], device: str) -> PlainRows:
    lengths = torch.tensor([len(ids) for ids, _, _ in rows])
    bounds = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    sampled = torch.cat([torch.arange(int(end) - num, int(end)) for (_, num, _), end in zip(rows, bounds[1:], strict=True)])
    ids = torch.tensor([token for row, _, _ in rows for token in row])
    advantages = torch.tensor([advantage for _, num, advantage in rows for _ in range(num)])
    parts = ids, torch.cat([torch.arange(int(length)) for length in lengths]), bounds.int(), sampled - 1, ids[sampled], advantages
    return PlainRows(*(part.to(device) for part in parts))


class PlainStep:
    """A model in float32, trained by plain steps."""

    def __init__(self, model: Any, *, compiled: bool = False) -> None:
        model.config._attn_implementation = ATTENTION  # noqa: SLF001 the public setter wants an installed kernel
        self.model = model.train().requires_grad_(requires_grad=True)
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0, fused=True)
        self._place = next(model.parameters()).device.type
        for layer in model.model.layers if compiled else ():
            layer.compile(dynamic=True, backend="inductor" if self._place == "cuda" else "eager")

    def step(self, batches: Sequence[PlainRows]) -> None:
        """Learn from rows once."""
        num_sampled = sum(len(rows.labels_S) for rows in batches)
        for rows in batches:
            with torch.autocast(self._place, torch.bfloat16):
                states_ND = _states(self.model, rows)
                parts = zip(*(each.split(CHUNK) for each in (states_ND[rows.states_S], rows.labels_S, rows.advantages_S)), strict=True)
                pieces = [
                    checkpoint(_minus_log_probs, self.model.lm_head, states, labels, use_reentrant=False) @ advantages
                    for states, labels, advantages in parts
                ]
            torch.autograd.backward(torch.stack(pieces).sum() / num_sampled)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()


def log_probs(model: Any, rows: PlainRows) -> torch.Tensor:
    """Of the sampled tokens [S], float32. The model's own attention is what it was afterwards."""
    before = model.config._attn_implementation  # noqa: SLF001 the public setter wants an installed kernel
    model.config._attn_implementation = ATTENTION  # noqa: SLF001 as above
    try:
        with torch.no_grad(), torch.autocast(rows.ids_N.device.type, torch.bfloat16):
            states_SD = _states(model, rows)[rows.states_S]
            parts = zip(states_SD.split(CHUNK), rows.labels_S.split(CHUNK), strict=True)
            return torch.cat([-_minus_log_probs(model.lm_head, *part) for part in parts])
    finally:
        model.config._attn_implementation = before  # noqa: SLF001 as above


def _states(model: Any, rows: PlainRows) -> torch.Tensor:
    output = model.model(
        input_ids=rows.ids_N[None], position_ids=rows.positions_N[None], use_cache=False, bounds_B=rows.bounds_B
    )
    states_ND: torch.Tensor = output.last_hidden_state[0]
    return states_ND


def _minus_log_probs(head: Any, states_CD: torch.Tensor, labels_C: torch.Tensor) -> torch.Tensor:
    return cross_entropy(head(states_CD).float(), labels_C, reduction="none")


def _attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _mask: Any, *, bounds_B: torch.Tensor, **_: Any
) -> tuple[torch.Tensor, None]:
    """Causal attention within each row, as transformers calls it: [1, H, N, E] in, [1, N, H, E] out."""
    # Norms with float32 weights leave wider queries and keys.
    query, key, value = (each[0].transpose(0, 1).to(torch.bfloat16) for each in (query, key, value))
    if VARLEN is not None and query.is_cuda:
        if "enable_gqa" not in VARLEN:
            key, value = (each.repeat_interleave(module.num_key_value_groups, 1) for each in (key, value))
        return varlen_attn(query, key, value, bounds_B, bounds_B, LONGEST, LONGEST, **VARLEN)[None], None
    found, bounds = [], bounds_B.tolist()
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):  # cuDNN would plan for each new length
        for start, end in pairwise(bounds):
            row = [each[start:end].transpose(0, 1)[None] for each in (query, key, value)]
            states = scaled_dot_product_attention(*row, is_causal=True, enable_gqa=True)
            found.append(states[0].transpose(0, 1))
    return torch.cat(found)[None], None


def _varlen_options() -> dict[str, Any] | None:
    """How this release of torch is asked for causal attention over rows of different lengths; None: it cannot."""
    if varlen_attn is None:
        return None
    known = inspect.signature(varlen_attn).parameters
    causal: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
    return causal | ({"enable_gqa": True} if "enable_gqa" in known else {})


VARLEN = _varlen_options()
AttentionInterface.register(ATTENTION, _attention)
