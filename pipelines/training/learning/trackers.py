"""What each baseline key was expected to earn, by the version that answered: the only state of the advantages.

    key ──▶ (version 3, mean .42, evidence 31)  (version 7, mean .55, evidence 12)  (version 8, mean .58, evidence 9)

An entry covers its version and the later ones up to the next entry. A reward moves the entry of the version that answered and
no other one: a reward that comes two days late says what *that* version earned, and nothing of today's. A version without an entry
begins one, with the mean of the entry before it and the evidence of at most CARRIED rewards. Within a version the policy does not
change, so old rewards are forgotten slowly, for the world's sake only.

Bounds: MOST_VERSIONS entries of a key (the older, the coarser, as in an exponential histogram), MOST_ENTRIES over all keys (keys
whose last reward is longest ago keep their newest entry only), MOST_KEYS keys (those are then forgotten).
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipelines.training.settings import TrainingSettings

RETENTION = 0.98
"""What a reward leaves of its entry's evidence: the last 50 rewards of a version count."""
CARRIED = 24.0
"""Evidence that a version without rewards takes over from the version before it, in rewards: what SPO (arXiv 2509.13232) remembers of a
policy that moves slowly. With 8, the simulation of `tests/worlds/late.py` misses the true mean by a third more."""
MOST_VERSIONS = 12
"""With a version every 2 hours, 12 entries tell the last days apart and older weeks roughly."""
MOST_KEYS, MOST_ENTRIES = 20_000, 40_000
"""About 2.5 MB of JSON in a checkpoint."""


class Entry(NamedTuple):
    """What is known of one key from one version on. `evidence`: rewards that the mean stands for, older ones discounted."""

    version: int
    mean: float
    evidence: float


class Tracker(msgspec.Struct, tag_field="kind"):
    """The expected reward of each baseline key at each version. JSON in the checkpoint."""

    entries: dict[str, tuple[Entry, ...]] = msgspec.field(default_factory=dict)
    """Keys in the order of their last reward, entries in the order of versions."""
    num_entries: int = 0

    evidence_at_first: ClassVar[float] = 0.0
    """Rewards that the first guess of a key stands for."""

    @property
    def first_guess(self) -> float:
        """What a key without any reward is expected to earn."""
        raise NotImplementedError

    def clamped(self, reward: float) -> float:
        """The reward as it is counted."""
        return reward

    def expect(self, key: str, version: int) -> float:
        """What answers of this version were expected to earn."""
        found = self.entries.get(key)
        return found[_place(found, version)].mean if found else self.first_guess

    def evidence(self, key: str, version: int) -> float:
        """The number of rewards that the expectation stands for; 0 for an unknown key."""
        found = self.entries.get(key)
        return found[_place(found, version)].evidence if found else 0.0

    def update(self, key: str, version: int, reward: float, weight: float = 1.0) -> None:
        """Learn one reward of an answer of this version. A small `weight` moves and forgets little; weights above 1 count as 1."""
        weight = min(weight, 1.0)
        found = self.entries.pop(key, ())
        self.num_entries -= len(found)
        entries, place = self._with_version([*found], version)
        entry = entries[place]
        evidence = entry.evidence * RETENTION**weight + weight
        if evidence > 0:
            pull = min(weight, weight / evidence)  # a first reward of little weight is not yet the mean
            mean = entry.mean + pull * (self.clamped(reward) - entry.mean)
            entries[place] = Entry(entry.version, mean, evidence)
        self.entries[key] = tuple(_thinned(entries))
        self.num_entries += len(self.entries[key])
        self._forget()

    def _with_version(self, entries: list[Entry], version: int) -> tuple[list[Entry], int]:
        """The entries with one that this version's rewards move, and its place."""
        if not entries:
            return [Entry(version, self.first_guess, self.evidence_at_first)], 0
        place = _place(entries, version)
        nearest, is_newest = entries[place], version > entries[-1].version
        # A full list has merged its old versions: a late reward belongs to the entry that covers its version.
        if version != nearest.version and (len(entries) < MOST_VERSIONS or is_newest):
            place += version > nearest.version
            entries.insert(place, Entry(version, nearest.mean, min(nearest.evidence, CARRIED)))
        return entries, place

    def _forget(self) -> None:
        while len(self.entries) > MOST_KEYS:
            self.num_entries -= len(self.entries.pop(next(iter(self.entries))))
        if self.num_entries > MOST_ENTRIES:
            # A quarter at once: the next keys then cost nothing.
            for key in islice(list(self.entries), 0, len(self.entries) - 1):
                self.num_entries -= len(self.entries[key]) - 1
                self.entries[key] = self.entries[key][-1:]
                if self.num_entries <= 0.75 * MOST_ENTRIES:
                    break

    def copy(self) -> Tracker:
        """An independent copy: updates of one do not change the other."""
        return msgspec.structs.replace(self, entries=dict(self.entries))

    def to_json(self) -> dict[str, Any]:
        """State for the checkpoint; invert with `tracker_from_json`."""
        state: dict[str, Any] = msgspec.to_builtins(self)
        return state


