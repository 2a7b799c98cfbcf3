"""Attention over a tree of token runs: each run sees its ancestors and, causally, itself; nothing is copied, padded or masked.

The runs stand in one row, each before its descendants, so the descendants of a run are the tokens right after it. One call lets all
of them look at the run, whatever their number; another lets the run look at itself. Both give the logarithm of their softmax's
denominator, and what a token sees in all is the mean of its parts, weighted by denominators (Milakov and Gimelshein, arXiv
1805.02867). The gradient of each part follows from the whole output and the whole denominator alone (FlashAttention, arXiv
2205.14135, appendix B), so the same kernel runs backward, part by part.

Here is how the CPU does it; `flash_attention` does the same on a GPU, with a call for all runs of one depth.

Shapes: H heads, N tokens, D width of a head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from policy.flash_attention import FlashPlan, Range, flash_attention, takes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001 the public call hides the denominator
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001 as above


def tree_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, tree: Sequence[Range] | FlashPlan, scale: float
) -> torch.Tensor:
    """Attention [1, H, N, D] of states of the same shape. `tree`: on the CPU ranges of all tokens, parents first; on a GPU its plan."""
    if torch.is_autocast_enabled(query.device.type):  # as it would for torch's own attention
        query, key, value = (each.to(torch.get_autocast_dtype(query.device.type)) for each in (query, key, value))
    if isinstance(tree, FlashPlan):
        return flash_attention(query, key, value, tree, scale)
    found: torch.Tensor = _TreeAttention.apply(query, key, value, tree, scale)  # type: ignore[no-untyped-call]
    return found


def can_compute(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, tree: Sequence[Range] | FlashPlan) -> bool:
    """True if the kernel for this tree takes these states; keys may have fewer heads, which divide those of the queries."""
    if isinstance(tree, FlashPlan):
        return takes(query, key, value)
    alike = key.shape == value.shape and query.shape[2:] == key.shape[2:]
    return query.device.type == "cpu" and alike and query.shape[1] % key.shape[1] == 0


class _TreeAttention(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 autograd passes by position
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ranges: Sequence[Range], scale: float
    ) -> torch.Tensor:
        found = torch.empty_like(query.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)
        dtype = torch.promote_types(query.dtype, torch.float32)
        denominator = query.new_empty((1, query.shape[2], query.shape[1]), dtype=dtype).transpose(1, 2)
        for seen, (start, end), (first, last) in _parts(ranges):
            part, its_denominator = _forward(
                query[:, :, first:last],
                key[:, :, start:end],
                value[:, :, start:end],
                is_causal=first == start,
                scale=scale,
            )
            if seen:
                before = denominator[:, :, first:last]
                both = torch.logaddexp(before, its_denominator)
                share = (its_denominator - both).exp()[..., None].to(part.dtype)
                found[:, :, first:last].lerp_(part, share)
                before.copy_(both)
            else:
                found[:, :, first:last] = part
                denominator[:, :, first:last] = its_denominator
        ctx.save_for_backward(query, key, value, found, denominator)
        ctx.ranges, ctx.scale = ranges, scale
        return found

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, found, denominator = ctx.saved_tensors
        slopes = [torch.empty_like(each) for each in (query, key, value)]
        written = 0  # tokens whose keys have a slope
        for seen, (start, end), (first, last) in _parts(ctx.ranges):
            parts = _backward(
                slope[:, :, first:last],
                query[:, :, first:last],
                key[:, :, start:end],
                value[:, :, start:end],
                found[:, :, first:last],
                denominator[:, :, first:last],
                0.0,
                first == start,
                scale=ctx.scale,
            )
            places = ((first, last), (start, end), (start, end))
            for whole, part, (begin, stop), adds in zip(
                slopes, parts, places, (seen, end <= written, end <= written), strict=True
            ):
                if adds:
                    whole[:, :, begin:stop] += part
                else:
                    whole[:, :, begin:stop] = part
            written = max(written, end)
        return (*slopes, None, None)


def _parts(ranges: Sequence[Range]) -> Iterator[tuple[bool, tuple[int, int], tuple[int, int]]]:
    """Per kernel call: did its queries have a part before; the tokens seen; the tokens that look."""
    covered = 0
    for start, end, last in ranges:
        has_parent = start < covered
        covered = max(covered, last)
        yield has_parent, (start, end), (start, end)
        if last > end:
            yield has_parent, (start, end), (end, last)
