"""Samples that were read but whose fate is not decided: one per key, the newest revision, in order of arrival. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from contracts.event_log import LogRecord
    from contracts.records import Experience
    from pipelines.training.state import Fate, TrainerState


@dataclass(frozen=True)
class Waiting:
    """A sample and where the log first told of it."""

    experience: Experience
    topic: str
    partition: int
    offset: int
    arrived_at: float


def is_learnable(experience: Experience) -> bool:
    """True if there is a reward to learn from; what has none was named by whoever failed to give one."""
    return experience.status == "scored" and experience.reward is not None and experience.fault != "infra"


class Intake:
    """Between the log and the batch. `state` holds what was decided; it is only changed for late news."""

    def __init__(self, state: TrainerState) -> None:
        self._state = state
        self._next: dict[str, dict[int, int]] = {topic: dict(at) for topic, at in state.positions.items()}
        self._waiting: dict[str, Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waiting(self) -> list[Waiting]:
        """Oldest first."""
        return list(self._waiting.values())

    def position(self, topic: str, partition: int) -> int:
        """The next offset to read."""
        return self._next.get(topic, {}).get(partition, 0)

    def passed(self, record: LogRecord) -> None:
        """A record was read, whatever became of it."""
        self._next.setdefault(record.topic, {})[record.partition] = record.offset + 1

    def offer(self, record: LogRecord, experience: Experience, now: float) -> Fate | None:
        """Take in one record; returns the fate it changed, if its key was decided before.

        The first of each (key, revision) wins. A higher revision replaces a waiting sample, or withdraws it if it
        has no reward any more, and is `late` for a trained one. Other fates are about the tokens and cover every revision.
        """
        key, revision = experience.key, experience.revision
        if experience.purpose != "user":
            return None
        if (fate := self._state.fates.get(key)) is not None:
            return self._late(key, fate, revision)
        held = self._waiting.get(key)
        newest = held.experience.revision if held else self._state.unrewarded.get(key, -1)
        if revision <= newest:
            return None
        if is_learnable(experience):
            fresh = Waiting(experience, record.topic, record.partition, record.offset, now)
            self._waiting[key] = replace(held, experience=experience) if held else fresh
            self._state.unrewarded.pop(key, None)
        else:
            self._waiting.pop(key, None)
            self._state.unrewarded[key] = revision
        return None

    def _late(self, key: str, fate: Fate, revision: int) -> Fate | None:
        if revision <= max(fate.revision, fate.late or fate.revision):
            return None
        changes = {"late": revision} if fate.state == "trained" else {"revision": revision}
        changed = self._state.fates[key] = msgspec.structs.replace(fate, **changes)
        return changed

    def remove(self, key: str) -> None:
        """A waiting sample's fate was decided."""
        del self._waiting[key]

    def is_ready(self, now: float, *, batch_size: int, min_batch_size: int, max_wait_seconds: float) -> bool:
        """True if a batch should be taken: a full one, or a smaller one whose oldest sample waited long enough."""
        if len(self._waiting) >= batch_size:
            return True
        if not self._waiting or len(self._waiting) < min_batch_size:
            return False
        oldest = min(item.arrived_at for item in self._waiting.values())
        return now - oldest >= max_wait_seconds

    def decided_positions(self) -> dict[str, dict[int, int]]:
        """Per partition the first offset that is not decided: reading again from there loses nothing.

        What was decided after it is read twice and known by its key.
        """
        positions = {topic: dict(at) for topic, at in self._next.items()}
        for item in self._waiting.values():
            positions[item.topic][item.partition] = min(positions[item.topic][item.partition], item.offset)
        return positions
