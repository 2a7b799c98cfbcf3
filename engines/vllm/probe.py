"""The binding probe: whether a server that accepted an adapter computes with it. Fixed prompts are scored by the adapter and by its base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from contracts.errors import WeightsRefused
from engines.vllm.adapter_server import AdapterServer
from runtime.base_policy import model_of
from weights.tensors import Tensors

_NOISES = 2.0
"""An adapter that is used differs from the base by more than so many times what the base differs from itself.

Drawn with normal noise, 1.4% of those that bind nothing pass, and 78% of those that move log-probs by three deviations.
"""
_NUM_PROMPTS, _PROMPT_TOKENS = 8, 12


def check_binding(server: AdapterServer, base: str, name: str, prompts: Sequence[Sequence[int]]) -> None:
    """Raises WeightsRefused: `adapter_unbound`, the scores of an adapter do not differ from its base's. Unavailable: the server is away.

    By how much the base's differ from themselves is measured too: other requests beside them change a few bits. Each prompt is scored
    before, with and after, so that all three meet the same load. Without any, the base repeats itself, and the smallest difference
    counts: the first steps of an adapter change little.
    """
    before, adapted, after = [], [], []
    for prompt in prompts:
        before += server.scores(base, [prompt])
        adapted += server.scores(name, [prompt])
        after += server.scores(base, [prompt])
    moved, noise = min(distance(before, adapted), distance(after, adapted)), distance(before, after)
    if moved <= _NOISES * noise:
        raise WeightsRefused(
            "adapter_unbound",
            f"vLLM accepted {name}, and its log-probs differ from the base's by {moved:.2g}, the base's from themselves by {noise:.2g}: "
            "none of its targets is bound, or it changes too little to be seen under this load",
        )


def distance(some: Sequence[Mapping[int, float]], others: Sequence[Mapping[int, float]]) -> float:
    """The mean difference in log-prob; a token that only one of two has counts for the other as its least likely."""
    return fmean(
        abs(one.get(token, min(one.values())) - other.get(token, min(other.values())))
        for one, other in zip(some, others, strict=True)
        for token in one.keys() | other.keys()
    )


def is_trained(tensors: Tensors) -> bool:
    """False if all B are zero, as before the first step: such an adapter changes nothing."""
    factors = (tensor for name, tensor in tensors.items() if name.endswith("lora_B.weight"))
    return any(np.any(tensor.data.view("<u2") & 0x7FFF) for tensor in factors)


def probe_prompts(base: Path) -> list[list[int]]:
    """The same token ids of the base's vocabulary each time."""
    config = model_of(base)
    size = int((config if "vocab_size" in config else config["text_config"])["vocab_size"])
    shape = (_NUM_PROMPTS, _PROMPT_TOKENS)
    return [[int(token) for token in prompt] for prompt in np.random.default_rng(0).integers(0, size, shape)]
