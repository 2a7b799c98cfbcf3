"""The trainer's state besides its weights. Pure. A sample key has a fate here once it is decided; all other keys are pending."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec.structs import replace

from contracts.records import State
from pipelines.training.known.experiences import num_tokens, worth
from pipelines.training.known.known_samples import KnownSamples, SampleMapping
from pipelines.training.known.lineage import Lineage

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterator, Mapping

    from contracts.records import Experience
    from contracts.revocations import Treatment

BASE_VERSION = 0
NO_WEIGHT: tuple[State, str] = ("filtered", "no_weight")
"""State and reason of a sample whose weight is 0."""

UNNUMBERED = -1
"""The sequence of a state older than numbered outcomes, and of a state without an epoch."""
FOUND = -1
"""The revision of an `Undone` of an older checkpoint that is not searched any more."""
CORRECTED = "corrected"
"""Reason of a late revision whose difference was trained."""
ROLLED_BACK = "correction_rolled_back"


class Correction(msgspec.Struct, frozen=True, omit_defaults=True):
    """A difference that was trained after the sample."""

    applied: float
    """Weight x reward that the model holds since then: of the last revision, not the difference."""
    version: int | None = None
    """The first version that contains it; None: the next one to be cut."""
    weight: float | None = None
    """The weight of that revision; None in older checkpoints."""
    has_edit: bool = False
    """The text of its edit was learned too."""


class Fate(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fate of a sample: its state, and what a later correction needs to know."""

    revision: int
    state: State
    reason: str = ""
    version: int | None = None
    """The first version that contains it; None: the next one to be cut. This and what follows: of trained samples."""
    late: int | None = None
    """The newest decided revision after `revision`."""
    late_reason: str = ""
    """The result of that revision: `corrected`, or why nothing was learned from it."""
    applied: float | None = None
    """Weight x reward of the sample itself; None: unknown, so no revision can correct it."""
    scale: float = 1.0
    """In older checkpoints: `pull` times the unknown number of tokens of the batch. No longer written."""
    pull: float | None = None
    """The factor from one unit of its reward to the pull on each token, division by the batch's tokens included. A correction uses
    the same factor. None: trained before checkpoints stored it, see `scale`."""
    weight: float | None = None
    """Of the sample itself; None: trained before checkpoints stored it."""
    zero: float | None = None
    """The reward with advantage 0; None as for `weight`."""
    corrections: tuple[Correction, ...] = ()
    """The differences trained since then, one per version, oldest first."""
    has_edit: bool = False
    """The text of its edit was learned with it."""

    @classmethod
    def trained(cls, experience: Experience, pull: float, zero: float | None = None, *, has_edit: bool = False) -> Fate:
        """After a sample's step. `pull`: from reward to each token's pull; `zero`: the reward with advantage 0."""
        revision, weight, applied = experience.revision, experience.weight, worth(experience)
        return cls(revision, "trained", applied=applied, pull=pull, weight=weight, zero=zero, has_edit=has_edit)

    @property
    def knows_edit(self) -> bool:
        """True if the weights hold an edit of this answer. One is learned: a later one changes the reward alone."""
        return self.has_edit or any(item.has_edit for item in self.corrections)

    @property
    def applied_now(self) -> float | None:
        """Weight x reward that the model holds now."""
        return self.corrections[-1].applied if self.corrections else self.applied

    @property
    def weight_now(self) -> float | None:
        """The weight with which it is applied."""
        return self.corrections[-1].weight if self.corrections else self.weight

    def owed(self, weight: float) -> float:
        """The share of the first baseline that a revision of this weight must subtract; 0 if unknown."""
        if self.zero is None or self.weight_now is None:
            return 0.0
        return (weight - self.weight_now) * self.zero

    def pull_for(self, later: Experience, batch_size: int) -> float:
        """`pull` of a later revision. Where an older checkpoint does not know it, the batch counts as full of answers of this length."""
        return self.scale / max(batch_size * num_tokens([later]), 1) if self.pull is None else self.pull

    @property
    def newest(self) -> int:
        """The newest decided revision."""
        return self.revision if self.late is None else max(self.revision, self.late)

    @property
    def is_final(self) -> bool:
        """False if a later revision may still be trained as the sample: this one had weight 0."""
        return (self.state, self.reason) != NO_WEIGHT

    def corrected(self, revision: int, applied: float, weight: float | None = None, *, has_edit: bool = False) -> Fate:
        """The fate after the difference to a later revision was trained, and perhaps its edit."""
        cut = tuple(item for item in self.corrections if item.version is not None)
        has_edit = has_edit or any(item.has_edit for item in self.corrections if item.version is None)
        corrections = (*cut, Correction(applied, weight=weight, has_edit=has_edit))
        return replace(self, late=revision, late_reason=CORRECTED, corrections=corrections)

    def passed_over(self, revision: int, reason: str) -> Fate:
        """The fate after a later revision that taught nothing."""
        return replace(self, late=revision, late_reason=reason)

    @property
    def is_uncut(self) -> bool:
        """True if the sample or a correction was trained and is in no version yet."""
        return self.state == "trained" and (self.version is None or any(c.version is None for c in self.corrections))

    def cut(self, ordinal: int) -> Fate:
        """The fate after a version was cut: every part without a version is in version `ordinal`."""
        if not self.is_uncut:
            return self
        corrections = (replace(item, version=ordinal) if item.version is None else item for item in self.corrections)
        version = ordinal if self.version is None else self.version
        return replace(self, version=version, corrections=tuple(corrections))

    def rolled_back(self, kept: Container[int | None]) -> Fate | None:
        """The part of the fate that the kept versions contain; None if they contain nothing of it."""
        if self.state != "trained":
            return self
        if self.version not in kept:
            return None
        corrections = tuple(item for item in self.corrections if item.version in kept)
        if corrections == self.corrections:
            return self
        late_reason = ROLLED_BACK if self.late_reason == CORRECTED else self.late_reason
        return replace(self, corrections=corrections, late_reason=late_reason)


