"""The passes over all weights of the delta codec, on the device where the weights are. Pure.

In: flat tensors of integers, the bits of the weights. Out: the few changes, described: places, contexts, gaps of time,
distances. Every result equals that of `weights.codec.kernels` and `coder`, bit for bit, for all of it is integers. On
CUDA the two passes that torch would need many readings for are Triton kernels, where Triton can be had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from policy.deltas import kernels as delta_kernels
from policy.deltas.kernels import Clock, Marks, Weights
from weights.codec import kernels
from weights.codec.contexts import NUM_CONTEXTS, PLAIN, SPECS
from weights.codec.sparse import BLOCK

DTYPES = {
    torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.bool: "BOOL",
    torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
    torch.uint8: "U8", torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64",
}  # fmt: skip
"""As safetensors spells them."""
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_RUN = 64
_EIGHT = 8
_COMPARED_AT_ONCE = 1 << 28
_TIMED_AT_ONCE = 64 * BLOCK
_STATE_MASK = kernels.NUM_STATES - 1
_NIBBLE = 7


class Held(NamedTuple):
    """What both ends hold of a tensor."""

    words: torch.Tensor
    """[weights], signed integers as wide as an element."""
    states: torch.Tensor | None
    """uint8 [weights], see `weights.codec.history`; None: no weight has moved before."""
    dtype: str

    @property
    def is_float(self) -> bool:
        """Whether an element is sign and magnitude."""
        return bool(SPECS.get(self.dtype, PLAIN).is_float)


class Found(NamedTuple):
    """The changes of a tensor; if there are more than was asked for, only their number."""

    num_changes: int
    places: torch.Tensor
    """int64, ascending."""
    contexts: torch.Tensor
    """int32."""
    before: torch.Tensor
    after: torch.Tensor
    """The old words and the new ones."""
    marks: Marks | None
    """The places, as the kernels want them; None where torch found them."""


class Factors(NamedTuple):
    """`weights.codec.factors.Factors` on the device."""

    rows: torch.Tensor
    columns: torch.Tensor


class Values(NamedTuple):
    """Per change how far it goes: see `coder.describe_changes`."""

    moved_down: torch.Tensor
    tokens: torch.Tensor
    extras: torch.Tensor
    num_extras: torch.Tensor


def words_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's bits, flat, as signed integers; the same memory if it is contiguous."""
    return tensor.detach().contiguous().view(-1).view(INTEGERS[tensor.element_size()])


def find_changes(
    held: Sequence[Held], new: Sequence[torch.Tensor], *, most: float = 1.0, with_kernels: bool | None = None
) -> list[Found]:
    """The changes of tensors of one device.

    Args:
        held: the tensors.
        new: the words they change to.
        most: of a tensor of which a larger share changes, the changes are only counted.
        with_kernels: None: where they can run.
    """
    if held and (uses_kernels(held[0].words) if with_kernels is None else with_kernels):
        return [Found(*listed) for listed in delta_kernels.list_changes([_weights(each) for each in held], new, most)]
    return [_changes(each, words, most) for each, words in zip(held, new, strict=True)]


def uses_kernels(tensor: torch.Tensor) -> bool:
    """Whether a tensor's passes are Triton's."""
    return tensor.is_cuda and delta_kernels.HAS_TRITON


def find_contexts(words: torch.Tensor, states: torch.Tensor | None, dtype: str) -> torch.Tensor:
    """The context of every weight, its class and its state; int32."""
    spec = SPECS.get(dtype, PLAIN)
    classes = words.to(torch.int32) << spec.up >> spec.down & spec.mask
    return classes if states is None else classes | (states & _STATE_MASK)


def count_contexts(held: Held, stride: int) -> torch.Tensor:
    """How often each context occurs in one run of 64 weights of every `stride`; int64 [NUM_CONTEXTS]."""
    states = None if held.states is None else _runs(held.states, stride)
    return torch.bincount(find_contexts(_runs(held.words, stride), states, held.dtype), minlength=NUM_CONTEXTS)


