"""Attention over a tree of token runs on a GPU: one call of the flash kernel for all runs, and one per depth of the tree.

The first call lets each run look at itself, causally. Each further call lets the descendants of all runs of one depth look at their
run. Parts are merged, and gradients follow from the whole, as in `tree_attention`, which is the oracle of this file.

A call gets all tokens from the first that concerns it to the last, and nothing is gathered: the kernel takes pairs of query and key
ranges, each beginning where the one before ends. Queries without a key lie between the descendants of two runs, and keys without a
query between the runs. Of the former the kernel writes a denominator that is infinite, of the latter no slope.

`torch.nn.attention.varlen` calls the same two operators. Its backward pass knows one part only, and its arguments differ between
releases of torch; whoever registers a faster kernel there registers it for these operators.

Shapes: H heads, N tokens, D width of a head.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog
import torch

from policy.off_device import onto

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

log = structlog.get_logger()

_NUMBERS = 7
"""Numbers of a part: pairs of ranges, longest query and key range, first and last query, first and last key."""
_WIDEST = 256
"""Widths of a head that the kernel takes are multiples of 8 up to this."""
Range = tuple[int, int, int]
"""Of a run: its first token, the one after its last, and the one after its last descendant."""
_TRIAL: tuple[Range, ...] = ((0, 5, 14), (5, 8, 8), (8, 10, 14), (10, 14, 14), (14, 17, 17))
"""Two roots; the first has two children, and the second of them a child."""
_FAR = 0.03
"""Of the largest value: more than bfloat16's rounding."""


class FlashPlan(NamedTuple):
    """The calls for one tree: made on the host, moved once."""

    bounds: torch.Tensor
    """int32, on the device: of each part the bounds of its query ranges, then those of its key ranges."""
    parts: torch.Tensor
    """int64, on the host: `_NUMBERS` of each part."""


class _Part(NamedTuple):
    query_bounds: torch.Tensor
    key_bounds: torch.Tensor
    longest: tuple[int, int]
    looking: slice
    seen: slice


def plan_of(ranges: Sequence[Range], device: torch.device | str) -> FlashPlan:
    """The calls for runs that cover all tokens, parents first."""
    runs = _joined(ranges)
    every = [0, *(end for _, end, _ in runs)]
    parts = [(every, every, (0, every[-1]), (0, every[-1]))]
    parts += [_of_depth(level) for level in _with_descendants(runs)]
    numbers = [
        (len(queries) - 1, _longest(queries), _longest(keys), *looking, *seen) for queries, keys, looking, seen in parts
    ]
    bounds = torch.tensor([bound for queries, keys, *_ in parts for bound in (*queries, *keys)], dtype=torch.int32)
    return FlashPlan(onto(bounds, device), torch.tensor(numbers, dtype=torch.int64).flatten())


def takes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """True if the kernel takes these states [1, H, N, D], as they are or as autocast would have them."""
    device, width = query.device.type, query.shape[-1]
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype
    is_narrow = dtype in {torch.bfloat16, torch.float16}
    is_alike = key.shape == value.shape and query.shape[2:] == key.shape[2:] and query.shape[1] % key.shape[1] == 0
    return is_narrow and is_alike and width % 8 == 0 and width <= _WIDEST


def flash_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: FlashPlan, scale: float
) -> torch.Tensor:
    """Attention [1, H, N, D] of states of the same shape; keys may have fewer heads, which divide those of the queries."""
    states = [each[0].transpose(0, 1) for each in (query, key, value)]
    found: torch.Tensor = _attend(*states, *plan, scale)[0]
    return found.transpose(0, 1)[None]


