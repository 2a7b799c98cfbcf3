"""What the trainer knows besides its weights: JSON in every checkpoint. Pure.

A sample key is here from the moment its fate is decided; keys that are absent are pending.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from contracts.records import State

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from contracts.revocations import Treatment

BASE_VERSION = 0
NO_WEIGHT: tuple[State, str] = ("filtered", "no_weight")
"""State and reason of a sample whose weight is 0."""


UNNUMBERED = -1
"""Sequence of a state of before outcomes had numbers, and of one that has not begun."""
CORRECTED = "corrected"
"""What became of a late revision whose difference was learned."""
ROLLED_BACK = "correction_rolled_back"


class Correction(msgspec.Struct, frozen=True, omit_defaults=True):
    """A difference that was learned after the sample."""

    applied: float
    """Weight x reward that the weights hold since: the last revision's, not the difference."""
    version: int | None = None
    """The first version that contains it; None: the next one to be cut."""
    weight: float | None = None
    """Of that revision; None: checkpoints did not say yet."""


class Fate(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a sample."""

    revision: int
    state: State
    reason: str = ""
    version: int | None = None
    """Trained: the first version that contains it; None: the next one to be cut."""
    late: int | None = None
    """Trained: the newest revision that came after it and is decided."""
    late_reason: str = ""
    """What became of that revision: `corrected`, or why nothing was learned from it."""
    applied: float | None = None
    """Trained: weight x reward of the sample itself; None: nobody remembers, so nothing can be corrected."""
    scale: float = 1.0
    """Of older checkpoints: `pull` times the tokens of a batch that nobody remembers. Written no more."""
    pull: float | None = None
    """Trained: what one unit of its reward was multiplied by at each of its tokens, whatever its batch was divided by
    included. A correction pulls exactly as hard. None: trained before checkpoints knew it, see `scale`."""
    weight: float | None = None
    """Trained: of the sample itself; None: trained before checkpoints knew it."""
    zero: float | None = None
    """Trained: the reward that would have pulled nothing, likewise."""
    corrections: tuple[Correction, ...] = ()
    """Trained: the differences learned since, one for each version, oldest first."""

    @property
    def applied_now(self) -> float | None:
        """Weight x reward that the weights hold of it."""
        return self.corrections[-1].applied if self.corrections else self.applied

    @property
    def weight_now(self) -> float | None:
        """The weight with which it is applied."""
        return self.corrections[-1].weight if self.corrections else self.weight

    def owed(self, weight: float) -> float:
        """What a revision of this weight owes the first baseline, in rewards; 0 where nobody remembers that."""
        if self.zero is None or self.weight_now is None:
            return 0.0
        return (weight - self.weight_now) * self.zero

    @property
    def newest(self) -> int:
        """The newest revision that is decided."""
        return self.revision if self.late is None else max(self.revision, self.late)

    @property
    def is_final(self) -> bool:
        """False if a later revision may still become the sample: this one was only not meant to count."""
        return (self.state, self.reason) != NO_WEIGHT

    def corrected(self, revision: int, applied: float, weight: float | None = None) -> Fate:
        """After the difference to a later revision was learned."""
        earlier = self.corrections
        if earlier and earlier[-1].version is None:
            earlier = earlier[:-1]
        corrections = (*earlier, Correction(applied, weight=weight))
        return msgspec.structs.replace(self, late=revision, late_reason=CORRECTED, corrections=corrections)

    def passed_over(self, revision: int, reason: str) -> Fate:
        """After a later revision from which nothing is learned."""
        return msgspec.structs.replace(self, late=revision, late_reason=reason)

    @property
    def is_uncut(self) -> bool:
        """True if something of it was learned that is in no version yet."""
        return self.state == "trained" and (self.version is None or any(c.version is None for c in self.corrections))

    def cut(self, ordinal: int) -> Fate:
        """What is in no version yet is in this one."""
        if not self.is_uncut:
            return self
        return msgspec.structs.replace(
            self,
            version=ordinal if self.version is None else self.version,
            corrections=tuple(
                msgspec.structs.replace(item, version=ordinal) if item.version is None else item
                for item in self.corrections
            ),
        )

    def rolled_back(self, kept: Collection[int]) -> Fate | None:
        """What is left of it in the versions that are kept; None if that is nothing."""
        if self.state != "trained":
            return self
        if self.version not in kept:
            return None
        corrections = tuple(item for item in self.corrections if item.version in kept)
        if corrections == self.corrections:
            return self
        undone = self.late_reason == CORRECTED
        return msgspec.structs.replace(
            self, corrections=corrections, late_reason=ROLLED_BACK if undone else self.late_reason
        )


class EpochBegin(msgspec.Struct, frozen=True):
    """An epoch, and what it goes on from: `previous` up to `kept_sequence`; None: from nothing that was told."""

    epoch: int
    previous: int | None
    kept_sequence: int


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
    comparable_norms: list[tuple[float, float]] = msgspec.field(default_factory=list)
    """History of the guard. Not `gradient_norms`: older checkpoints compared by another measure."""
    model: str = ""
    """The base policy that the weights descend from, see `masters.identity_of`; empty in older checkpoints."""
    random_state: dict[str, str] = msgspec.field(default_factory=dict)
    """Device to its generator's state in base64."""
    unpublished_samples: int = 0
    """Trained since the last version was cut."""
    cut_at: float = 0.0
    """When the last version was cut, UTC epoch seconds."""
    obeyed_rollback: int = 0
    """Epoch of the newest move of the arm `training` that was obeyed."""
    learn_again: dict[str, int] = msgspec.field(default_factory=dict)
    """Sample key to its newest decided revision: what a rollback made pending and the log was not searched for yet."""
    learn_again_until: dict[str, dict[int, int]] = msgspec.field(default_factory=dict)
    """Topic to partition to the offset at which that search ends: where reading stood at the rollback."""
    sequence: int = UNNUMBERED
    """Rises with every decision: outcomes carry it, and an epoch says up to which number it keeps the one before it."""
    untold: dict[str, int] = msgspec.field(default_factory=dict)
    """Sample key to the number of its newest decision: what the log may not have heard of yet."""
    untold_epochs: list[EpochBegin] = msgspec.field(default_factory=list)
    """Likewise, oldest first."""
    second_chance: set[str] = msgspec.field(default_factory=set)
    """Sample keys that a rollback to the live version made pending though nothing was revoked: once is enough."""

    @property
    def version(self) -> int:
        """The version the weights descend from."""
        return self.lineage[0]

    def note(self, key: str) -> None:
        """The fate of a sample was decided, changed or taken back: the next checkpoint holds it, then the log hears of it."""
        self.sequence += 1
        self.untold[key] = self.sequence

    def note_all(self, keys: Iterable[str]) -> None:
        """The same for many."""
        for key in keys:
            self.note(key)

    def note_changes(self, before: Mapping[str, Fate]) -> None:
        """The same for every fate that is not what it was `before`."""
        self.note_all([key for key, fate in before.items() if self.fates.get(key) is not fate])
        self.note_all(sorted(self.fates.keys() - before.keys()))


def begin_epoch(state: TrainerState, epoch: int) -> None:
    """Go on under another epoch. In a home whose outcomes had no numbers yet, everything is told once more."""
    state.untold_epochs.append(EpochBegin(epoch, state.epoch or None, state.sequence))
    state.epoch = epoch
    if state.sequence == UNNUMBERED:
        state.sequence = 0
        state.note_all(sorted(state.fates))


def cut_version(state: TrainerState, ordinal: int, now: float) -> None:
    """Make the current weights version `ordinal`: everything trained so far is in it."""
    state.ordinal = ordinal
    state.lineage = [ordinal, *state.lineage]
    state.fates = {key: fate.cut(ordinal) for key, fate in state.fates.items()}
    state.unpublished_samples = 0
    state.cut_at = now


def roll_back(state: TrainerState, target: TrainerState, treatments: Mapping[int, Treatment], now: float) -> None:
    """Return to the lineage of `target` (the state of a kept version), but not to its positions and keys.

    What was trained outside the target's lineage is no longer in the weights. By the treatment of the version that it is
    in (what is in none yet goes with the newest):

        poison       `quarantined`, reason `rollback`
        evidence     pending, and in `learn_again`
        not revoked  the same, but once: what such a rollback undoes a second time is `quarantined` too

    Of a sample that stays, corrections outside the lineage are undone: what is applied is again what those weights hold.
    """
    head, kept = state.version, set(target.lineage)
    fates: dict[str, Fate] = {}
    again: dict[str, int] = {}
    second: set[str] = set()
    for key, fate in state.fates.items():
        left = fate.rolled_back(kept)
        if left is not None:
            fates[key] = left
            continue
        treatment = treatments.get(head if fate.version is None else fate.version)
        if treatment == "poison" or (treatment is None and key in state.second_chance):
            fates[key] = rolled_back_for_good(fate.newest)
            continue
        again[key] = fate.newest
        if treatment is None:
            second.add(key)
    state.fates = fates
    state.learn_again |= again
    state.second_chance = second | (state.second_chance - fates.keys())
    state.lineage = list(target.lineage)
    state.unpublished_samples = 0
    state.cut_at = now


def finish_learning_again(state: TrainerState, waiting: Collection[str]) -> list[str]:
    """The log has no more of what a rollback made pending: name what was not found. Returns the keys.

    A key is found if it waits, is decided, or was read without a reward, which whoever gave none has named.
    """
    lost = [
        key
        for key in state.learn_again
        if key not in state.fates and key not in waiting and key not in state.unrewarded
    ]
    for key in lost:
        state.fates[key] = rolled_back_for_good(state.learn_again[key])
    state.learn_again, state.learn_again_until = {}, {}
    return lost


def rolled_back_for_good(revision: int) -> Fate:
    """What a rollback undid and nobody learns again."""
    return Fate(revision, "quarantined", "rollback")
