"""Decisions are told once, in pieces, after they are durable; only pieces that the log may lack are told again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from contracts.errors import Unavailable
from contracts.event_log import Message
from contracts.faults import no_fault
from contracts.ids import new_completion_id, sample_key
from contracts.records import Outcome, decode
from contracts.topics import OUTCOMES, route_of_key
from pipelines.training.samples.reporting import PIECE, REPORTED_SINGLY, OutcomeReporter
from pipelines.training.state import EpochBegin, Fate, TrainerState, begin_epoch, roll_back
from runtime.log.local import LocalLog
from tests.fakes import everything


class FlakyLog(LocalLog):
    """A log that accepts a number of appends and then fails."""

    num_taken = 10**9

    def append(self, messages: list[Message]) -> None:  # type: ignore[override]
        if self.num_taken == 0:
            raise Unavailable("the log is away")
        self.num_taken -= 1
        super().append(messages)


@pytest.fixture
def log(tmp_path: Path) -> FlakyLog:
    return FlakyLog(tmp_path / "log")


def a_state(num: int, sequence: int = 0) -> TrainerState:
    keys = [sample_key(new_completion_id(), 0) for _ in range(num)]
    fates = {key: Fate(1, "trained", version=1) for key in keys}
    return TrainerState(epoch=3, ordinal=1, lineage=[1, 0], fates=fates, sequence=sequence)


def a_reporter(state: TrainerState, log: LocalLog) -> OutcomeReporter:
    return OutcomeReporter(state, log, lambda: 1.0, no_fault)


def told(log: LocalLog) -> list[Outcome]:
    return [decode(Outcome, record.value) for record in everything(log, OUTCOMES)]


def test_what_is_not_durable_is_not_told(log: FlakyLog) -> None:
    state = a_state(2)
    reporter = a_reporter(state, log)
    first, second = state.fates
    state.note(first)
    reporter.saved(reporter.mark())
    state.note(second)
    reporter.report()
    assert [item.key for item in told(log)] == [first]
    assert state.unreported == {second: 2}
    state.note(first)  # what it becomes now waits for the next checkpoint
    reporter.report()
    assert len(told(log)) == 1


def test_a_home_of_before_numbers_tells_everything_once(log: FlakyLog) -> None:
    state = a_state(REPORTED_SINGLY + 100, sequence=-1)
    begin_epoch(state, 4)
    reporter = a_reporter(state, log)
    reporter.saved(reporter.mark())
    reporter.report()
    started, *outcomes = sorted(told(log), key=lambda item: item.key)
    assert (started.epoch, started.previous, started.kept_sequence) == (4, 3, -1)
    each = [one for item in outcomes for one in item.each()]
    assert Counter(item.key for item in each) == Counter(state.fates.keys())
    assert sorted(item.sequence for item in each) == list(range(1, len(state.fates) + 1))
    assert len(outcomes) < len(each) / 5, "told together"
    assert all(route_of_key(one.key) % 4 == route_of_key(item.key) % 4 for item in outcomes for one in item.each())
    begin_epoch(state, 5)
    reporter.saved(reporter.mark())
    reporter.report()
    assert state.unreported == {}
    assert len(told(log)) == len(outcomes) + 2, "only the epoch"


@pytest.mark.slow
def test_a_log_that_goes_away_between_two_pieces_gets_the_rest_later(log: FlakyLog) -> None:
    state = a_state(2 * PIECE + 1, sequence=-1)
    begin_epoch(state, 4)
    reporter = a_reporter(state, log)
    reporter.saved(reporter.mark())
    log.num_taken = 2  # the epoch, and a piece
    with pytest.raises(Unavailable):
        reporter.report()
    assert (state.unreported_epochs, len(state.unreported)) == ([], PIECE + 1)
    log.num_taken = 10
    reporter.report()
    each = [one.key for item in told(log) if item.key for one in item.each()]
    assert Counter(each) == Counter(state.fates.keys())


def test_a_rollback_takes_words_back_or_says_what_became_of_them(log: FlakyLog) -> None:
    state = a_state(3)
    kept, poisoned, evidence = state.fates
    state.lineage = [3, 2, 1, 0]
    state.fates[poisoned], state.fates[evidence] = Fate(1, "trained", version=2), Fate(2, "trained", version=3)
    roll_back(state, TrainerState(lineage=[1, 0]), {2: "poison", 3: "evidence"}, 1.0)
    begin_epoch(state, 4)
    reporter = a_reporter(state, log)
    reporter.saved(reporter.mark())
    reporter.report()
    said = {item.key: (item.state, item.reason, item.revision) for item in told(log) if item.key}
    assert said == {poisoned: ("quarantined", "rollback", 1), evidence: ("pending", "rollback", 2)}
    assert kept in state.fates


def test_an_epoch_that_a_crash_left_untold_is_told_with_the_next_one(log: FlakyLog) -> None:
    state = TrainerState()
    begin_epoch(state, 1)
    begin_epoch(state, 2)
    assert state.unreported_epochs == [EpochBegin(1, None, -1), EpochBegin(2, 1, 0)]
    reporter = a_reporter(state, log)
    reporter.saved(reporter.mark())
    reporter.report()
    assert [item.epoch for item in told(log)] == [1, 2]
