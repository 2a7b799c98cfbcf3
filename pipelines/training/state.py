"""What the trainer knows besides its weights: JSON in every checkpoint. Pure.

A sample key is here from the moment its fate is decided; keys that are absent are pending.
"""

from __future__ import annotations

from typing import Any

import msgspec

from contracts.records import State

BASE_VERSION = 0


class Fate(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a sample."""

    revision: int
    state: State
    reason: str = ""
    version: int | None = None
    """Trained: the first version that contains it; None: the next one to be cut."""
    late: int | None = None
    """Trained: the newest revision that came too late."""


class TrainerState(msgspec.Struct, kw_only=True):
    """Everything a restart needs to go on as if nothing had happened."""

    epoch: int = 0
    """Rises at every start and rollback, so that the ledger knows which story is the last."""
    step: int = 0
    """Optimizer steps, those undone by a rollback included."""
    ordinal: int = BASE_VERSION
    """The highest version ever cut here; the next is higher, whatever its parent."""
    lineage: list[int] = msgspec.field(default_factory=lambda: [BASE_VERSION])
    """The version the weights descend from, then its parent and so on down to the base."""
    positions: dict[str, dict[int, int]] = msgspec.field(default_factory=dict)
    """Topic to partition to the first offset that is not decided yet."""
    fates: dict[str, Fate] = msgspec.field(default_factory=dict)
    """By sample key."""
    unrewarded: dict[str, int] = msgspec.field(default_factory=dict)
    """Sample key to the newest revision that had no reward: what it said before no longer holds."""
    tracker: dict[str, Any] = msgspec.field(default_factory=dict)
    gradient_norms: list[float] = msgspec.field(default_factory=list)
    """History of the guard."""
    random_state: dict[str, str] = msgspec.field(default_factory=dict)
    """Device to its generator's state in base64."""
    unpublished_samples: int = 0
    """Trained since the last version was cut."""
    cut_at: float = 0.0
    """When the last version was cut, UTC epoch seconds."""
    obeyed_rollback: int = 0
    """Epoch of the newest move of the arm `training` that was obeyed."""

    @property
    def version(self) -> int:
        """The version the weights descend from."""
        return self.lineage[0]


def cut_version(state: TrainerState, ordinal: int, now: float) -> None:
    """Make the current weights version `ordinal`: everything trained so far is in it."""
    state.ordinal = ordinal
    state.lineage = [ordinal, *state.lineage]
    state.fates = {
        key: msgspec.structs.replace(fate, version=ordinal)
        if fate.state == "trained" and fate.version is None
        else fate
        for key, fate in state.fates.items()
    }
    state.unpublished_samples = 0
    state.cut_at = now


def roll_back(state: TrainerState, target: TrainerState, now: float) -> None:
    """Return to the lineage of `target` (the state of a kept version), but not to its positions and keys.

    What was trained outside the target's lineage is no longer in the weights: `quarantined`, reason `rollback`.
    """
    state.lineage = list(target.lineage)
    state.unpublished_samples = 0
    state.cut_at = now
    kept = set(target.lineage)
    state.fates = {
        key: Fate(fate.revision if fate.late is None else fate.late, "quarantined", "rollback")
        if fate.state == "trained" and fate.version not in kept
        else fate
        for key, fate in state.fates.items()
    }
