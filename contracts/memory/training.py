"""What each way of training a policy takes of a card and of its host, in bytes. Formulas: docs/models.md, What fits.

In: a `ModelShape`, a way of training, the token budget of a forward pass. Out: bytes by their cause, or a refusal that names what would fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from contracts.errors import InvalidSettings
from contracts.memory.shapes import ModelShape

GB = 10**9
MAX_TOKENS = 8192
"""The default of `[training] max_tokens`."""
SHORT_TOKENS = 2048
"""A budget that is named where the one of the settings does not fit."""
_MASTERS = 12
"""Bytes per weight of float32 masters and two moments."""
_PER_ADAPTER = 16
"""Bytes per adapter weight while training: master, gradient and two moments, in float32."""
_VERSIONS = 9
"""Bytes per published weight on the host: the bits of three versions, and the copy of a save."""
_PER_LOGIT = 12
"""Bytes per logit of a piece of the head: three copies in float32, as a peak on an H100 grew."""
_HEAD_TOKENS = 2048
_RANK = 8
"""Of an adapter whose settings do not name it."""
CARD_BYTES, _HOST_BYTES = 600 * 10**6, 700 * 10**6
"""What a process takes before it has a model: CUDA's context and workspaces (not measured); torch and transformers."""


class TrainingWay(NamedTuple):
    """A way of training. `rank`: of the adapter; 0: all weights are trained. `is_host`: masters and moments are in the host's memory."""

    rank: int = 0
    is_host: bool = False

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


WAYS = (TrainingWay(), TrainingWay(is_host=True), TrainingWay(rank=8), TrainingWay(rank=32))


class TrainerMemory(NamedTuple):
    """Bytes that a trainer takes, computed."""

    base: int
    """The weights in bfloat16."""
    adapter: int
    """The adapter in bfloat16, as it is published."""
    state: int
    """Masters, gradients, moments and a frozen copy, as far as they are on the card."""
    activations: int
    """Each layer's input, and the inside of one layer: the others are computed again in the backward pass."""
    head: int
    """Logits of one piece of tokens."""
    host: int

    @property
    def card(self) -> int:
        """All of the card, with what a process takes before it has a model."""
        return self.base + self.adapter + self.state + self.activations + self.head + CARD_BYTES


def memory_of(shape: ModelShape, way: TrainingWay, max_tokens: int = MAX_TOKENS) -> TrainerMemory:
    """What the trainer takes.

    Bytes per weight beside the 2 of the base. Masters on the device: float32 master and moments 12, gradient 4, frozen copy 2. Masters on the host:
    gradient in bfloat16 and frozen copy, or gradient in float32: 4; on the host the 12, and 2 for the weights that go up.
    """
    if way.rank:
        adapter = shape.adapter_weights(way.rank)
        kept, state, host = 2 * adapter, _PER_ADAPTER * adapter, _VERSIONS * adapter
    else:
        weights = shape.num_weights
        kept, state = 0, (4 if way.is_host else _MASTERS + 6) * weights
        host = (_VERSIONS + (_MASTERS + 2 if way.is_host else 0)) * weights
    entries = shape.num_layers * shape.width * 2
    head = min(max_tokens, _HEAD_TOKENS) * shape.vocabulary * _PER_LOGIT
    activations = max_tokens * (entries + _inside(shape, has_adapter=way.rank > 0))
    return TrainerMemory(2 * shape.num_weights, kept, state, activations, head, _HOST_BYTES + host)


def ways_of(training: Mapping[str, Any]) -> tuple[TrainingWay, ...]:
    """The ways that a section [training], as plain values, allows: the first one that fits is taken. Raises InvalidSettings: names the field."""
    if (adapter := training.get("adapter")) is not None:
        if not isinstance(adapter, Mapping):
            raise InvalidSettings(f"[training] adapter is {adapter!r}; write adapter = {{ rank = {_RANK} }}")
        return (TrainingWay(int(adapter.get("rank", _RANK))),)
    match training.get("masters", "auto"):
        case "auto":
            return (TrainingWay(), TrainingWay(is_host=True))
        case masters:
            return (TrainingWay(is_host=masters == "host"),)


def alone(_: TrainingWay) -> int:
    """Nothing else is on the card, however the policy is trained."""
    return 0


def require_card(
    shape: ModelShape, training: Mapping[str, Any], card: int, device: str, beside: Callable[[TrainingWay], int] = alone
) -> tuple[TrainingWay, TrainerMemory]:
    """How a policy is trained on a card, and what that takes.

    Args:
        shape: of the policy.
        training: the section [training], as plain values.
        card: all of its memory, in bytes.
        device: its name.
        beside: bytes that engines take of it at least, if the policy is trained that way.

    Raises InvalidSettings: it is too small; names the settings that would fit.
    """
    ways, max_tokens = ways_of(training), int(training.get("max_tokens", MAX_TOKENS))
    needs = [(way, memory_of(shape, way, max_tokens)) for way in ways]
    for way, need in needs:
        if need.card + beside(way) <= card:
            return way, need
    way, need = needs[-1]
    engines = f" beside at least {beside(way) / GB:.1f} GB of engines" if beside(way) else ""
    takes = f"{way.says} with max_tokens = {max_tokens} takes {need.card / GB:.1f} GB{engines}"
    fitting = [f"[training] {text}" for text in settings_that_fit(shape, card, max_tokens, beside)]
    remedy = f"what fits: {'; or '.join(fitting)}" if fitting else "no way of training fits: take a larger card"
    raise InvalidSettings(
        f"the trainer does not fit: {takes}, and {device} has {card / GB:.1f} GB; {remedy} (docs/models.md, What fits)"
    )


def settings_that_fit(
    shape: ModelShape, card: int, max_tokens: int, beside: Callable[[TrainingWay], int] = alone
) -> Iterator[str]:
    """The settings of each way that fits a card of so many bytes; with shorter pieces where only these fit."""
    for way in WAYS:
        free = card - beside(way)
        if memory_of(shape, way, max_tokens).card <= free:
            yield way.settings
        elif max_tokens > SHORT_TOKENS and memory_of(shape, way, SHORT_TOKENS).card <= free:
            yield f"{way.settings} and max_tokens = {SHORT_TOKENS}"


def _inside(shape: ModelShape, *, has_adapter: bool) -> int:
    """Bytes per token inside the largest layer: what goes in and out of its linear maps and the gradients of both, in bfloat16.

    An adapter keeps what goes into its A once more, in float32.
    """
    layers: dict[int, float] = {}
    share = shape.num_active / shape.num_experts if shape.num_experts else 1.0
    for linear in shape.linears:
        passed = 4 * (linear.num_in + linear.num_out)
        more = 4 * linear.num_in if has_adapter and not linear.is_expert else 0
        layers[linear.layer] = layers.get(linear.layer, 0) + (passed * share if linear.is_expert else passed + more)
    return round(max(layers.values(), default=0))