class BetaTracker(Tracker, tag="beta"):
    """For rewards between `low` and `high`: the first guess is the middle, as much as one reward (a Beta prior of 1/2, 1/2)."""

    low: float = 0.0
    high: float = 1.0

    evidence_at_first: ClassVar[float] = 1.0

    @property
    def first_guess(self) -> float:
        """The middle of the range."""
        return (self.low + self.high) / 2

    def clamped(self, reward: float) -> float:
        """The reward within the range."""
        return min(max(reward, self.low), self.high)

    def rescaled(self, low: float, high: float) -> BetaTracker:
        """The same expectations and as much evidence for another range of rewards; values outside it are clamped."""
        entries = {
            key: tuple(entry._replace(mean=min(max(entry.mean, low), high)) for entry in found)
            for key, found in self.entries.items()
        }
        return BetaTracker(entries, self.num_entries, low, high)


class MovingAverageTracker(Tracker, tag="moving_average"):
    """For rewards without a range. The first reward of a key, at full weight, is its first mean."""

    initial: float = 0.0

    @property
    def first_guess(self) -> float:
        """As in the settings."""
        return self.initial


def new_tracker(settings: TrainingSettings) -> Tracker:
    """The tracker of a trainer that never trained."""
    if settings.baseline == "beta":
        low, high = settings.reward_range
        return BetaTracker(low=low, high=high)
    return MovingAverageTracker(initial=sum(settings.reward_range) / 2)


def in_range(tracker: Tracker, settings: TrainingSettings) -> Tracker:
    """The tracker on today's scale of rewards: task files may have changed since it was saved."""
    if not isinstance(tracker, BetaTracker) or (tracker.low, tracker.high) == settings.reward_range:
        return tracker
    return tracker.rescaled(*settings.reward_range)


def _place(entries: Sequence[Entry], version: int) -> int:
    """The newest entry that is not younger than the version; the oldest if all are."""
    return next((index for index in range(len(entries) - 1, -1, -1) if entries[index].version <= version), 0)


def _thinned(entries: list[Entry]) -> list[Entry]:
    """At most MOST_VERSIONS: merges the two neighbours that cover the fewest versions for their age. The newest stays alone."""
    while len(entries) > MOST_VERSIONS:
        newest = entries[-1].version
        spans = [
            (after.version - first.version) / (newest - first.version)
            for first, after in zip(entries[:-2], entries[2:], strict=True)
        ]
        at = spans.index(min(spans))
        first, second = entries[at], entries[at + 1]
        evidence = first.evidence + second.evidence
        mean = first.mean + (second.evidence / evidence if evidence > 0 else 0.5) * (second.mean - first.mean)
        entries[at : at + 2] = [Entry(first.version, mean, min(evidence, 1.0 / (1.0 - RETENTION)))]
    return entries


def tracker_from_json(state: dict[str, Any]) -> Tracker:
    """Invert `to_json` of either tracker. Older checkpoints knew no versions: what they know counts from the base on.

    Raises msgspec.ValidationError: it is no tracker.
    """
    state = dict(state)
    if (counts := state.pop("counts", None)) is not None:
        low, high = state.get("low", 0.0), state.get("high", 1.0)
        state["entries"] = {
            key: [(0, low + (high - low) * right / (right + wrong), right + wrong)]
            for key, (right, wrong) in counts.items()
        }
    if (averages := state.pop("averages", None)) is not None:
        state["entries"] = {key: [(0, mean, CARRIED)] for key, mean in averages.items()}
        state.pop("retention", None)
    tracker = msgspec.convert(state, BetaTracker | MovingAverageTracker)
    tracker.num_entries = sum(map(len, tracker.entries.values()))
    return tracker
