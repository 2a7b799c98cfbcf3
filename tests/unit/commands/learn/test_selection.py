from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from commands.learn.selection import Selection, select, with_pairs
from contracts.records import Also, Experience, Generation, Outcome, Provided, Record, Score, Submitter
from contracts.topics import EXPERIENCES, GENERATIONS, OUTCOMES, SIGNALS
from runtime.log.local import LocalLog
from runtime.log.outbox import message
from tests.fakes import a_signal
from tests.unit.commands.learn.builders import TASK, answered


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LocalLog]:
    log = LocalLog(tmp_path / "log", num_partitions=2)
    log.create_topics()
    yield log
    log.close()


def say(log: LocalLog, topic: str, *records: Record) -> None:
    log.append([message(topic, record.key, record) for record in records])  # type: ignore[attr-defined] # each has one


def reward(about: Generation, value: float, revision: int = 1) -> Experience:
    return Experience(
        key=about.key, revision=revision, policy="p", task="booking", task_hash="h", tenant="t", purpose=about.purpose,
        baseline_key="b", scores=(), reward=value, status="scored", scored_at=1.0,
    )  # fmt: skip


def found(log: LocalLog, since: float = 0.0, **bounds: Any) -> Selection:
    selection = select(log, {"booking": TASK}, since, **bounds)
    selection.remarks = with_pairs(selection.remarks, selection.left_out)
    return selection


def test_each_kind_is_found_and_silence_teaches_nothing(log: LocalLog) -> None:
    edited, liked, disliked, taken, refused, rewarded, silent = (answered(f"prompt {n}") for n in range(7))
    say(log, GENERATIONS, edited, liked, disliked, taken, refused, rewarded, silent, taken)
    say(
        log,
        SIGNALS,
        a_signal(edited, "edited", '{"party": 4}', submitter=Submitter(id="bea")),
        a_signal(edited, value=False),
    )
    say(log, SIGNALS, a_signal(liked, "rated", "up"), a_signal(disliked, "rated", "down"), a_signal(taken))
    say(log, SIGNALS, a_signal(refused, value=False))
    say(log, EXPERIENCES, reward(rewarded, 0.9), reward(rewarded, 0.7, 0), reward(silent, 0.2))
    selection = found(log)
    kinds = {remark.record.key: (remark.kind, remark.is_good) for remark in selection.remarks}
    assert kinds == {
        edited.key: ("edit", True),
        liked.key: ("thumb", True),
        disliked.key: ("thumb", False),
        taken.key: ("accepted", True),
        rewarded.key: ("accepted", True),
    }
    edit = next(remark for remark in selection.remarks if remark.kind == "edit")
    assert (edit.chosen, edit.rejected, edit.person) == ('{"party": 4}', '{"party": 2}', "default/bea")
    assert selection.left_out == {"only_refused": 1, "silent": 1, "undecided": 1}
    assert selection.num_answers == 8


def test_a_better_and_a_worse_answer_to_one_prompt_are_a_pair_and_their_thumbs_are_not_lone(log: LocalLog) -> None:
    good, bad = answered("same", "yes", choice=0), answered("Same ", "no")
    theirs = answered("same", "never", tenant="other")
    say(log, GENERATIONS, theirs, good, bad)
    say(log, SIGNALS, *(a_signal(each, "rated", "up" if each is good else "down") for each in (good, bad, theirs)))
    lone, pair = sorted(found(log).remarks, key=lambda remark: remark.kind, reverse=True)
    assert (pair.kind, pair.chosen, pair.rejected) == ("pair", "yes", "no")
    assert (lone.kind, lone.chosen) == ("thumb", "never")  # answers of two tenants make no pair


def test_only_text_that_may_be_trained_on_is_read(log: LocalLog) -> None:
    provided = [answered(f"p {n}", provided=Provided(origin="openai", may_train=n == 1)) for n in range(2)]
    imported = answered("i", purpose="imported", provided=Provided(origin="langfuse"))
    partial = answered("half", provided=Provided(origin="openai", may_train=True, is_partial=True))
    shadow, unknown, cut = answered(purpose="shadow"), answered(task="gone"), answered("c", finish_reason="length")
    everything = [*provided, imported, partial, shadow, unknown, cut]
    say(log, GENERATIONS, *everything)
    say(log, SIGNALS, *(a_signal(record) for record in everything))
    selection = found(log)
    assert {remark.record.key for remark in selection.remarks} == {provided[1].key, imported.key}
    assert selection.left_out == {"provider_terms": 1, "partial": 1, "purpose": 1, "unknown_task": 1, "cut": 1}