def add_levels(contexts: torch.Tensor, places: torch.Tensor, factors: Factors | None) -> torch.Tensor:
    """Contexts with the levels of their places above them, if there are factors; int32."""
    if factors is None:
        return contexts
    row = places // factors.columns.numel()
    column = places - row * factors.columns.numel()
    return contexts | _levels(factors.rows[row], factors.columns[column]) << kernels.LEVEL_BITS


def measure_gaps(
    held: Sequence[Held], found: Sequence[Found], hazards: Sequence[torch.Tensor], factors: Sequence[Factors | None]
) -> list[torch.Tensor]:
    """The time that passes before each change since the one before it, or since the start of its block; int64.

    Args:
        held: tensors of one device.
        found: their changes.
        hazards: int32, per context, levels included where there are factors.
        factors: of the tensors that have any.
    """
    marks = [each.marks for each in found if each.marks is not None]
    if marks and len(marks) == len(found):
        clocks = [Clock(units, *(sides or (None, None))) for units, sides in zip(hazards, factors, strict=True)]
        return delta_kernels.list_gaps([_weights(each) for each in held], clocks, marks)
    return [_gaps(*each) for each in zip(held, found, hazards, factors, strict=True)]


def describe_values(old: torch.Tensor, new: torch.Tensor, *, is_float: bool) -> Values:
    """The distance of each change, from its old and its new word."""
    width = old.element_size() * 8
    everything, half = (1 << width) - 1, 1 << (width - 1)
    distance = (_ordinal(new, width, is_float) - _ordinal(old, width, is_float)) & everything
    is_down = distance >= half
    rest = torch.where(is_down, everything - distance, distance - 1)
    # A double holds these integers exactly, so its exponent is their length in bits.
    length = torch.frexp(rest.double()).exponent.long()
    is_plain = rest < kernels.NUM_PLAIN_TOKENS
    bits = torch.where(is_plain, 0, length - 2)
    second = rest >> bits & 1
    tokens = torch.where(is_plain, rest, kernels.NUM_PLAIN_TOKENS + (length - 3) * 2 + second)
    return Values(is_down, tokens, rest & ((1 << bits) - 1), bits)


