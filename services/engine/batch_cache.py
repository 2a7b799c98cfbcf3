"""One cache for a batch of sequences, made of transformers' caches of single ones: rows join, advance together and leave.

Recurrent states have a size of their own, so rows lie beside each other. Keys and values are as long as their sequence, so shorter
rows are padded on the left, where the attention mask hides them. Sliding windows and other caches cannot be joined: their sequences
are advanced one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.functional import pad
from transformers.cache_utils import (
    DynamicLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
)

_JOINABLE = (DynamicLayer, LinearAttentionLayer, LinearAttentionAndFullAttentionLayer)
_STATES = ("conv_states", "recurrent_states")


def has_keys(cache: Any) -> bool:
    """True if some layer keeps keys and values, so that a padded batch needs an attention mask."""
    return any(isinstance(layer, DynamicLayer) for layer in cache.layers)


def is_joinable(cache: Any) -> bool:
    """True if the sequences of such caches can be advanced in one batch."""
    return all(type(layer) in _JOINABLE for layer in cache.layers)


class BatchCache:
    """See the module. `cache` is None while there are no rows; `lengths` counts the tokens of each, in the order of joining."""

    def __init__(self) -> None:
        self.cache: Any = None
        self.lengths: list[int] = []

    def join(self, cache: Any, length: int) -> None:
        """Add a row. Its cache is taken over: it must not be used again."""
        if self.cache is None:
            self.cache = cache
        else:
            for layer, other in zip(self.cache.layers, cache.layers, strict=True):
                for name, place in _states(layer):
                    states = getattr(layer, name)
                    states[place] = torch.cat([states[place], getattr(other, name)[place]])
                if _has_keys(layer):
                    longest = max(layer.keys.size(2), other.keys.size(2))
                    layer.keys = torch.cat([_padded(layer.keys, longest), _padded(other.keys, longest)])
                    layer.values = torch.cat([_padded(layer.values, longest), _padded(other.values, longest)])
        self.lengths.append(length)

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all other rows, and the padding that no row needs any more."""
        if len(rows) == len(self.lengths):
            return
        self.lengths = [self.lengths[row] for row in rows]
        if not rows:
            self.cache = None
            return
        longest = max(self.lengths)
        for layer in self.cache.layers:
            index = torch.tensor(rows, device=layer.device)
            for name, place in _states(layer):
                states = getattr(layer, name)
                states[place] = states[place].index_select(0, index)
            if _has_keys(layer):
                layer.keys = layer.keys.index_select(0, index)[:, :, -longest:]
                layer.values = layer.values.index_select(0, index)[:, :, -longest:]

    def advance(self) -> None:
        """Count one more token in each row, after a forward with one token of each."""
        self.lengths = [length + 1 for length in self.lengths]

    def attention_mask(self, device: torch.device) -> torch.Tensor:
        """For a forward with one more token of each row: int64 [B, longest + 1], 0 where a row is padded."""
        total = max(self.lengths) + 1
        starts = torch.tensor([total - length - 1 for length in self.lengths], device=device)
        return (torch.arange(total, device=device) >= starts[:, None]).long()


def _states(layer: Any) -> Iterator[tuple[str, int]]:
    """Each recurrent state of a layer: the name of the dict that holds it, and its place there."""
    if isinstance(layer, LinearAttentionCacheLayerMixin):
        for name in _STATES:
            yield from ((name, place) for place, state in getattr(layer, name).items() if state is not None)


def _has_keys(layer: Any) -> bool:
    return isinstance(layer, DynamicLayer) and layer.is_initialized


def _padded(keys: torch.Tensor, length: int) -> torch.Tensor:
    """Keys or values [B, heads, T, D], padded on the left to `length`."""
    return pad(keys, (0, 0, length - keys.size(2), 0))
