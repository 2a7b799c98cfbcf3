"""How far two correct computations of one number may lie apart: by dtype, length of the sums and how many follow another.

CPUs sum in different orders: AVX-512, AVX2, NEON and plain code give results that differ in the last bits. Exact where
exactness is the promise (weights, deltas, what was restored); elsewhere a tolerance of a test is computed here.
"""

from __future__ import annotations

from typing import Any

import torch

# In the order of the data: queries and keys, scores, mixed values, output, gate and up, down.
_MATMULS_PER_LAYER = 6


def tolerance(dtype: torch.dtype, num_terms: int, depth: int = 1, scale: float = 1.0) -> float:
    """The most by which two computations of `depth` sums after one another, of `num_terms` products each, differ.

    A sum of n rounded products, in whatever order, is off by at most n u / (1 - n u) times the sum of their magnitudes,
    where u is half of the dtype's epsilon (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed. 2002, section
    3.1). Two computations lie twice as far apart, which is n epsilon, and to first order the errors of sums that follow
    one another add up. Typical errors grow with the square root of n (Higham and Mary 2019), so this leaves room for a
    `scale` that is only roughly known, and is far below what a wrong result shows.

    Args:
        dtype: in which is summed.
        num_terms: of the longest sum.
        depth: how many such sums follow one another.
        scale: the magnitude of the compared values; above 1 also where a later step multiplies errors.
    """
    return torch.finfo(dtype).eps * num_terms * depth * scale


def network_tolerance(config: Any, temperature: float = 1.0, *, backward: bool = False) -> float:
    """The tolerance for float32 log-probs (or with `backward` gradients at scale 1) of a transformer of this configuration.

    The log-softmax divides by the temperature whatever error the logits have.
    """
    depth = _MATMULS_PER_LAYER * config.num_hidden_layers + 1
    # The mixer of a state space is `expand` times as wide as the rest, GPT-2's dense layers are 4 times.
    widest = getattr(config, "intermediate_size", 0) or getattr(config, "expand", 4) * config.hidden_size
    num_terms = max(config.hidden_size, widest)
    return tolerance(torch.float32, num_terms, depth * (2 if backward else 1), 1 / temperature)
