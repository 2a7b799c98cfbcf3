"""Random lives of trainers as the log sees them: checkpoints, crashes, rollbacks, rewinds, zombies; and the states expected at the end."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from contracts.event_log import Message
from contracts.records import Also, Outcome, State
from contracts.topics import OUTCOMES, route_of_key
from runtime.log.outbox import message

Told = tuple[State, str, int | None]
"""State, reason, version."""
DECISIONS: tuple[Told, ...] = (
    ("trained", "", 3),
    ("stale", "age", None),
    ("off_support", "greedy", None),
    ("filtered", "no_weight", None),
)


@dataclass
class Saved:
    """The part of a checkpoint that matters here: `fates` is key to (sequence, revision, decision)."""

    epoch: int
    sequence: int
    fates: dict[str, tuple[int, int, Told]]
    untold: set[str]


@dataclass
class Story:
    """The actions of trainers, one after the other; `said` are their outcomes in order."""

    chance: random.Random
    keys: list[str]
    epoch: int = 0
    sequence: int = 0
    fates: dict[str, tuple[int, int, Told]] = field(default_factory=dict)
    untold: set[str] = field(default_factory=set)
    saved: list[Saved] = field(default_factory=list)
    issued: list[int] = field(default_factory=list)
    said: list[Outcome] = field(default_factory=list)

    def decide(self, key: str, what: Told) -> None:
        """A sample, or a later revision of one, gets its fate."""
        revision = self.fates[key][1] + 1 if key in self.fates else 1
        self.sequence += 1
        self.fates[key] = (self.sequence, revision, what)
        self.untold.add(key)

    def save(self) -> None:
        """A checkpoint."""
        self.saved.append(Saved(self.epoch, self.sequence, dict(self.fates), set(self.untold)))

    def tell(self, share: float = 1.0) -> None:
        """Send the decisions of the newest checkpoint that were not sent yet; a crash may end it early."""
        newest = self.saved[-1]
        waiting = [key for key in sorted(newest.untold) if self.fates.get(key) == newest.fates[key]]
        told = waiting[: round(len(waiting) * share)]
        self.said += bundled([outcome_of(key, self.epoch, newest.fates[key]) for key in told])
        self.untold -= set(told)

    def begin(self, saved: Saved | None) -> None:
        """Begin an epoch that continues a checkpoint, or the state in memory."""
        before = (self.epoch, self.sequence)
        if saved is not None:
            self.sequence, self.fates, self.untold = saved.sequence, dict(saved.fates), set(saved.untold)
            before = (saved.epoch, saved.sequence)
        self.epoch = max([self.epoch, *self.issued]) + self.chance.choice([1, 1, 2])
        self.issued.append(self.epoch)
        self.save()
        previous, kept = before if before[0] else (None, -1)
        self.said.append(
            Outcome(
                key="", revision=0, epoch=self.epoch, state="epoch_started", writer="training", at=1.0,
                previous=previous, kept_sequence=kept,
            )
        )  # fmt: skip
        self.tell()

    def roll_back(self) -> None:
        """Trained samples are quarantined or pending again; positions and keys stay."""
        for key, (_, revision, what) in list(self.fates.items()):
            if what[0] == "trained" and self.chance.random() < 0.5:
                self.sequence += 1
                self.fates[key] = (
                    self.sequence,
                    revision,
                    (self.chance.choice(["quarantined", "pending"]), "rollback", None),
                )
                self.untold.add(key)
        self.begin(None)

    def zombie(self) -> list[Outcome]:
        """Outcomes that a stopped trainer of an earlier epoch may still send."""
        left = self.chance.choice(self.saved)
        epoch, sequence, keys = left.epoch, left.sequence + 100, self.chance.sample(self.keys, min(2, len(self.keys)))
        return [outcome_of(key, epoch, (sequence + n, 7, ("trained", "", 99))) for n, key in enumerate(keys)]

    def go_on(self, num_turns: int) -> list[Outcome]:
        """A random life to its end; returns the outcomes of zombies, which may arrive at any time after their epoch."""
        zombies: list[Outcome] = []
        self.begin(None)
        for _ in range(num_turns):
            turn = self.chance.random()
            if turn < 0.5:
                self.decide(self.chance.choice(self.keys), self.chance.choice(DECISIONS))
            elif turn < 0.7:
                self.save()
                self.tell(self.chance.choice([0.0, 0.5, 1.0]))
            elif turn < 0.85:
                zombies += self.zombie() if self.chance.random() < 0.5 else []
                self.begin(self.chance.choice(self.saved[-3:]))
            else:
                self.roll_back()
        self.begin(None)
        return [item for item in zombies if item.epoch < self.epoch]


def outcome_of(key: str, epoch: int, fate: tuple[int, int, Told]) -> Outcome:
    sequence, revision, (state, reason, version) = fate
    return Outcome(
        key=key, revision=revision, epoch=epoch, state=state, reason=reason, version=version, writer="training", at=1.0,
        sequence=sequence,
    )  # fmt: skip


def bundled(outcomes: list[Outcome]) -> list[Outcome]:
    """Outcomes of one partition that differ only in their sample, as one record."""
    groups: dict[tuple[object, ...], list[Outcome]] = {}
    for item in outcomes:
        groups.setdefault((route_of_key(item.key) % 4, item.state, item.reason, item.version), []).append(item)
    found = []
    for first, *others in groups.values():
        also = tuple(Also(item.key, item.revision, item.sequence) for item in others)
        found.append(type(first)(**{name: getattr(first, name) for name in first.__struct_fields__} | {"also": also}))
    return found


def messages(outcomes: list[Outcome]) -> list[Message]:
    return [message(OUTCOMES, item.key, item) for item in outcomes]
