from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from contracts.draws import is_audited
from contracts.records import Score
from contracts.tasks import Task
from contracts.tasks.rewards import Role
from rewards.grader import Grader
from rewards.panel import Panel
from rewards.verifiers.check import Answer, Check, broken, right, wrong

NUM_ANSWERS = 40
PROBABILITY = 0.25
ANSWERS = [Answer("good" if number % 3 else "bad", key=f"chatcmpl-{number}:0") for number in range(NUM_ANSWERS)]
GOOD = [answer for answer in ANSWERS if answer.text == "good"]
DRAWN = [answer for answer in ANSWERS if is_audited(answer.key, PROBABILITY)]


class Asked:
    """A grader that remembers whom it was asked about. It fails what is bad, and gives others their own value."""

    def __init__(self, name: str, role: Role = "component", *, is_slow: bool = True) -> None:
        self.answers: list[Answer] = []
        self.grader = Grader(name, role, 0.0, f"{name}/1", is_slow=is_slow, check_all=self.check_all)

    def check_all(self, answers: Sequence[Answer]) -> list[Check]:
        self.answers += answers
        return [self.check(answer) for answer in answers]

    def check(self, answer: Answer) -> Check:
        if self.grader.role == "gate":
            return wrong("bad") if answer.text == "bad" else right()
        return Check(worth(answer))


class Broken(Asked):
    """One that never finds out."""

    def check(self, answer: Answer) -> Check:
        return broken(answer.text)


class Half(Asked):
    """A gate that lets everything through by half."""

    def check(self, answer: Answer) -> Check:
        return Check(0.5, fault="model", reason=answer.text)


def worth(answer: Answer) -> float:
    return ANSWERS.index(answer) / NUM_ANSWERS


def a_task(**changes: Any) -> Task:
    return Task.model_validate({"name": "t", "signals": {"said": {"type": "text"}}, **changes})


AUDITED = a_task(
    audit={"judge": "auditor", "probability": PROBABILITY},
    judges=[{"name": "auditor", "role": "watch", "url": "http://127.0.0.1:9/v1", "model": "m", "criteria": "c"}],
)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def grade(pool: ThreadPoolExecutor, *asked: Asked, task: Task | None = None) -> list[tuple[Score, ...]]:
    return Panel(task or a_task(), [item.grader for item in asked]).grade(ANSWERS, pool)


def test_what_a_gate_refused_is_shown_to_nobody_slow_but_who_watches(pool: ThreadPoolExecutor) -> None:
    gate, judge, watch = Asked("gate", "gate", is_slow=False), Asked("judge"), Asked("watch", "watch")
    rows = grade(pool, judge, watch, gate)
    assert gate.answers == watch.answers == ANSWERS
    assert judge.answers == GOOD
    for answer, (judged, watched, gated) in zip(ANSWERS, rows, strict=True):
        assert [item.name for item in (judged, watched, gated)] == ["judge", "watch", "gate"]
        assert watched.value == worth(answer)
        if answer.text == "good":
            assert judged.value == worth(answer), "the values of the others did not slip into another's place"
        else:
            assert (judged.value, judged.status, judged.fault) == (None, "unlabelled", "none")
            assert judged.reason == "a gate refused the answer"


@pytest.mark.parametrize("gate", [Broken("gate", "gate", is_slow=False), Half("gate", "gate", is_slow=False)])
def test_only_a_refusal_spares_the_slow_ones(pool: ThreadPoolExecutor, gate: Asked) -> None:
    judge = Asked("judge")
    rows = grade(pool, gate, judge)
    assert judge.answers == ANSWERS
    assert [row[1].value for row in rows] == [worth(answer) for answer in ANSWERS]


def test_a_component_that_is_worth_nothing_is_no_refusal(pool: ThreadPoolExecutor) -> None:
    first, judge = Asked("first", is_slow=False), Asked("judge")
    assert grade(pool, first, judge)[0][0].value == 0.0
    assert judge.answers == ANSWERS