class Undone(msgspec.Struct, frozen=True, omit_defaults=True):
    """A sample that a rollback made pending. It is learned again if it is found in the log."""

    revision: int
    """The newest one that was decided."""
    is_second: bool = False
    """True if no version was revoked then. That happens to a sample once only."""


class EpochBegin(msgspec.Struct, frozen=True):
    """An epoch, and the outcomes it keeps: those of `previous` up to `kept_sequence`; None: no earlier outcomes."""

    epoch: int
    previous: int | None
    kept_sequence: int


class TrainerState(msgspec.Struct, kw_only=True):
    """Everything a restart needs to continue as if it had not been interrupted."""

    epoch: int = 0
    """Rises at every start and rollback, so that the ledger knows which outcomes are current."""
    step: int = 0
    """Optimizer steps, including those that a rollback undid."""
    ordinal: int = BASE_VERSION
    """The highest version ever cut in this home; the next one is higher, whatever its parent."""
    lineage: Sequence[int] = msgspec.field(default_factory=lambda: Lineage.of([BASE_VERSION]))
    """The version the weights descend from, then its parent and so on down to the base; always a `Lineage`."""
    positions: dict[str, dict[int, int]] = msgspec.field(default_factory=dict)
    """Topic to partition to the first undecided offset."""
    fates: MutableMapping[str, Fate] = msgspec.field(default_factory=dict)
    """By sample key. In JSON only in older checkpoints, as `unrewarded`."""
    unrewarded: MutableMapping[str, int] = msgspec.field(default_factory=dict)
    """Sample key to the newest revision without a reward: it withdraws earlier revisions."""
    undone: MutableMapping[str, Undone] = msgspec.field(default_factory=dict)
    """By sample key. Never in JSON."""
    expired_before: float = 0.0
    """Samples generated earlier are no longer known, UTC epoch seconds."""
    tracker: dict[str, Any] = msgspec.field(default_factory=dict)
    comparable_norms: list[tuple[float, float]] = msgspec.field(default_factory=list)
    """History of the guard. It is not called `gradient_norms`, because older checkpoints use that name for another measure."""
    guard_signs: dict[str, list[float]] = msgspec.field(default_factory=dict)
    """Reason of a spike to the figure's last values, see `guard.signs_of`."""
    reward_levels: dict[str, Any] = msgspec.field(default_factory=dict)
    """The tracker of `reward_watch`; empty in older checkpoints."""
    suspect_since: dict[str, float] = msgspec.field(default_factory=dict)
    """Task to when its rewards jumped, UTC epoch seconds."""
    model: str = ""
    """The base policy that the weights descend from, see `masters.identity_of`; empty in older checkpoints."""
    random_state: dict[str, str] = msgspec.field(default_factory=dict)
    """Device to its generator's state in base64."""
    unpublished_samples: int = 0
    """Samples trained since the last version was cut."""
    cut_at: float = 0.0
    """When the last version was cut, UTC epoch seconds."""
    obeyed_rollback: int = 0
    """Epoch of the newest move of the arm `training` that the trainer carried out."""
    learn_again: dict[str, int] = msgspec.field(default_factory=dict)
    """In older checkpoints only: `undone`."""
    learn_again_until: dict[str, dict[int, int]] = msgspec.field(default_factory=dict)
    """Topic to partition to the offset where the search for samples that a rollback undid ends: the reading position then. Empty: no search."""
    undone_after: int = 0
    """The samples that are searched are in rows after this mark."""
    sequence: int = UNNUMBERED
    """Rises with every decision. Outcomes carry it, and an epoch keeps the previous epoch up to a number."""
    unreported: dict[str, int] = msgspec.field(default_factory=dict, name="untold")
    """Sample key to the number of its newest decision, for decisions that may not be in the log yet."""
    unreported_epochs: list[EpochBegin] = msgspec.field(default_factory=list, name="untold_epochs")
    """Epochs that may not be in the log yet, oldest first."""
    second_chance: set[str] = msgspec.field(default_factory=set)
    """In older checkpoints only: `undone` with `is_second`."""

    def __post_init__(self) -> None:
        self.lineage = Lineage.of(self.lineage)
        if not isinstance(self.fates, SampleMapping):
            fates, unrewarded = self.fates, self.unrewarded
            self.use(KnownSamples())
            self.fates.update(fates)
            self.unrewarded.update(unrewarded)

    def use(self, samples: KnownSamples) -> None:
        """Take what is known of samples from here. What an older checkpoint has in JSON is added."""
        older = dict(self.undone) | {
            key: Undone(self.learn_again.get(key, FOUND), key in self.second_chance)
            for key in {*self.learn_again, *self.second_chance}
        }
        self.learn_again, self.second_chance = {}, set()
        self.fates, self.unrewarded = samples.mapping(b"f", Fate), samples.mapping(b"u", int)
        self.undone = samples.mapping(b"a", Undone)
        self.undone.update(older)
        if older:
            self.undone_after = samples.mark

    def to_json(self) -> bytes:
        """The state without what is known of single samples, which is in a file of its own."""
        return msgspec.json.encode(self, enc_hook=_lean)

    @property
    def samples(self) -> KnownSamples:
        """Where `fates` and `unrewarded` are."""
        return cast("SampleMapping[Fate]", self.fates).samples

    def fates_since(self, version: int) -> Iterator[tuple[str, Fate]]:
        """Every fate that changed after a version was cut, and possibly earlier ones."""
        return cast("SampleMapping[Fate]", self.fates).since(version)

    def undone_since(self, mark: int) -> Iterator[tuple[str, Undone]]:
        """Every sample that a rollback made pending after this mark of the samples."""
        return self.samples.rows(b"a", Undone, mark)

    def uncut(self) -> dict[str, Fate]:
        """The fates that are in no version yet, or have corrections that are not."""
        return {key: fate for key, fate in self.fates_since(self.version) if fate.is_uncut}

    @property
    def version(self) -> int:
        """The version the weights descend from."""
        return self.lineage[0]

    def note(self, *keys: str) -> None:
        """Number new, changed or withdrawn fates: the next checkpoint holds them, then they go to the log."""
        for key in keys:
            self.sequence += 1
            self.unreported[key] = self.sequence