def test_what_was_taken_back_or_said_by_a_judge_is_no_edit(log: LocalLog) -> None:
    taken_back, judged = answered("a"), answered("b")
    said = a_signal(taken_back, "edited", "other")
    say(log, GENERATIONS, taken_back, judged)
    say(log, SIGNALS, said, a_signal(taken_back, "edited", "other", id=said.id, retracted=True))
    say(log, SIGNALS, a_signal(judged, "edited", "other", submitter=Submitter(id="j", kind="judge")))
    assert found(log).remarks == []


def test_people_who_are_not_believed_teach_nothing_and_a_vote_counts_as_much_as_its_reward(log: LocalLog) -> None:
    refused, no_weight, half, neutral = (answered(f"prompt {n}") for n in range(4))
    say(log, GENERATIONS, refused, no_weight, half, neutral)
    say(log, SIGNALS, *(a_signal(each, "edited", "other") for each in (refused, no_weight, half, neutral)))
    missing = answered("prompt 4")
    say(log, GENERATIONS, missing)
    say(log, SIGNALS, a_signal(missing, "edited", "other"))
    vote = Score(name="edited", grader="signal/edited/1", value=0.5)
    unlabelled: dict[str, Any] = {"reward": None, "status": "unlabelled"}
    say(log, EXPERIENCES, replace(reward(refused, 0.0), **unlabelled, scores=(vote,)))
    say(log, EXPERIENCES, replace(reward(neutral, 0.0), **unlabelled, scores=(replace(vote, weight=0.0),)))
    ungraded = Score(name="truth", grader="code/truth/1", value=None, status="unlabelled")
    say(log, EXPERIENCES, replace(reward(missing, 0.0), **unlabelled, scores=(vote, ungraded)))
    say(log, EXPERIENCES, replace(reward(no_weight, 0.5), weight=0.0), replace(reward(half, 0.5), weight=0.5))
    selection = found(log)
    assert {item.record.key: item.weight for item in selection.remarks} == {
        half.key: 0.5,
        neutral.key: 1.0,
        missing.key: 1.0,
    }
    assert selection.left_out == {"not_believed": 2}


def test_an_import_that_was_taken_back_is_not_learned_before_the_ledger_knows(log: LocalLog) -> None:
    undone, also, kept = (answered(f"i {n}", purpose="imported", provided=Provided(origin="x")) for n in range(3))
    say(log, GENERATIONS, undone, also, kept)
    say(log, SIGNALS, *(a_signal(each) for each in (undone, also, kept)))
    told: dict[str, Any] = {
        "revision": 1,
        "epoch": 0,
        "state": "quarantined",
        "reason": "import",
        "writer": "episodes",
        "at": 1.0,
    }
    log.append([message(OUTCOMES, undone.key, Outcome(key=undone.key, **told))])
    log.append([message(OUTCOMES, also.key, Outcome(key=undone.key, also=(Also(also.key, 1, 0),), **told))])
    selection = found(log)
    assert [item.record.key for item in selection.remarks] == [kept.key]
    assert selection.left_out == {"quarantined": 2}


def test_since_and_the_bound_keep_the_newest(log: LocalLog) -> None:
    records = [answered(f"prompt {n}", created_at=float(n)) for n in range(6)]
    say(log, GENERATIONS, *records)
    say(log, SIGNALS, *(a_signal(record) for record in records))
    selection = found(log, since=2.0, most=2)
    assert [remark.record.created_at for remark in selection.remarks] == [4.0, 5.0]
    assert selection.left_out == {"older_than_the_newest": 2, "before_since": 2}


def test_a_damaged_record_costs_itself(log: LocalLog) -> None:
    broken, good = answered("a"), answered("b")
    say(log, GENERATIONS, good)
    log.append([message(GENERATIONS, broken.key, broken)._replace(value=b"\x81")])
    say(log, SIGNALS, a_signal(good), a_signal(broken))
    selection = found(log)
    assert [remark.record.key for remark in selection.remarks] == [good.key]
    assert selection.left_out == {"unreadable": 1}
