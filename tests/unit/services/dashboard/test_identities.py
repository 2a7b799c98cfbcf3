from contracts import ledger
from contracts.ledger import LedgerCounts
from contracts.topics import GENERATIONS, SIGNALS
from services.dashboard.live.identities import (
    GENERATION_STATES,
    SIGNAL_STATES,
    Identity,
    counts_by_version,
    generation_identity,
    identities,
    signal_identity,
)
from services.dashboard.live.queries import StateCount, Totals
from services.dashboard.live.traffic import PartitionLag, Traffic


def count_of(identity: Identity, name: str) -> int:
    return identity.counts[identity.names.index(name)]


def test_the_names_are_those_of_the_ledger() -> None:
    assert set(GENERATION_STATES) == ledger.GENERATION_STATES
    assert set(SIGNAL_STATES) == ledger.SIGNAL_STATES


def test_states_are_counted_per_version() -> None:
    standings = [StateCount("trained", 3, 5), StateCount("unlabelled", 3, 4), StateCount("trained", 2, 7)]
    assert counts_by_version(standings) == {3: {"trained": 5, "unlabelled": 4}, 2: {"trained": 7}}


def test_generations_balance_per_version_and_in_all() -> None:
    counts = {2: {"trained": 5, "pending": 1}, 1: {"filtered": 2, "erased": 3}}
    identity = generation_identity(counts, num_handled=11, num_open=0, num_skipped=0, num_unread=2)
    assert identity.problems == []
    assert identity.total == sum(identity.counts) == 13
    assert count_of(identity, "pending") == 3
    assert [(row.version, row.total) for row in identity.versions] == [(2, 6), (1, 5)]
    assert identity.versions[1].counts[GENERATION_STATES.index("filtered")] == 2


def test_nothing_logged_is_balanced() -> None:
    identity = generation_identity({}, num_handled=0, num_open=0, num_skipped=0, num_unread=0)
    assert (identity.total, sum(identity.counts), identity.problems) == (0, 0, [])


def test_a_generation_that_was_read_and_has_no_row_raises_the_alarm() -> None:
    identity = generation_identity({1: {"trained": 9}}, num_handled=10, num_open=0, num_skipped=0, num_unread=0)
    assert identity.problems == ["generations that were read from the log and have no state: 1"]
    assert (identity.total, sum(identity.counts)) == (10, 9)


def test_a_row_that_was_never_logged_raises_the_alarm() -> None:
    problems = generation_identity({1: {"trained": 9}}, num_handled=8, num_open=0, num_skipped=0, num_unread=0).problems
    assert problems == ["generations that have a state and were never logged: 1"]


def test_a_dead_letter_and_an_unknown_state_raise_the_alarm() -> None:
    problems = generation_identity(
        {1: {"trained": 8, "lost": 1}}, num_handled=10, num_open=1, num_skipped=0, num_unread=0
    ).problems
    assert problems == [
        "generations of v1 in the unknown state 'lost': 1",
        "logged generations that could not be processed, see millrace dead-letters list: 1",
    ]


def test_skipped_records_are_counted_and_redriven_records_are_counted_once() -> None:
    letters = {("episodes", GENERATIONS, "skipped"): 2, ("episodes", GENERATIONS, "redriven"): 1}
    totals = Totals(
        state_counts=[StateCount("pending", 1, 7)],
        signals=LedgerCounts(0, {}),
        num_unjoined=0,
        positions={("episodes", GENERATIONS, 0): 10},  # seven joined, of which one was redriven; two skipped
        dead_letters=letters,
        outboxes={},
    )
    quiet = Traffic(0, 0, None, [PartitionLag(0, 10, 10, None)])
    found = identities(totals, {GENERATIONS: quiet, SIGNALS: Traffic(0, 0, None, [])}).generations
    assert found.problems == []
    assert found.total == sum(found.counts) == 9
    assert count_of(found, "dead_letter") == 2


def test_a_signal_that_could_not_be_processed_is_named_and_not_lost() -> None:
    problems = signal_identity(LedgerCounts(1, {"pending": 1}), num_unjoined=1, num_under_way=0, num_open=1).problems
    assert problems == ["signals that could not be processed, see millrace dead-letters list: 1"]


def test_signals_balance_while_the_unjoined_are_on_their_way() -> None:
    counts = LedgerCounts(12, {"joined": 6, "late": 1, "pending": 3, "duplicate": 2})
    identity = signal_identity(counts, num_unjoined=3, num_under_way=3)
    assert (identity.total, sum(identity.counts), identity.problems) == (12, 12, [])
    assert count_of(identity, "duplicate") == 2


def test_an_acknowledged_signal_that_is_nowhere_raises_the_alarm() -> None:
    counts = LedgerCounts(10, {"joined": 7, "pending": 3})
    identity = signal_identity(counts, num_unjoined=3, num_under_way=1)
    assert identity.problems == ["acknowledged signals that are neither joined nor on their way: 2"]
    assert (identity.total, sum(identity.counts)) == (10, 8)


def test_signals_that_do_not_add_up_raise_the_alarm() -> None:
    assert signal_identity(LedgerCounts(10, {"joined": 9}), num_unjoined=0, num_under_way=0).problems
    assert signal_identity(LedgerCounts(9, {"joined": 10, "pending": -1}), num_unjoined=-1, num_under_way=0).problems