def describe_directions(
    places: torch.Tensor, states: torch.Tensor, factors: Factors | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Per change the context of its direction, int32, and whether it is expected to go down: see `coder.direction_of`.

    `states` are those of the changes, int32.
    """
    is_down = states >> 7 == 1
    if factors is None:
        return states & _STATE_MASK, is_down
    row = places // factors.columns.numel()
    row_codes, column_codes = factors.rows[row], factors.columns[places - row * factors.columns.numel()]
    says_down = (row_codes ^ column_codes) >> 3 == 1
    streak, remembered = states & 7, states >> 3 & 15
    group = 1 + (streak.clamp(max=3) - 1) * 3 + (kernels.FRESH - remembered) // 6
    told = torch.where(states == 0, 0, group * 2 + (says_down != is_down))
    level = _levels(row_codes, column_codes)
    return kernels.NUM_STATES + level * 32 + told, torch.where(states == 0, says_down, is_down)


def age(states: torch.Tensor) -> None:
    """One version passes, in place: see `kernels.age`."""
    states.copy_(torch.where((states & 0x78) > 8, states - 8, 0))  # noqa: PLR2004 one version, and the bits that count them


def note_moves(states: torch.Tensor, places: torch.Tensor, moved_down: torch.Tensor) -> None:
    """Note which aged states moved, and where to, in place: see `kernels.note_moves`. `moved_down` is uint8."""
    state = states[places]
    is_streak = (state != 0) & (state >> 7 == moved_down)
    streak = torch.where(is_streak, (state & _NIBBLE) + 1, 1).clamp(max=kernels.LONGEST_STREAK)
    states[places] = moved_down << 7 | (kernels.FRESH << 3) | streak.to(torch.uint8)


def _weights(held: Held) -> Weights:
    spec = SPECS.get(held.dtype, PLAIN)
    return Weights(held.words, held.states, spec.up, spec.down, spec.mask)


def _changes(held: Held, new: torch.Tensor, most: float) -> Found:
    places = _places(held.words, new)
    num_changes = places.numel()
    if num_changes > most * new.numel():
        places = places[:0].clone()
    before, states = held.words[places], None if held.states is None else held.states[places]
    return Found(num_changes, places, find_contexts(before, states, held.dtype), before, new[places], None)


def _places(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    parts = [
        _places_of_part(old[start : start + _COMPARED_AT_ONCE], new[start : start + _COMPARED_AT_ONCE]) + start
        for start in range(0, old.numel(), _COMPARED_AT_ONCE)
    ]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64, device=old.device)


def _places_of_part(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Eight bytes are compared at a time, since most are equal."""
    width = old.element_size()
    lanes = _EIGHT // width
    if any(words.storage_offset() * width % _EIGHT for words in (old, new)):
        return torch.nonzero(old != new).view(-1)
    whole = old.numel() // lanes * lanes
    eights = torch.nonzero(old[:whole].view(torch.int64) != new[:whole].view(torch.int64)).view(-1)
    differs = old[:whole].view(-1, lanes)[eights] != new[:whole].view(-1, lanes)[eights]
    which, lane = torch.nonzero(differs, as_tuple=True)
    return torch.cat([eights[which] * lanes + lane, torch.nonzero(old[whole:] != new[whole:]).view(-1) + whole])


def _runs(values: torch.Tensor, stride: int) -> torch.Tensor:
    run = _RUN * stride
    whole = values.numel() // run * run
    return torch.cat([values[:whole].view(-1, run)[:, :_RUN].reshape(-1), values[whole:][:_RUN]])


def _gaps(held: Held, found: Found, hazards: torch.Tensor, factors: Factors | None) -> torch.Tensor:
    size, device = held.words.numel(), held.words.device
    starts = range(0, size, _TIMED_AT_ONCE)
    borders = torch.searchsorted(found.places, torch.tensor([*starts, size], device=device)).tolist()
    before, own = torch.empty((2, found.places.numel()), dtype=torch.int64, device=device)
    for number, start in enumerate(starts):
        end = min(start + _TIMED_AT_ONCE, size)
        states = None if held.states is None else held.states[start:end]
        contexts = find_contexts(held.words[start:end], states, held.dtype)
        if factors is not None:
            contexts = add_levels(contexts, torch.arange(start, end, device=device), factors)
        hazard = hazards[contexts]
        blocks = torch.nn.functional.pad(hazard, (0, -hazard.numel() % BLOCK)).view(-1, BLOCK)
        elapsed = torch.cumsum(blocks, 1, dtype=torch.int64).view(-1)
        part = slice(borders[number], borders[number + 1])
        inside = found.places[part] - start
        own[part] = hazard[inside]
        before[part] = elapsed[inside] - own[part]
    blocks_of = found.places // BLOCK
    ended = torch.where(blocks_of[1:] == blocks_of[:-1], before[:-1] + own[:-1], 0)
    return torch.cat([before[:1], before[1:] - ended])


def _levels(row_codes: torch.Tensor, column_codes: torch.Tensor) -> torch.Tensor:
    return ((row_codes & _NIBBLE).to(torch.int32) + (column_codes & _NIBBLE)) >> 1


def _ordinal(words: torch.Tensor, width: int, is_float: bool) -> torch.Tensor:
    """See `coder.ordinal`; int64."""
    bits = words.to(torch.int64) & ((1 << width) - 1)
    return torch.where(words < 0, bits ^ ((1 << (width - 1)) - 1), bits) if is_float else bits
