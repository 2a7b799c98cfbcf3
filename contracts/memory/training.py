"""What each way of training a policy takes of a card and of its host, in bytes. Formulas: docs/models.md, What fits.

In: a `ModelShape`, a way of training, what else [training] says of its passes. Out: bytes by their cause, or a refusal that names what would fit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from contracts.errors import InvalidSettings
from contracts.memory.shapes import NO_LAYER, ModelShape

GB = 10**9
MAX_TOKENS = 8192
"""The default of `[training] max_tokens`."""
SHORT_TOKENS = 2048
"""A budget that is named where the one of the settings does not fit."""
RANK, MOST_RANK = 8, 512
"""Of an adapter whose settings do not name it; the largest."""
_PER_ADAPTER = 16
"""Bytes per adapter weight while training: master, gradient and two moments, in float32."""
_HELD, SAVED = 9, 3
"""Bytes per published weight on the host: the bits of three versions, and the copy of a save, which are 3 of them."""
_PER_LOGIT = 12
"""Bytes per logit of a piece of the head: three copies in float32, as a peak on an H100 grew."""
_HEAD_TOKENS = 2048
CARD_BYTES, HOST_BYTES = 600 * 10**6, 700 * 2**20
"""What a process takes before it has a model: CUDA's context and workspaces (not measured); torch and transformers."""


class TrainingWay(NamedTuple):
    """A way of training. `rank`: of the adapter; 0: all weights are trained. `is_host`: masters and moments are in the host's memory."""

    rank: int = 0
    is_host: bool = False
    is_tight: bool = False
    """Beside masters on the host, gradients are in the type of their weights, not in float32: where there is no room."""

    @property
    def says(self) -> str:
        """For a person."""
        if self.rank:
            return f"LoRA, rank {self.rank}"
        return f"whole weights, masters on the {'host' if self.is_host else 'device'}"

    @property
    def settings(self) -> str:
        """What chooses it in the section [training]."""
        if self.rank:
            return f"adapter = {{ rank = {self.rank}, alpha = 32 }}"
        return f'masters = "{"host" if self.is_host else "device"}"'


WAYS = (TrainingWay(), TrainingWay(is_host=True, is_tight=True), TrainingWay(rank=8), TrainingWay(rank=32))


class Passes(NamedTuple):
    """What else of the section [training] decides how much memory it takes."""

    max_tokens: int = MAX_TOKENS
    is_reduced: bool = True
    """They compute in bfloat16, as on a GPU by default."""
    has_reference: bool = True
    """The base policy, or a version, is scored: whole weights have a frozen copy for that."""

    @property
    def width(self) -> int:
        """Bytes of a number."""
        return 2 if self.is_reduced else 4

    @property
    def says(self) -> str:
        """For a person: as in the section [training]."""
        frozen = "" if self.has_reference else ", without a frozen copy"
        return f"max_tokens = {self.max_tokens}{'' if self.is_reduced else ' in float32'}{frozen}"


USUAL = Passes()


class TrainerMemory(NamedTuple):
    """Bytes that a trainer takes, computed."""

    base: int
    """The weights that compute."""
    adapter: int
    """The adapter in bfloat16, as it is published."""
    state: int
    """Masters, gradients, moments and a frozen copy, as far as they are on the card and not among the weights that compute."""
    activations: int
    """Each layer's input, and the inside of one layer: the others are computed again in the backward pass."""
    head: int
    """Logits of one piece of tokens."""
    host: int

    @property
    def card(self) -> int:
        """All of the card, with what a process takes before it has a model."""
        return self.base + self.adapter + self.state + self.activations + self.head + CARD_BYTES

    @property
    def kept(self) -> int:
        """Of card and host together, without activations and what CUDA takes."""
        return self.base + self.adapter + self.state + self.host


