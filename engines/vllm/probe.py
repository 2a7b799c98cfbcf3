"""The binding probe: whether a server that accepted an adapter computes with it, and as the trainer does. Prompts are scored by adapter and base."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from contracts.errors import WeightsRefused
from engines.vllm.adapter_server import AdapterServer
from runtime.base_policy import model_of
from weights.probe import ProbeAnswers, Scores
from weights.tensors import Tensors

_NOISES = 2.0
"""An adapter that is used differs from the base by more than so many times what the base differs from itself.

Drawn with normal noise, 1.4% of those that bind nothing pass, and 78% of those that move log-probs by three deviations.
"""
_ERRORS = 4.0
"""How many times the error to be expected two right computations may lie apart."""
_SUMS_PER_LAYER = 6
"""Queries and keys, scores, mixed values, output, gate and up, down."""
_EPSILONS = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


class Probed(NamedTuple):
    """What a server said: its base before and after each answer of the adapter, so that all three met the same load."""

    before: Scores
    adapted: Scores
    after: Scores


def probed(server: AdapterServer, base: str, name: str, prompts: Sequence[Sequence[int]]) -> Probed:
    """Ask a server. Raises Unavailable."""
    found = Probed([], [], [])
    for prompt in prompts:
        for into, model in zip(found, (base, name, base), strict=True):
            into.extend(server.scores(model, [prompt]))
    return found


def check_binding(found: Probed, name: str, answers: ProbeAnswers | None, tolerance: float) -> None:
    """Raises WeightsRefused: `adapter_unbound`, an adapter's scores do not differ from its base's; `adapter_disagrees`, they are not the trainer's.

    Other requests beside them change a few bits: by how much is seen at the base. Without any, the base repeats itself, and the smallest
    difference counts: the first steps of an adapter change little. `answers`: the trainer's; None: it gave none. They may lie `tolerance`
    further apart than twice what the base's do, over which the same rounding comes, and no adapter.
    """
    before, adapted, after = found
    moved, noise = min(distance(before, adapted), distance(after, adapted)), distance(before, after)
    if moved <= _NOISES * noise:
        raise WeightsRefused(
            "adapter_unbound",
            f"vLLM accepted {name}, and its log-probs differ from the base's by {moved:.2g}, the base's from themselves by {noise:.2g}: "
            "none of its targets is bound, or it changes too little to be seen under this load",
        )
    if answers is None:
        return
    apart, usual = distance(adapted, answers.adapted), distance(before, answers.base)
    if apart > tolerance + _NOISES * usual:
        raise WeightsRefused(
            "adapter_disagrees",
            f"vLLM's log-probs with {name} differ from the trainer's by {apart:.2g}, and without it by {usual:.2g}; at most "
            f"{tolerance + _NOISES * usual:.2g} is rounding: a part of it is not bound, or scaled or placed otherwise",
        )


def tolerance_of(config: Mapping[str, Any], *dtypes: str) -> float:
    """How far mean log-probs of two right computations in these dtypes may lie apart, by the length of sums and how many follow one another.

    Each sum is rounded once to the coarser dtype, and its terms in float32; errors of random signs grow with the square root of their number
    (Higham and Mary 2019). `config`: of the text model.
    """
    longest = max(int(config.get(name) or 1) for name in ("hidden_size", "intermediate_size"))
    each = max(_EPSILONS[dtype] for dtype in dtypes) + _EPSILONS["float32"] * math.sqrt(longest)
    return _ERRORS * each * math.sqrt(_SUMS_PER_LAYER * int(config.get("num_hidden_layers") or 1) + 1)


def text_config(base: Path) -> Mapping[str, Any]:
    """What config.json says of the text model. Raises as `model_of`."""
    config = model_of(base)
    return config if "vocab_size" in config else config["text_config"]


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
