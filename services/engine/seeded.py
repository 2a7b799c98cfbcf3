"""The noise of seeded sampling: the same version, prompt, sampling parameters and seed give the same tokens in any batch. Pure.

A token is chosen by Gumbel-max: the largest sum of log-prob and noise is a sample of the softmax (Gumbel 1954; Maddison, Tarlow
and Minka 2014). The noise of a token is a pure function of the seed, the position in the sequence and the token id. It is
computed with integers (SplitMix64: Steele, Lea and Flood 2014), so it is the same on every device and in every batch. Only the
rounding of batched matmuls remains: a choice differs only if the two largest sums are that close. Positions count from the first
token of the prompt, so an answer that continues after a restart gets the noise that it would have had.
"""

from __future__ import annotations

import torch

_GOLDEN, _PLACE = 0x9E3779B97F4A7C15, 0xD1342543DE82EF95
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = (1 << 64) - 1
_BELOW_ONE = 1 - 2.0**-24


def gumbel_noise(seeds: list[int], places: list[int], vocab_size: int, device: torch.device | str) -> torch.Tensor:
    """Standard Gumbel noise [B, V], float32: a function of only a row's seed, its position and the token id."""
    pairs = zip(seeds, places, strict=True)
    keys = torch.tensor([_signed(_mixed(_mixed(seed) + place * _PLACE)) for seed, place in pairs], device=device)
    state = torch.arange(1, vocab_size + 1, device=device) * _signed(_GOLDEN)
    words = keys[:, None] + state
    words = (words ^ _shifted(words, 30)) * _signed(_MIX_1)
    words = (words ^ _shifted(words, 27)) * _signed(_MIX_2)
    bits = words ^ _shifted(words, 31)
    # The largest noise comes from u near 0, where floats are dense: -log(-log1p(-u)), with u never 0 or 1.
    uniform = (_shifted(bits, 1) | 1).float().mul_(2.0**-63).clamp_(max=_BELOW_ONE)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def _mixed(word: int) -> int:
    word &= _WORD
    word = (word ^ word >> 30) * _MIX_1 & _WORD
    word = (word ^ word >> 27) * _MIX_2 & _WORD
    return word ^ word >> 31


def _shifted(words: torch.Tensor, num_bits: int) -> torch.Tensor:
    # An int64 shift copies the sign; these bits are cleared.
    return (words >> num_bits) & ((1 << 64 - num_bits) - 1)


def _signed(word: int) -> int:
    word &= _WORD
    return word - (1 << 64) if word >> 63 else word