@cache
def problem_on(device: torch.device) -> str:
    """Why a device cannot attend like this, found by a trial forward and backward; empty if it can."""
    generator = torch.Generator().manual_seed(0)
    whole = [torch.randn((1, heads, 17, 64), generator=generator) for heads in (4, 2, 2)]
    try:
        found, expected = (
            _trial([each.to(device, torch.bfloat16).requires_grad_() for each in whole], is_flash=is_flash)
            for is_flash in (True, False)
        )
        is_far = not all(  # NaN compares false
            (one - other).abs().max() <= _FAR * other.abs().max() for one, other in zip(found, expected, strict=True)
        )
        problem = "the flash kernel's results differ from those of masked attention" if is_far else ""
    except torch.OutOfMemoryError:
        raise  # says nothing about the kernel, and this is asked once
    except (RuntimeError, TypeError) as error:  # no such kernel here, or another release of torch
        problem = f"the flash kernel failed ({type(error).__name__}: {str(error).splitlines()[0]})"
    if problem:
        log.warning("attention of packed rows computes groups of nodes", device=str(device), reason=problem)
    return problem


def _trial(whole: list[torch.Tensor], *, is_flash: bool) -> list[torch.Tensor]:
    """States, and slopes of query, key and value, in float32."""
    query, key, value = whole
    device = query.device
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        if is_flash:
            states = flash_attention(query, key, value, plan_of(_TRIAL, device), 0.125)
        else:
            allowed = _allowed(_TRIAL).to(device)
            wide_key, wide_value = (each.float().repeat_interleave(2, dim=1) for each in (key, value))
            scores = (query.float() @ wide_key.mT * 0.125).masked_fill(~allowed, -torch.inf)
            states = scores.softmax(-1) @ wide_value
        slope = torch.linspace(-1, 1, states.numel()).view(states.shape).to(states)
        return [states.float(), *(each.float() for each in torch.autograd.grad(states, whole, slope))]


def _allowed(ranges: Sequence[Range]) -> torch.Tensor:
    """Which token sees which [N, N]."""
    num_tokens = ranges[-1][1]
    found = torch.zeros((num_tokens, num_tokens), dtype=torch.bool)
    for start, end, last in ranges:
        found[start:last, start:end] = True
    return found.tril()


def _joined(ranges: Sequence[Range]) -> list[Range]:
    """The runs, those with one child in one piece with it: together they are causal."""
    found: list[Range] = []
    for start, end, last in ranges:
        if found and found[-1][1:] == (start, last):
            found[-1] = (found[-1][0], end, last)
        else:
            found.append((start, end, last))
    return found


def _with_descendants(runs: Sequence[Range]) -> list[list[Range]]:
    """By depth, the runs that others look at."""
    levels: list[list[Range]] = []
    around: list[int] = []
    for start, end, last in runs:
        while around and around[-1] <= start:
            around.pop()
        if last > end:
            if len(around) == len(levels):
                levels.append([])
            levels[len(around)].append((start, end, last))
        around.append(last)
    return levels


def _of_depth(level: Sequence[Range]) -> tuple[list[int], list[int], tuple[int, int], tuple[int, int]]:
    """Bounds of query and key ranges, counted from the first of each, and where these and the last are among all tokens."""
    (first, looking, _), (*_, seen, last) = level[0], level[-1]
    queries, keys = [0], [0]
    for start, end, stop in level:
        for query, key in ((end - looking, keys[-1]), (end - looking, start - first), (stop - looking, end - first)):
            if (query, key) != (queries[-1], keys[-1]):
                queries.append(query)
                keys.append(key)
    return queries, keys, (looking, last), (first, seen)


def _longest(bounds: Sequence[int]) -> int:
    # With queries of one token each the kernel would take another way for grouped heads.
    return max(2, *(end - start for start, end in pairwise(bounds)))


def _parts_of(bounds: torch.Tensor, parts: torch.Tensor) -> Iterator[_Part]:
    numbers, place = parts.tolist(), 0
    for at in range(0, len(numbers), _NUMBERS):
        pairs, longest_query, longest_key, first, last, start, end = numbers[at : at + _NUMBERS]
        queries, keys = bounds[place : place + pairs + 1], bounds[place + pairs + 1 : place + 2 * pairs + 2]
        yield _Part(queries, keys, (longest_query, longest_key), slice(first, last), slice(start, end))
        place += 2 * (pairs + 1)


