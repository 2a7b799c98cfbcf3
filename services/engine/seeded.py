"""Seeded sampling: the same version, prompt, sampling parameters and seed give the same tokens in any batch.

In: the processed scores of a step, and the seeds of its requests. Out: for rows with a seed, another token and its log-prob.
Waits for: nothing.

A token is chosen by Gumbel-max: the largest sum of log-prob and noise is a sample of the softmax (Gumbel 1954; Maddison, Tarlow
and Minka 2014). The noise of a token is a pure function of the seed, the position in the sequence and the token id. It is
computed with integers (SplitMix64: Steele, Lea and Flood 2014), so it is the same on every device and in every batch. Only the
rounding of batched matmuls remains: a choice differs only if the two largest sums are that close. Positions count from the first
token of the prompt, so an answer that continues after a restart gets the noise that it would have had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_GOLDEN, _PLACE = 0x9E3779B97F4A7C15, 0xD1342543DE82EF95
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = (1 << 64) - 1
_BELOW_ONE = 1 - 2.0**-24


def gumbel_noise(seeds: list[int], places: list[int], vocab_size: int, device: torch.device | str) -> torch.Tensor:
    """Standard Gumbel noise [B, V], float32: a function of only a row's seed, its position and the token id."""
    keys = torch.tensor([_key(seed, place) for seed, place in zip(seeds, places, strict=True)], device=device)
    state = torch.arange(1, vocab_size + 1, device=device) * _signed(_GOLDEN)
    bits = _mixed(keys[:, None] + state)
    # The largest noise comes from u near 0, where floats are dense: -log(-log1p(-u)), with u never 0 or 1.
    uniform = (_shifted(bits, 1) | 1).float().mul_(2.0**-63).clamp_(max=_BELOW_ONE)
    return uniform.neg_().log1p_().neg_().log_().neg_()


class SeededSampling:
    """The sampling function of a model runner; see the module.

    Args:
        runner: transformers' model runner. Its batches must be synchronous: the requests it lists must be those of the step.
    """

    def __init__(self, runner: Any) -> None:
        self._sample: Callable[[torch.Tensor, torch.Tensor], None] = runner._sample  # noqa: SLF001 there is no public hook
        self._batch = runner.inputs_and_outputs

    def __call__(self, scores: torch.Tensor, output_ids: torch.Tensor) -> None:
        """Sample scores [1, B, V] into output ids [2, >= B] int32: tokens, and the bits of their float32 log-probs."""
        self._sample(scores, output_ids)
        states = [request.state for request in self._batch.requests_in_batch if request.has_new_token]
        rows = [row for row, state in enumerate(states) if "seed" in state.logit_processor_kwargs]
        if not rows:
            return
        seeds = [states[row].logit_processor_kwargs["seed"] for row in rows]
        places = [len(states[row].initial_tokens) + len(states[row].generated_tokens) for row in rows]
        logprobs_bv = scores[0, rows].log_softmax(-1)
        noise_bv = gumbel_noise(seeds, places, logprobs_bv.size(1), logprobs_bv.device)
        chosen = (logprobs_bv + noise_bv).argmax(-1)
        output_ids[0, rows] = chosen.to(output_ids.dtype)
        output_ids[1, rows] = logprobs_bv.gather(1, chosen[:, None])[:, 0].view(torch.int32)


def _key(seed: int, place: int) -> int:
    return _signed(_mixed_word(_mixed_word(seed) + place * _PLACE))


def _mixed_word(word: int) -> int:
    word &= _WORD
    word = (word ^ word >> 30) * _MIX_1 & _WORD
    word = (word ^ word >> 27) * _MIX_2 & _WORD
    return word ^ word >> 31


def _mixed(words: torch.Tensor) -> torch.Tensor:
    words = (words ^ _shifted(words, 30)) * _signed(_MIX_1)
    words = (words ^ _shifted(words, 27)) * _signed(_MIX_2)
    return words ^ _shifted(words, 31)


def _shifted(words: torch.Tensor, num_bits: int) -> torch.Tensor:
    # An int64 shift copies the sign; these bits are cleared.
    return (words >> num_bits) & ((1 << 64 - num_bits) - 1)


def _signed(word: int) -> int:
    word &= _WORD
    return word - (1 << 64) if word >> 63 else word
