"""What arms hold in memory, and the change of one that was prepared. In: staged updates. Out: weights that an arm computes with.

Module trees may share parameters: arms with adapters have a tree each over one base, which is then never written again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from policy.adapter import Adapter, AdapterBits
from policy.weights import Changes, ModelBits, Patches, apply_patches
from weights.codec.history import History


class HeldVersion(NamedTuple):
    """The version of some parameters. Arms share `history`, so it is never changed."""

    version: int
    root: str
    history: History
    run: str


class HeldParameters:
    """Parameters in memory and their version: those of a model, or of an adapter beside one. Module trees may share a model's."""

    def __init__(self, of: Any) -> None:
        self.of = of
        """A module tree over them that never serves, or the adapter."""
        self.held: HeldVersion | None = None
        self.before: tuple[HeldVersion, Changes] | None = None
        """The version before, and what leads back to it."""
        self.is_base = False
        """True under adapters: it is not written any more."""

    def bits(self, undo: Changes | None = None) -> ModelBits:
        """The version, or the one before."""
        return AdapterBits(self.of, undo) if isinstance(self.of, Adapter) else ModelBits(self.of, undo)


class ArmWeights:
    """What an arm computes with: a module tree over a model's parameters, and the adapter beside it once there was one."""

    def __init__(self, model: Any, whole: HeldParameters) -> None:
        self.model, self.whole = model, whole
        self.adapter: HeldParameters | None = None
        self.serving = whole

    @property
    def parts(self) -> list[HeldParameters]:
        """What is served first."""
        return sorted(filter(None, (self.whole, self.adapter)), key=lambda each: each is not self.serving)

    def at_hand(self, version: int) -> tuple[HeldParameters, HeldVersion, Changes | None] | None:
        """What leads from here to a version without the store: weights, and their change, if they change."""
        for each in self.parts:
            if each.before is not None and each.before[0].version == version:
                return each, *each.before
            if each is not self.serving and each.held is not None and each.held.version == version:
                return each, each.held, None
        return None


class BaseWeights(NamedTuple):
    """Weights in memory: those of an arm, or what `undo` leads to from there."""

    arm: str
    weights: HeldParameters
    held: HeldVersion
    undo: Changes | None


class StagedUpdate(NamedTuple):
    """A prepared change of an arm. `before` None: there is no way back. `payload_bytes` None: a full copy was fetched."""

    arm: ArmWeights
    weights: HeldParameters
    """What is written, and computes from then on."""
    patches: Patches
    after: HeldVersion
    before: tuple[HeldVersion, Changes] | None
    payload_bytes: int | None
    whole: HeldParameters
    """Under the arm's tree from then on: its own, or the same base in another arm's memory."""

    def apply(self) -> None:
        """Make the arm compute with the version, while it waits. Nothing is left to fail."""
        arm, weights = self.arm, self.weights
        apply_patches(self.patches)
        if self.whole is not arm.whole:
            for own, other in zip(arm.model.parameters(), self.whole.of.parameters(), strict=True):
                own.data = other.data
            arm.whole = self.whole
        if isinstance(weights.of, Adapter):
            arm.adapter, arm.whole.is_base, arm.whole.before = weights, True, None
            weights.of.attach()
        if arm.adapter is not None:
            arm.adapter.of.is_on = weights is arm.adapter
        arm.serving, weights.held, weights.before = weights, self.after, self.before
