"""A plain training step that the trainer's is compared with: a policy gradient without guard, bound, anchor or shared prefixes.

Rows are packed one after the other, attention is torch's over rows of different lengths, float32 masters compute in bfloat16 by autocast,
the head runs in chunks over sampled tokens, fused AdamW steps. With `compiled` its blocks are compiled. Nothing of the product is imported.

Shapes: N tokens of all rows of a forward pass, B rows, S sampled tokens, H heads, E of one head.
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
    from torch.nn.attention import varlen
except ImportError:  # of an older torch
    varlen = None  # type: ignore[assignment]  # an earlier torch

ATTENTION = "plain_packed"
"""The name under which transformers finds the attention below."""
CHUNK = 2048
"""Sampled tokens whose logits exist at once: 1.9 GB at a vocabulary of 151,936."""
LONGEST = 4096
"""Of a row. Always the same number, so that nothing is compiled for each length."""

PlainRow = tuple[list[int], int, float]
"""Token ids; how many of them, at the end, were sampled; their advantage."""


class PlainRows(NamedTuple):
    """Rows of one forward pass: `states` are the places [S] that predict the sampled tokens `labels`, `bounds` [B + 1] int32."""

    ids: torch.Tensor
    positions: torch.Tensor
    bounds: torch.Tensor
    states: torch.Tensor
    labels: torch.Tensor
    advantages: torch.Tensor


def plain_rows(rows: Sequence[PlainRow], max_tokens: int, device: str) -> list[PlainRows]:
    """Micro-batches of at most so many tokens, in order; a longer row is alone."""
    found: list[list[PlainRow]] = [[]]
    for row in rows:
        if found[-1] and sum(len(each[0]) for each in found[-1]) + len(row[0]) > max_tokens:
            found.append([])
        found[-1].append(row)
    return [_joined(each, device) for each in found]


def _joined(rows: Sequence[PlainRow], device: str) -> PlainRows:
    ends = torch.tensor([len(ids) for ids, _, _ in rows]).cumsum(0).tolist()
    sampled = torch.tensor(
        [place for (_, num, _), end in zip(rows, ends, strict=True) for place in range(end - num, end)]
    )
    ids = torch.tensor([token for row, _, _ in rows for token in row])
    positions = torch.tensor([place for row, _, _ in rows for place in range(len(row))])
    advantages = torch.tensor([advantage for _, num, advantage in rows for _ in range(num)])
    bounds = torch.tensor([0, *ends], dtype=torch.int32)
    return PlainRows(*(each.to(device) for each in (ids, positions, bounds, sampled - 1, ids[sampled], advantages)))


class PlainStep:
    """A model in float32, trained by plain steps."""

    def __init__(self, model: Any, *, compiled: bool = False) -> None:
        model.config._attn_implementation = ATTENTION  # noqa: SLF001 the public setter wants an installed kernel
        self._model = model.train().requires_grad_(requires_grad=True)
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0, fused=True)
        self._device = next(model.parameters()).device.type
        for layer in model.model.layers if compiled else ():
            layer.compile(dynamic=True, backend="inductor" if self._device == "cuda" else "eager")

    def step(self, batches: Sequence[PlainRows]) -> None:
        """Learn from rows once."""
        num_sampled = sum(len(rows.labels) for rows in batches)
        for rows in batches:
            with torch.autocast(self._device, torch.bfloat16):
                parts = (
                    torch.split(_states(self._model, rows), CHUNK),
                    torch.split(rows.labels, CHUNK),
                    torch.split(rows.advantages, CHUNK),
                )
                losses = [
                    checkpoint(_losses, self._model.lm_head, states, labels, use_reentrant=False) @ advantages
                    for states, labels, advantages in zip(*parts, strict=True)
                ]
            torch.autograd.backward(torch.stack(losses).sum() / num_sampled)
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()


def log_probs(model: Any, rows: PlainRows) -> torch.Tensor:
    """Of the sampled tokens [S], float32. Afterwards the model has its own attention again."""
    before = model.config._attn_implementation  # noqa: SLF001 the public setter wants an installed kernel
    model.config._attn_implementation = ATTENTION  # noqa: SLF001 as above
    try:
        with torch.no_grad(), torch.autocast(rows.ids.device.type, torch.bfloat16):
            parts = zip(torch.split(_states(model, rows), CHUNK), torch.split(rows.labels, CHUNK), strict=True)
            return -torch.cat([_losses(model.lm_head, *part) for part in parts])
    finally:
        model.config._attn_implementation = before  # noqa: SLF001 as above


def _states(model: Any, rows: PlainRows) -> torch.Tensor:
    """What predicts the sampled tokens [S, width]."""
    inputs = {"input_ids": rows.ids[None], "position_ids": rows.positions[None], "use_cache": False}
    states: torch.Tensor = model.model(**inputs, bounds=rows.bounds).last_hidden_state[0, rows.states]
    return states


def _losses(head: Any, states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return cross_entropy(head(states).float(), labels, reduction="none")


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: Any,
    *,
    bounds: torch.Tensor,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each row, as transformers calls it: [1, H, N, E] in, [1, N, H, E] out."""
    # Norms with float32 weights leave wider queries and keys.
    query, key, value = (each[0].transpose(0, 1).to(torch.bfloat16) for each in (query, key, value))
    if VARLEN is None or not query.is_cuda:
        return _row_by_row(query, key, value, bounds)[None], None
    if "enable_gqa" not in VARLEN:
        key, value = (each.repeat_interleave(module.num_key_value_groups, 1) for each in (key, value))
    states: Any = varlen.varlen_attn(query, key, value, bounds, bounds, LONGEST, LONGEST, **VARLEN)
    return states[None], None


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _row_by_row(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
    """The same on a CPU, and with a torch that has nothing for it: [N, H, E]."""
    found = []
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):  # cuDNN would plan for each new length
        for start, end in pairwise(bounds.tolist()):
            q, k, v = (each[start:end].transpose(0, 1)[None] for each in (query, key, value))
            found.append(scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1))
    return torch.cat(found)


def _varlen_options() -> dict[str, Any] | None:
    """How this release of torch is asked for causal attention over rows of different lengths; None: it cannot."""
    known = inspect.signature(varlen.varlen_attn).parameters if varlen is not None else {}
    causal: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
    return causal | ({"enable_gqa": True} if "enable_gqa" in known else {}) if known else None


VARLEN = _varlen_options()
AttentionInterface.register(ATTENTION, _attention)