def memory_of(shape: ModelShape, way: TrainingWay, passes: Passes = USUAL, processes: int = 1) -> TrainerMemory:
    """What the trainer takes; each of several processes, on a card of its own.

    Bytes per weight: 2 that compute in bfloat16, or 4 in float32, which are the masters too if these are on the device; float32 masters and
    moments 12; gradients 4, or as the weights if they are tight; a frozen copy 2. On the host: versions and a save 9; beside masters there 2
    for the weights that go up.

    Each process has its share of all that, but for an adapter, and for weights that compute: those of whole weights are gathered out of the
    masters. What is gathered at a time is whole: a layer and the next one, and what belongs to no layer.
    """
    weights, width = -(-shape.num_weights // processes), passes.width
    gathered = shape.gathered_weights if processes > 1 else 0
    if way.rank:
        adapter = shape.adapter_weights(way.rank)
        kept, state, host = 2 * adapter, _PER_ADAPTER * adapter, _HELD * adapter
    else:
        gradients, frozen = width if way.is_tight else 4, 2 if passes.has_reference else 0
        masters = 12 if way.is_host or passes.is_reduced else 8
        kept, state = 0, (gradients + frozen + (0 if way.is_host else masters)) * weights
        host = _HELD * shape.num_weights + (masters + 2 if way.is_host else 0) * weights
    entries = shape.num_layers * shape.width * width
    head = min(passes.max_tokens, _HEAD_TOKENS) * shape.vocabulary * _PER_LOGIT
    activations = passes.max_tokens * (entries + _inside(shape, passes, has_adapter=way.rank > 0))
    computing = 0 if processes > 1 and not way.rank and passes.is_reduced else weights
    return TrainerMemory(width * (computing + gathered), kept, state, activations, head, HOST_BYTES + host)


def ways_of(training: Mapping[str, Any]) -> tuple[TrainingWay, ...]:
    """The ways that a section [training], as plain values, allows: the first one that fits is taken. Raises InvalidSettings: names the field."""
    if (adapter := training.get("adapter")) is not None:
        rank = adapter.get("rank", RANK) if isinstance(adapter, Mapping) else None
        if type(rank) is not int or not 1 <= rank <= MOST_RANK:
            raise InvalidSettings(
                f"[training] adapter is {adapter!r}; write adapter = {{ rank = {RANK} }}, with a rank from 1 to {MOST_RANK}"
            )
        return (TrainingWay(rank),)
    hosts = (TrainingWay(is_host=True), TrainingWay(is_host=True, is_tight=True))
    return {"host": hosts, "device": (TrainingWay(),)}.get(training.get("masters", "auto"), (TrainingWay(), *hosts))


def passes_of(training: Mapping[str, Any]) -> Passes:
    """What a section [training], as plain values, says of passes on a GPU."""
    return Passes(
        int(training.get("max_tokens", MAX_TOKENS)),
        is_reduced=training.get("precision") != "float32",
        has_reference=any(training.get(name, 1) > 0 for name in ("kl_coefficient", "mismatch_samples")),
    )


def require_card(
    shape: ModelShape,
    training: Mapping[str, Any],
    card: int,
    device: str,
    *,
    host: int = sys.maxsize,
    beside: Callable[[TrainingWay], int] = lambda _: 0,
    processes: int = 1,
) -> tuple[TrainingWay, TrainerMemory]:
    """How a policy is trained on a card, and what that takes.

    Args:
        shape: of the policy.
        training: the section [training], as plain values.
        card: all of its memory, in bytes.
        device: its name.
        host: bytes of the host's memory for the trainer.
        beside: bytes that engines take of the card at least, if the policy is trained that way.
        processes: that share it, each with such a card.

    Raises InvalidSettings: it is too small, and names the settings that would fit; or there is no layer for an adapter.
    """
    ways, passes = ways_of(training), passes_of(training)
    if ways[0].rank and not shape.adapted:
        raise InvalidSettings(NO_LAYER)

    def fits(way: TrainingWay, need: TrainerMemory) -> bool:
        return need.card + beside(way) <= card and need.host <= host

    for way in ways:
        if fits(way, need := memory_of(shape, way, passes, processes)):
            return way, need
    engines = f" beside at least {beside(way) / GB:.1f} GB of engines" if beside(way) else ""
    ranks = f" in {processes} processes" if processes > 1 else ""
    takes = f"{way.says} with {passes.says}{ranks} takes {need.card / GB:.1f} GB{engines}"
    has = f"{device} has {card / GB:.1f} GB"
    if need.host > host:
        has += f"; of the host's memory it takes {need.host / GB:.1f} GB, and {host / GB:.1f} GB are there"
    fitting = [f"[training] {text}" for text in settings_that_fit(shape, passes, fits, processes)]
    remedy = f"what fits: {'; or '.join(fitting)}" if fitting else "no way of training fits: take a larger card"
    raise InvalidSettings(f"the trainer does not fit: {takes}, and {has}; {remedy} (docs/models.md, What fits)")


def settings_that_fit(
    shape: ModelShape, passes: Passes, fits: Callable[[TrainingWay, TrainerMemory], bool], processes: int = 1
) -> Iterator[str]:
    """The settings of each way that fits; with others that take less where only these fit."""
    tried = {
        "": passes,
        f" and max_tokens = {SHORT_TOKENS}": passes._replace(max_tokens=SHORT_TOKENS),
        ", kl_coefficient = 0 and mismatch_samples = 0": passes._replace(has_reference=False),
    }
    for way in ways_for(shape, processes):
        found = (
            f"{way.settings}{more}" for more, each in tried.items() if fits(way, memory_of(shape, way, each, processes))
        )
        yield from islice(found, 1)


def ways_for(shape: ModelShape, processes: int = 1) -> list[TrainingWay]:
    """The usual ways of training a policy. Several processes hold no masters on the host."""
    return [way for way in WAYS if (not way.rank or shape.adapted) and not (way.is_host and processes > 1)]


def _inside(shape: ModelShape, passes: Passes, *, has_adapter: bool) -> int:
    """Bytes per token inside the largest layer: what goes in and out of its linear maps and the gradients of both.

    An adapter keeps what goes into its A once more, in float32, unless it is that already.
    """
    layers: dict[int, float] = {}
    share = shape.num_active / shape.num_experts if shape.num_experts else 1.0
    for linear in shape.linears:
        passed = 2 * passes.width * (linear.num_in + linear.num_out)
        more = 4 * linear.num_in if has_adapter and passes.is_reduced and not linear.is_expert else 0
        layers[linear.layer] = layers.get(linear.layer, 0) + (passed * share if linear.is_expert else passed + more)
    return round(max(layers.values(), default=0))