def test_the_audits_judge_sees_the_drawn_samples_alone_refused_ones_too(pool: ThreadPoolExecutor) -> None:
    gate, auditor = Asked("gate", "gate", is_slow=False), Asked("auditor", "watch")
    rows = grade(pool, gate, auditor, task=AUDITED.model_copy(update={"judges": ()}))
    assert 4 <= len(DRAWN) <= 16
    assert {answer.text for answer in DRAWN} == {"good", "bad"}
    assert auditor.answers == DRAWN
    for answer, (_, audited) in zip(ANSWERS, rows, strict=True):
        if answer in DRAWN:
            assert audited.value == worth(answer)
        else:
            assert (audited.value, audited.status, audited.reason) == (None, "unlabelled", "not drawn for the audit")


def test_another_judge_that_watches_sees_everything_beside_the_audit(pool: ThreadPoolExecutor) -> None:
    auditor, watch = Asked("auditor", "watch"), Asked("watch", "watch")
    grade(pool, auditor, watch, task=AUDITED.model_copy(update={"judges": ()}))
    assert (auditor.answers, watch.answers) == (DRAWN, ANSWERS)


def test_imported_answers_are_shown_only_to_those_that_want_them(pool: ThreadPoolExecutor) -> None:
    costly, free = Asked("costly"), Asked("free")
    costly.grader = costly.grader._replace(is_for_imported=False)
    answers = [GOOD[0], GOOD[1]._replace(is_imported=True)]
    free.check = costly.check = lambda answer: Check(float(answer.is_imported))  # type: ignore[method-assign]
    rows = Panel(a_task(), [costly.grader, free.grader]).grade(answers, pool)
    assert (costly.answers, free.answers) == (answers[:1], answers)
    assert (rows[1][0].value, rows[1][0].status, rows[1][0].reason) == (None, "unlabelled", "imported")


def test_who_is_waited_for_works_side_by_side(pool: ThreadPoolExecutor) -> None:
    both = threading.Barrier(2, timeout=10.0)

    class Meeting(Asked):
        def check(self, answer: Answer) -> Check:
            if answer is ANSWERS[0]:
                both.wait()
            return super().check(answer)

    rows = grade(pool, Meeting("one"), Meeting("two"))
    assert [[item.value for item in row] for row in rows] == [[worth(answer)] * 2 for answer in ANSWERS]


def test_one_that_breaks_on_an_answer_keeps_its_other_answers_in_their_places(pool: ThreadPoolExecutor) -> None:
    class Stumbling(Asked):
        def check(self, answer: Answer) -> Check:
            if answer is GOOD[5]:
                raise ValueError("not this one")
            return super().check(answer)

    rows = grade(pool, Asked("gate", "gate", is_slow=False), Stumbling("judge"))
    for answer, (_, judged) in zip(ANSWERS, rows, strict=True):
        wanted = "infra" if answer is GOOD[5] else "none"
        assert judged.fault == wanted
        assert judged.value == (worth(answer) if answer.text == "good" and wanted == "none" else None)


def test_without_graders_there_are_no_scores_and_without_answers_nobody_is_asked(pool: ThreadPoolExecutor) -> None:
    assert grade(pool) == [()] * NUM_ANSWERS
    judge = Asked("judge")
    panel = Panel(a_task(), [judge.grader])
    assert panel.grade([], pool) == []
    assert judge.answers == []
    assert panel.is_slow
    assert not Panel(a_task(), [Asked("quick", is_slow=False).grader]).is_slow


def test_verifiers_come_before_the_others(pool: ThreadPoolExecutor) -> None:
    task = a_task(verifiers=[{"name": "shape", "kind": "json_schema", "config": {"schema": {}}}])
    judge = Asked("judge")
    (row, *_) = Panel(task, [judge.grader]).grade(ANSWERS[:1], pool)
    assert [item.name for item in row] == ["shape", "judge"]
    assert judge.answers == [], "the answer is no JSON"
