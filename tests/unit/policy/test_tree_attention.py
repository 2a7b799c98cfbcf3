"""Attention over a tree, and its gradient, equal attention with the tree's mask."""

from __future__ import annotations

import torch

from policy.tree_attention import tree_attention

#: Two roots; the first has two children, and the second of them a child.
RANGES = ((0, 5, 14), (5, 8, 8), (8, 10, 14), (10, 14, 14), (14, 17, 17))
PARENTS = (None, 0, 0, 2, None)


def allowed() -> torch.Tensor:
    """Which token sees which, [N, N]."""
    found = torch.zeros(17, 17, dtype=torch.bool)
    for number, (start, end, _) in enumerate(RANGES):
        found[start:end, start:end] = torch.ones(end - start, end - start).tril().bool()
        parent = PARENTS[number]
        while parent is not None:
            found[start:end, RANGES[parent][0] : RANGES[parent][1]] = True
            parent = PARENTS[parent]
    return found


def test_states_and_slopes_equal_those_of_masked_attention() -> None:
    torch.manual_seed(3)
    whole = [torch.randn(1, heads, 17, 8, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)]
    query, key, value = whole
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=allowed(), scale=0.3, enable_gqa=True
    )
    slope = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, whole, slope)
    found = tree_attention(query, key, value, RANGES, 0.3)
    slopes = torch.autograd.grad(found, whole, slope)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)  # denominators are float32
    for one, other in zip(slopes, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
