"""Samples that were read and not decided yet: the newest revision of each key, in order of arrival. Pure.

A later revision of a trained sample waits here too, if its value differs from what was applied: the difference is learned like
a sample, and holds back the position in the log like one.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from contracts.ledger import EXPIRED
from contracts.topics import EXPERIENCES
from pipelines.training.known.batches import Batch, Lesson
from pipelines.training.known.experiences import episode_of, generated_at, group_of, is_learnable, worth
from pipelines.training.state import Fate

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from contracts.event_log import LogRecord
    from contracts.records import Experience
    from pipelines.training.state import TrainerState

ROUNDING = 1e-9


@dataclass(frozen=True)
class WaitingSample:
    """A sample, and the log position of its first revision."""

    experience: Experience
    partition: int
    offset: int
    arrived_at: float


def why_uncorrected(fate: Fate, later: Experience) -> str:
    """Why a later revision of a trained sample teaches nothing; empty if it does.

    A revision without a reward proves nothing, whatever the fault: the sample stays as it was trained.
    """
    if not is_learnable(later):
        return "unlabelled" if later.status == "unlabelled" else "unscored"
    if fate.applied_now is None:
        return "unknown_reward"
    is_same = max(abs(worth(later) - fate.applied_now), abs(fate.owed(later.weight))) <= ROUNDING
    return "same_reward" if is_same and not is_new_edit(later, fate) else ""


def is_new_edit(later: Experience, fate: Fate) -> bool:
    """True if this revision of a trained sample has an edit, and none of it was learned before."""
    return later.streams is not None and bool(later.streams.edit) and not fate.knows_edit


class Intake:
    """The queue between the log and the batch. It writes decisions that need no step into `state`."""

    def __init__(self, state: TrainerState) -> None:
        self.state = state
        self._waiting: dict[str, WaitingSample] = {}
        self._next = {**state.positions.get(EXPERIENCES, {})}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waiting(self) -> list[WaitingSample]:
        """Oldest first."""
        return list(self._waiting.values())

    def position(self, partition: int) -> int:
        """The next offset to read."""
        return self._next.get(partition, 0)

    def begin_again(self) -> None:
        """Clear the queue, and read on from the positions of the state."""
        self._waiting.clear()
        self._next = {**self.state.positions.get(EXPERIENCES, {})}

    def passed(self, record: LogRecord) -> None:
        """Move the reading position past a record, even one that could not be decoded."""
        self._next[record.partition] = record.offset + 1

    def offer(self, record: LogRecord, experience: Experience, now: float) -> Fate | None:
        """Take in one record; returns the fate it changed, if its key was decided before.

        The first record of each (key, revision) wins. A higher revision replaces the waiting sample, or withdraws it if it
        has no reward any more. A revision of a trained sample waits as a correction and replaces an older one; if nothing can
        be learned from it, it is decided at once. Other final fates concern the tokens, so they cover every revision.
        """
        key, revision = experience.key, experience.revision
        if experience.purpose == "imported":
            return self._name_imported(record, experience, now)
        if experience.purpose != "user":
            return None
        held, fate = self._waiting.get(key), self.state.fates.get(key)
        seen = (
            self.state.unrewarded.get(key, -1),
            fate.newest if fate else -1,
            held.experience.revision if held else -1,
        )
        if revision <= max(seen):
            return None
        # What a provider's answer does not teach at first, a later edit of it may.
        if fate is not None and fate.is_final and not (fate.state == "off_support" and experience.origin):
            return self._later(record, experience, fate, now)
        if held is None and self._is_expired(key):
            return self._expire(experience)
        if is_learnable(experience):
            self._wait(record, experience, now)
            self.state.unrewarded.pop(key, None)
        else:
            self._waiting.pop(key, None)
            self.state.unrewarded[key] = revision
        return None

    def _name_imported(self, record: LogRecord, experience: Experience, now: float) -> Fate | None:
        """Another model gave the answer: no step takes it, at whatever age, and no batch or baseline sees it.

        What was decided stays: a warm start may have learned its text, or a rollback may have taken that back for good.
        """
        held = self.state.fates.get(experience.key)
        if not is_learnable(experience) or (held is not None and held.newest >= experience.revision):
            return None
        if held is not None:
            return self._later(record, experience, held, now)
        fate = self.state.fates[experience.key] = Fate(experience.revision, "off_support", "provider")
        return fate

    def _is_expired(self, key: str) -> bool:
        """True if the key is so old that nothing is known of it any more: it may have been trained, so it is never new."""
        at = generated_at(key)
        return at is not None and at < self.state.expired_before

    def _expire(self, experience: Experience) -> Fate | None:
        if not is_learnable(experience):
            return None
        fate = self.state.fates[experience.key] = Fate(experience.revision, "stale", EXPIRED)
        return fate

    def _wait(self, record: LogRecord, experience: Experience, now: float) -> None:
        held = self._waiting.get(experience.key)
        fresh = WaitingSample(experience, record.partition, record.offset, now)
        self._waiting[experience.key] = replace(held, experience=experience) if held else fresh

    def _later(self, record: LogRecord, experience: Experience, fate: Fate, now: float) -> Fate | None:
        key, revision = experience.key, experience.revision
        if fate.state != "trained":
            changed = msgspec.structs.replace(fate, revision=revision)
        elif reason := why_uncorrected(fate, experience):
            self._waiting.pop(key, None)
            changed = fate.passed_over(revision, reason)
        else:
            self._wait(record, experience, now)
            return None
        self.state.fates[key] = changed
        return changed

    def corrects(self, experience: Experience) -> Fate | None:
        """The fate of the trained sample that this revision corrects; None if it is a sample itself."""
        fate = self.state.fates.get(experience.key)
        return fate if fate is not None and fate.state == "trained" else None

    def roll_back(self) -> None:
        """Drop corrections of samples that a rollback took out of the weights; the fate of the sample covers them."""
        for key in list(self._waiting):
            fate = self.state.fates.get(key)
            if fate is not None and fate.state == "quarantined":
                revision = self._waiting.pop(key).experience.revision
                self.state.fates[key] = msgspec.structs.replace(fate, revision=revision)
                self.state.note(key)

    def go_back(self, earlier: Mapping[int, int]) -> dict[int, int]:
        """Move reading positions back to these where they are earlier; returns the positions before."""
        stood = self._next
        self._next = {partition: min(offset, earlier.get(partition, 0)) for partition, offset in stood.items()}
        return stood

    def has_passed(self, positions: Mapping[int, int]) -> bool:
        """True if everything before `positions` was read."""
        return all(self.position(partition) >= offset for partition, offset in positions.items())

    @property
    def keys(self) -> Collection[str]:
        """Keys of the waiting samples."""
        return self._waiting.keys()

    def draw(self, size: int, is_old: Callable[[Experience], bool] = lambda _: False) -> Batch:
        """A batch of `size` waiting samples, in the order of arrival; at most a quarter of `size` (one at least) is old.

        Calls of a session that was judged as a whole are taken together, so that their common tokens are computed once and one
        baseline serves all: the last session may exceed `size`. Sessions of one group follow each other, as far as they fit. Old
        samples that find no place wait for the next batch. If fresh samples are missing, the batch is small.
        """
        chosen: dict[str, Experience] = {}
        waiting = [item.experience for item in self.waiting]
        together: dict[str, list[Experience]] = defaultdict(list)
        groups: dict[str, int] = {}
        for place, experience in enumerate(waiting):
            together[episode_of(experience)].append(experience)
            groups.setdefault(group_of(experience) or experience.key, place)
        waiting.sort(key=lambda each: groups[group_of(each) or each.key])
        places_for_old = max(size // 4, 1)
        for first in waiting:
            if len(chosen) >= size:
                break
            for experience in together.pop(episode_of(first), ()):
                if is_old(experience):
                    if not places_for_old:
                        continue
                    places_for_old -= 1
                chosen[experience.key] = experience
        return self._as_batch(sorted(chosen.values(), key=lambda each: each.key), size)

    def _as_batch(self, chosen: list[Experience], size: int) -> Batch:
        samples, lessons = [], []
        for item in chosen:
            if (fate := self.corrects(item)) is None:
                samples.append(item)
            else:
                difference = worth(item) - (fate.applied_now or 0.0)
                lessons.append(Lesson(item, difference, fate.pull_for(item, size), fate.owed(item.weight)))
        return Batch(samples, lessons)

    def decide(self, key: str, fate: Fate) -> None:
        """Give a sample its fate. It need not wait here: a step that a restart takes again has samples that were not read again."""
        self.state.fates[key] = fate
        self.state.note(key)
        self._waiting.pop(key, None)

    def is_ready(self, now: float, *, is_full: bool, min_batch_size: int, max_wait_seconds: float) -> bool:
        """True if a batch should be taken: full, or smaller with an oldest sample that waited long enough."""
        if is_full:
            return True
        if not self._waiting or len(self._waiting) < min_batch_size:
            return False
        oldest = min(item.arrived_at for item in self._waiting.values())
        return now - oldest >= max_wait_seconds

    def decided_positions(self) -> dict[str, dict[int, int]]:
        """The first undecided offset of each partition. What is read twice from there is recognised by its key."""
        positions = {**self._next}
        for item in self._waiting.values():
            positions[item.partition] = min(positions[item.partition], item.offset)
        return {EXPERIENCES: positions} if positions else {}
