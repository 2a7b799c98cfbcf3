"""The life of a sample without a database: its phases, and random sequences of events."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from contracts.ledger import PENDING
from contracts.records import Episode, Experience, Outcome, Signal
from contracts.tasks import Task
from pipelines.episodes import lifecycle
from pipelines.episodes.epochs.chain import LedgerEntry
from pipelines.episodes.join import IMPORTED_SECONDS
from pipelines.episodes.lifecycle import Facts, Phase, SampleState, Step, phase_of
from tests.fakes import a_generation, a_signal
from tests.unit.pipelines.episodes.bench import a_task

ACCEPTED = {"type": "bool", "labels": {"true": 1.0, "false": 0.0}}
QUICK = a_task({"accepted": ACCEPTED})
SLOW = a_task({"accepted": ACCEPTED, "kept": ACCEPTED | {"window_seconds": 100.0}})


def arrived(task: Task | None, *signals: Signal, now: float = 103.0, **changes: Any) -> Step:
    record = a_generation(completion_id="chatcmpl-019a0000-0000-7000-8000-000000000000", **changes)
    return lifecycle.arrive(SampleState(record, 0, now), Facts(task, signals, now), lifecycle.fate_of(record, task))


@pytest.mark.parametrize(
    ("task", "changes", "phase", "sent"),
    [
        (QUICK, {}, Phase.WAITING, []),
        (QUICK, {"finish_reason": "cancelled"}, Phase.NAMED, [Outcome]),
        (None, {}, Phase.NAMED, [Outcome]),
        (QUICK, {"purpose": "sentinel"}, Phase.NAMED, [Outcome]),
        (QUICK, {"purpose": "rollout"}, Phase.FINAL, [Outcome, Episode]),
        (QUICK, {"purpose": "imported"}, Phase.WAITING, []),
    ],
)
def test_the_first_phase_follows_from_the_record(
    task: Task | None, changes: dict[str, Any], phase: Phase, sent: list[type]
) -> None:
    step = arrived(task, **changes)
    assert phase_of(step.sample, task) is phase
    assert [type(record) for record in step.sends] == sent


@pytest.mark.parametrize(("task", "phase"), [(QUICK, Phase.FINAL), (SLOW, Phase.PROVISIONAL)])
def test_an_episode_is_provisional_while_a_slower_signal_may_come(task: Task, phase: Phase) -> None:
    step = arrived(task, a_signal(a_generation()))
    assert phase_of(step.sample, task) is phase
    assert [record.provisional for record in step.sends if isinstance(record, Episode)] == [phase is Phase.PROVISIONAL]
    closed = lifecycle.close(step.sample, Facts(task, (), 201.0))
    assert phase_of(closed.sample, task) is Phase.FINAL
    assert len(closed.sends) == (phase is Phase.PROVISIONAL)


@pytest.mark.parametrize(("writer", "state"), [("training", "trained"), ("rewards", PENDING)])
def test_a_new_revision_opens_every_state_but_that_of_the_trainer(writer: str, state: str) -> None:
    entry = LedgerEntry("trained", state_writer=writer, state_epoch=1, state_revision=1)
    sample = replace(arrived(QUICK, a_signal(a_generation())).sample, ledger=entry)
    step = lifecycle.hear(sample, Facts(QUICK, (), 104.0))
    assert (step.sample.revision, step.sample.ledger.state) == (2, state)


def test_no_signal_and_no_window_opens_what_was_taken_back_with_its_import() -> None:
    entry = LedgerEntry("quarantined", "import", "episodes", state_revision=1)
    sample = replace(arrived(SLOW, a_signal(a_generation()), purpose="imported").sample, ledger=entry)
    assert lifecycle.hear(sample, Facts(SLOW, (a_signal(a_generation()),), 104.0)) == Step(sample)
    assert lifecycle.close(sample, Facts(SLOW, (), 201.0)) == Step(replace(sample, closes_at=None))


def test_an_imported_answer_whose_window_is_over_waits_for_its_signals() -> None:
    sample = arrived(QUICK, purpose="imported", now=10_000.0).sample
    assert sample.closes_at == 10_000.0 + IMPORTED_SECONDS
    heard = lifecycle.hear(sample, Facts(QUICK, (a_signal(a_generation()),), 10_001.0))
    assert [type(record) for record in heard.sends] == [Episode]
    assert heard.sample.revision == 1


def test_a_replaced_answer_is_withdrawn_only_if_it_had_been_sent() -> None:
    for step, sent in ((arrived(QUICK), [Outcome]), (arrived(QUICK, a_signal(a_generation())), [Outcome, Experience])):
        aside = lifecycle.supersede(step.sample, "chatcmpl-later", 104.0)
        assert phase_of(aside.sample, QUICK) is Phase.SUPERSEDED
        assert [type(record) for record in aside.sends] == sent
        assert lifecycle.supersede(aside.sample, "chatcmpl-other", 105.0).sends == ()


@given(
    st.sampled_from([QUICK, SLOW]),
    st.lists(st.sampled_from(["hear", "silence", "close", "supersede", "resume", "pass"])),
    st.sampled_from(["stop", "cancelled"]),
)
def test_revisions_rise_and_phases_follow_whatever_happens(task: Task, events: list[str], finish: str) -> None:
    step, now, signals = arrived(task, finish_reason=finish), 103.0, list[Signal]()
    sent = [*step.sends]
    for event in events:
        sample, before = step.sample, phase_of(step.sample, task)
        if event == "pass":
            now += 50.0
            continue
        signals = {"hear": [a_signal(sample.record)], "silence": []}.get(event, signals)
        facts = Facts(task, signals, now)
        if event == "close" and sample.closes_at is not None and sample.closes_at <= now:
            step = lifecycle.close(sample, facts)
        elif event == "supersede":
            step = lifecycle.supersede(sample, "chatcmpl-later", now)
        elif event == "resume" and before is Phase.SUPERSEDED:
            step = lifecycle.resume(sample, facts)
        elif event in {"hear", "silence"}:
            step = lifecycle.hear(sample, facts)
        else:
            continue
        sent += step.sends
        after = phase_of(step.sample, task)
        assert step.sample.revision >= sample.revision
        assert all(record.revision == step.sample.revision for record in step.sends)
        assert (after is Phase.SUPERSEDED) == bool(step.sample.superseded_by)
        if after in {Phase.WAITING, Phase.PROVISIONAL}:
            assert step.sample.closes_at is not None, "it never waits without an end"
        for episode in step.sends:
            if isinstance(episode, Episode):
                assert finish == "stop"
                assert before is not Phase.SUPERSEDED or event == "resume"
                assert episode.provisional == (after is Phase.PROVISIONAL)
    revisions = [record.revision for record in sent if isinstance(record, Episode)]
    assert all(earlier < later for earlier, later in pairwise(revisions)), "a revision is never rewritten"