def _lean(value: Any) -> dict[str, Any] | list[int]:
    if isinstance(value, SampleMapping):
        return {}
    if isinstance(value, Lineage):
        return value.to_json()
    raise TypeError(f"{type(value).__name__} has no place in a checkpoint")


def begin_epoch(state: TrainerState, epoch: int) -> None:
    """Continue under another epoch. If the outcomes of this home have no numbers yet, all of them are reported again."""
    state.unreported_epochs.append(EpochBegin(epoch, state.epoch or None, state.sequence))
    state.epoch = epoch
    if state.sequence == UNNUMBERED:
        state.sequence = 0
        state.note(*sorted(state.fates))


def cut_version(state: TrainerState, version: int, now: float) -> None:
    """Make the current weights this version: everything trained so far is in it.

    Again for the newest version, if its checkpoint was not written and steps have been taken since.
    """
    state.fates.update({key: fate.cut(version) for key, fate in state.uncut().items()})
    state.samples.cut(version)
    if version != state.version:
        state.ordinal, state.lineage = version, Lineage.of(state.lineage).child(version)
    state.unpublished_samples, state.cut_at = 0, now


def roll_back(state: TrainerState, target: TrainerState, treatments: Mapping[int, Treatment], now: float) -> int:
    """Return to the lineage of `target` (the state of a kept version), but not to its positions and keys. Numbers every change.

    Samples trained outside the target's lineage are no longer in the weights. Their new fate depends on the treatment of the
    version that contains them (samples in no version count as in the newest):

        poison       `quarantined`, reason `rollback`
        evidence     pending, and in `undone`
        not revoked  as evidence, but only once: the second such rollback quarantines the sample

    Corrections outside the target's lineage are undone, so the fate again says what the weights hold. Returns the number that became pending.
    """
    head, kept = state.version, Lineage.of(target.lineage)
    shared = Lineage.of(state.lineage).newest_shared(kept) or BASE_VERSION
    after, num_undone = state.samples.mark, 0
    for key, fate in list(state.fates_since(shared)):
        left = fate.rolled_back(kept)
        if left is fate:
            continue
        state.note(key)
        if left is not None:
            state.fates[key] = left
            continue
        treatment = treatments.get(head if fate.version is None else fate.version)
        before = state.undone.get(key)
        had_second = before is not None and before.is_second
        if treatment == "poison" or (treatment is None and had_second):
            state.fates[key] = rolled_back_for_good(fate.newest)
            continue
        cast("SampleMapping[Fate]", state.fates).forget(key)
        state.undone[key] = Undone(fate.newest, had_second or treatment is None)
        num_undone += 1
    if not state.learn_again_until:
        state.undone_after = after
    state.lineage = kept
    state.unpublished_samples = 0
    state.cut_at = now
    return num_undone


def finish_learning_again(state: TrainerState, waiting: Collection[str]) -> list[str]:
    """The whole log was searched after a rollback: quarantine the pending samples that were not found. Returns the keys.

    A key was found if it waits, is decided, or was read without a reward (then another process reports its outcome).
    """
    lost = {
        key: item.revision
        for key, item in state.undone_since(state.undone_after)
        if item.revision != FOUND and key not in waiting and key not in state.fates and key not in state.unrewarded
    }
    for key, revision in lost.items():
        state.fates[key] = rolled_back_for_good(revision)
    state.learn_again_until = {}
    return [*lost]


def rolled_back_for_good(revision: int) -> Fate:
    """The fate of a sample that a rollback undid and that is not trained again."""
    return Fate(revision, "quarantined", "rollback")
