"""Moves cards between the engine replicas and the trainer of one home.

    figures ─▶ trend ─▶ decide() ─▶ written down ─▶ drained ─▶ ended ─▶ started anew ─▶ written down

In: what the processes say, every few seconds. Out: children that start and end, `cards.json`. Waits for: requests in flight, a checkpoint, an
engine that loads; never longer than a bound, and never inside `step`, so the supervisor goes on meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec

from commands.cards.demand import HomeFigures
from commands.cards.policy import CardUse, Demand, NextMove, decide
from commands.cards.records import MoveRecord, PoolRecord, read_record, started, write_record
from commands.cards.trend import DemandTrend
from commands.supervisor import LAST_STEP_SECONDS, GivenChild
from contracts.errors import Unavailable
from engines.card_users import GpuSettings
from engines.cards import VISIBLE, card_of

TRAINING: Final = "training"
LOOK_SECONDS = 5.0
_WRITE_SECONDS = 30.0
"""How often the last decision is written for `millrace gpus`."""
_SILENT_SECONDS = 60.0
"""Without a measurement for so long, nothing is known of users."""
_PAUSE_SECONDS = 600.0
"""After an engine that did not come up, before users get another card: each try costs the trainer two starts."""
_SEEN_SECONDS, _DRAIN_SECONDS = 1.5, 12.0
"""After the first, inference has seen that a replica takes no more; ten seconds later it has taken what is in flight to another one."""


class Children(Protocol):
    """The processes of a home, by name. A child that dies is started again until it is ended."""

    def add(self, name: str, given: GivenChild) -> None:
        """Start one."""

    def drain(self, name: str) -> None:
        """Tell it to take no new work."""

    def is_idle(self, name: str) -> bool:
        """True if it says that it works on nothing."""

    def end(self, name: str) -> None:
        """Ask it to end, for good."""

    def is_gone(self, name: str) -> bool:
        """True if it has ended, or never was."""

    def is_ready(self, name: str) -> bool:
        """True if it says that it does its work."""


class CardKeeper:
    """See the module. Belongs to one thread.

    Args:
        home: its folder.
        settings: the section [gpu], with a pool.
        engine: name of the process that is an engine replica.
        device: of the home, `cpu` or `cuda`.
        locks: by card, the descriptor that its processes inherit.
        children: starts and ends them.
        measure: reads what the processes say.
        health: what is wrong with a card; empty: nothing.
        patience: seconds until an engine that was started is given up.
        report: called with each line for the operator.
        clock: seconds that never go back: what a person does to the clock of the machine moves nothing.
        utc: epoch seconds, for what is written down.
    """

    def __init__(
        self,
        home: Path,
        settings: GpuSettings,
        engine: str,
        device: str,
        *,
        locks: Mapping[int, int],
        children: Children,
        measure: Callable[[], HomeFigures],
        health: Callable[[int], str],
        patience: float,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        utc: Callable[[], float] = time.time,
    ) -> None:
        self._home, self._settings, self._engine, self._device = home, settings, engine, device
        self._locks, self._children, self._measure, self._health = locks, children, measure, health
        self._patience, self._report, self._clock, self._utc = patience, report, clock, utc
        self._trend, self._backlog = DemandTrend(), 1
        self._silent_since: float | None = None
        self._going: Iterator[None] | None = None
        self._unready = dict[int, float]()
        """Cards whose replica does not serve, and since when."""
        self._look_at = self._write_at = 0.0
        self._moved_at = self._users_again_at = 0.0
        self._is_full = False
        self.record = PoolRecord(cards=())

    def start(self) -> None:
        """Start every replica and the trainer as `cards.json` says. Raises InvalidSettings: it is damaged; Unavailable: as `write_record`."""
        utc = self._utc()
        found = started(read_record(self._home), self._settings.pool, self._settings.floor, utc)
        self.record = msgspec.structs.replace(found, move_seconds=self._bounded(found.move_seconds))
        self._moved_at = self._clock() - max(0.0, utc - found.moved_at)
        write_record(self._home, self.record)
        for card in self.record.of("users"):
            self._start_engine(card)
        self._start_trainer()

    def step(self) -> None:
        """Go on with a move, or look whether one is due."""
        if self._going is not None:
            if next(self._going, self) is self:  # it ended
                self._going = None
            return
        now = self._clock()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        self._note(now)
        demand = self._trend.demand
        found = (
            NextMove("too early to tell: five minutes are measured first")
            if demand is None
            else self._decide(demand, now)
        )
        if found.to == "users" and (left := self._users_again_at - now) > 0:
            found = NextMove(f"no engine became ready on the last card of users: the next try is in {left:.0f} s")
        if found.card is not None and (problem := self._health(found.card)):
            found = NextMove(f"card {found.card} failed its check: {problem}", found.card, "nobody")
        if found.why != self.record.next and (found.card is not None or now >= self._write_at):
            self._write_at = now + _WRITE_SECONDS
            self._is_written(msgspec.structs.replace(self.record, next=found.why))
        if found.card is not None:
            self._begin(found.card, found.to, found.why)

    def child_of(self, card: int) -> str:
        """The name of the engine replica on a card."""
        number = self._settings.pool.index(card) + 1
        return self._engine if number == 1 else f"{self._engine}-{number}"

    def _decide(self, demand: Demand, now: float) -> NextMove:
        unready = [card for card in self.record.of("users") if not self._children.is_ready(self.child_of(card))]
        self._unready = {card: self._unready.get(card, now) for card in unready}
        if starts := [card for card, since in self._unready.items() if now - since < self._patience]:
            return NextMove(f"the replica on card {starts[0]} starts: nothing moves meanwhile")
        uses: dict[int, CardUse] = {
            item.card: "nobody" if item.card in self._unready else item.use for item in self.record.cards
        }
        seconds = self.record.move_seconds
        return decide(uses, demand, now, floor=self._settings.floor, moved_at=self._moved_at, move_seconds=seconds)

    def _note(self, now: float) -> None:
        found = self._measure()
        if found.in_flight is None:
            self._silent_since = now if self._silent_since is None else self._silent_since
            if now - self._silent_since >= _SILENT_SECONDS:
                self._trend = DemandTrend()
            return
        self._silent_since = None
        if found.backlog is not None:
            self._backlog = int(found.backlog)
        elif not self.record.of(TRAINING):
            self._backlog = max(1, self._backlog)  # nobody counts them
        self._trend.note(now, found.in_flight / self._settings.requests_per_card, self._backlog, found.live_age or 0.0)

    def _begin(self, card: int, to: CardUse, why: str) -> None:
        move = MoveRecord(card=card, to=to, why=why, begun_at=self._utc())
        if not self._is_written(msgspec.structs.replace(self.record, move=move)):
            return
        self._report(f"card {card} goes to {to}: {why}")
        was = next(item.use for item in self.record.cards if item.card == card)
        self._going = self._move(card, was, to)

    def _move(self, card: int, was: CardUse, to: CardUse) -> Iterator[None]:
        name, began = self.child_of(card), self._clock()
        if was == "users":
            self._children.drain(name)
            yield from self._until(lambda: self._children.is_gone(name), _SEEN_SECONDS)
            yield from self._until(lambda: self._children.is_idle(name), _DRAIN_SECONDS)
            yield from self._ended(name)
        if TRAINING in {was, to}:
            yield from self._ended(TRAINING)
        trains = [*(other for other in self.record.of(TRAINING) if other != card), *([card] if to == TRAINING else [])]
        self._start_trainer(trains)
        if to == "users":
            self._start_engine(card)
            yield from self._until(lambda: self._children.is_ready(name), self._patience)
            if not self._children.is_ready(name):
                yield from self._taken_back(card, trains)
                return
        yield from self._closed(self._bounded(self._clock() - began))

    def _taken_back(self, card: int, trains: list[int]) -> Iterator[None]:
        """Users get nothing of a card on which no engine starts: the trainer has it again, unless it is broken."""
        yield from self._ended(self.child_of(card))
        to: CardUse = TRAINING
        why = f"no engine became ready on it within {self._patience:.0f} s"
        if problem := self._health(card):
            to, why = "nobody", f"{why}: {problem}"
        self._report(f"card {card} goes to {to}: {why}")
        if to == TRAINING:
            self._users_again_at = self._clock() + _PAUSE_SECONDS
            yield from self._ended(TRAINING)
            self._start_trainer([*trains, card])
        move = MoveRecord(card=card, to=to, why=why, begun_at=self._utc())
        self.record = msgspec.structs.replace(self.record, move=move)
        yield from self._closed(self.record.move_seconds)

    def _closed(self, seconds: float) -> Iterator[None]:
        self._moved_at = self._clock()
        ended = self.record.ended(self._utc(), seconds)
        while not self._is_written(ended):
            yield

    def _bounded(self, seconds: float) -> float:
        """A duration that a move can have: the file may say anything."""
        return min(max(0.0, seconds), self._patience + _DRAIN_SECONDS + LAST_STEP_SECONDS)

    def _ended(self, name: str) -> Iterator[None]:
        if not self._children.is_gone(name):
            self._children.end(name)
        while not self._children.is_gone(name):
            yield

    def _until(self, is_done: Callable[[], bool], seconds: float) -> Iterator[None]:
        began = self._clock()
        while not is_done() and self._clock() - began < seconds:
            yield

    def _start_engine(self, card: int) -> None:
        self._children.add(self.child_of(card), self._given((), [card]))

    def _start_trainer(self, cards: list[int] | None = None) -> None:
        """On these cards, by default those that it has; nothing without one, or if it runs."""
        cards = sorted(self.record.of(TRAINING) if cards is None else cards)
        if cards and self._children.is_gone(TRAINING):
            self._children.add(TRAINING, self._given(("--processes", str(len(cards))) if len(cards) > 1 else (), cards))

    def _given(self, arguments: tuple[str, ...], cards: list[int]) -> GivenChild:
        names = [card_of(f"{self._device}:{card}") if self._device != "cpu" else str(card) for card in cards]
        return GivenChild(arguments, {VISIBLE: ",".join(names)}, tuple(self._locks[card] for card in cards))

    def _is_written(self, record: PoolRecord) -> bool:
        """False while the disk is full: nothing moves, and users are answered."""
        try:
            write_record(self._home, record)
        except Unavailable as error:
            if not self._is_full:
                self._report(f"no card moves: {error.message}")
            self._is_full = True
            return False
        self.record, self._is_full = record, False
        return True