@torch.library.custom_op(
    "millrace::flash_tree",
    mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor value, Tensor bounds, Tensor parts, float scale) -> (Tensor, Tensor)",
)
def _attend(  # noqa: PLR0917 operators are called by position
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bounds: torch.Tensor,
    parts: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """States [N, H, D] and denominators [H, N], of states [N, H, D]. One operator, so that a compiled layer stays whole."""
    whole: tuple[torch.Tensor, torch.Tensor] | None = None
    for part in _parts_of(bounds, parts):
        states, its_denominator, *_ = torch.ops.aten._flash_attention_forward(  # noqa: SLF001 the public call hides the parts
            query[part.looking],
            key[part.seen],
            value[part.seen],
            part.query_bounds,
            part.key_bounds,
            *part.longest,
            0.0,
            whole is None,
            return_debug_mask=False,
            scale=scale,
        )
        if whole is None:
            whole = states, its_denominator
            continue
        found, before = whole[0][part.looking], whole[1][:, part.looking]
        its_denominator = its_denominator.masked_fill(its_denominator.isinf(), -torch.inf)  # it saw nothing
        both = torch.logaddexp(before, its_denominator)
        found.lerp_(states, (its_denominator - both).exp().T[..., None].to(states.dtype))
        before.copy_(both)
    assert whole is not None, "a plan has a part"  # noqa: S101 `plan_of` makes it
    return whole


@_attend.register_fake
def _(query: torch.Tensor, *_rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    num_tokens, num_heads, _width = query.shape
    return torch.empty_like(query), query.new_empty((num_heads, num_tokens), dtype=torch.float32)


@torch.library.custom_op(
    "millrace::flash_tree_backward",
    mutates_args=(),
    schema="(Tensor slope, Tensor query, Tensor key, Tensor value, Tensor found, Tensor denominator, Tensor bounds, Tensor parts, "
    "float scale) -> (Tensor, Tensor, Tensor)",
)
def _slopes(  # noqa: PLR0917 operators are called by position
    slope: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    found: torch.Tensor,
    denominator: torch.Tensor,
    bounds: torch.Tensor,
    parts: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of query, key and value."""
    whole: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
    slope, unused = slope.contiguous(), query.new_empty(0)
    random = torch.zeros(2, dtype=torch.uint64, device=query.device)  # of a dropout that is not used
    for part in _parts_of(bounds, parts):
        its_slopes = torch.ops.aten._flash_attention_backward(  # noqa: SLF001 as above
            slope[part.looking],
            query[part.looking],
            key[part.seen],
            value[part.seen],
            found[part.looking],
            denominator[:, part.looking].contiguous(),
            part.query_bounds,
            part.key_bounds,
            *part.longest,
            0.0,
            whole is None,
            random,
            unused,
            scale=scale,
        )
        if whole is None:
            whole = its_slopes
            continue
        for each, its, at in zip(whole, its_slopes, (part.looking, part.seen, part.seen), strict=True):
            each[at] += its
    assert whole is not None, "a plan has a part"  # noqa: S101 `plan_of` makes it
    return whole


@_slopes.register_fake
def _(_slope: torch.Tensor, *states: Any) -> tuple[torch.Tensor, ...]:
    return tuple(torch.empty_like(each) for each in states[:3])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    *tensors, ctx.scale = inputs
    query, key, value, bounds, parts = tensors
    ctx.save_for_backward(query, key, value, *output, bounds, parts)


def _backward(ctx: Any, slope: torch.Tensor, _of_denominator: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    return (*_slopes(slope, *ctx.saved_tensors, ctx.scale), None, None, None)


_attend.register_autograd(_backward, setup_context=_keep)
