from __future__ import annotations

from typing import Any

import msgspec
import pytest

from contracts.records import Score
from contracts.tasks import Task
from rewards.grader import CheckAll, each
from rewards.panel import graders_of
from rewards.rubric import NOTHING_TO_WEIGH, SILENT, RewardVerdict, combine, grade_of
from rewards.signals.mapping import About, score_signals
from rewards.verifiers.check import Answer, Check, bad_reference, broken, right, unlabelled, wrong
from tests.each_case import each_case
from tests.fakes import BOOKING_TASK, a_generation, a_signal


def verdict_of(text: str, *said: tuple[str, Any], task: Task = BOOKING_TASK) -> RewardVerdict:
    about = a_generation(text)
    signals = [a_signal(about, name, value) for name, value in said]
    graders = graders_of(task)
    checks = [grader.score_all([Answer(text)])[0] for grader in graders]
    return combine(task, checks, score_signals(task, About(text, about.finished_at), signals))


@each_case(
    ("text", "said", "wanted"),
    [
        ('{"party":2}', [("accepted", True)], (1.0, "scored", "none")),
        ('{"party":2}', [("accepted", False)], (0.0, "scored", "none")),
        ('{"party":2}', [], (None, "unlabelled", "none")),
        ('{"party":2}', [("comment", "nice")], (None, "unlabelled", "none")),
        ('{"party":2}', [("accepted", True), ("edited", "{}")], (0.0, "scored", "none")),
        ('{"party":2}', [("stars", 4)], (0.75, "scored", "none")),
        # A wrong shape is the model's fault, whether anybody spoke or not, and even if somebody liked it.
        ("nonsense", [], (0.0, "scored", "model")),
        ("nonsense", [("accepted", True)], (0.0, "scored", "model")),
        # The right shape alone is worth nothing.
        ('{"party":99}', [], (None, "unlabelled", "none")),
    ],
)
def test_rewards(text: str, said: list[tuple[str, Any]], wanted: tuple[float | None, str, str]) -> None:
    assert verdict_of(text, *said)[:3] == wanted


def test_a_task_may_say_what_silence_means() -> None:
    task = BOOKING_TASK.model_copy(update={"silence": 0.4})
    assert verdict_of('{"party":2}', task=task)[:3] == (0.4, "scored", "none")


def test_a_broken_grader_is_nobodys_fault_but_ours() -> None:
    def broken(answer: Answer) -> Any:
        raise RuntimeError(answer.text)

    graders = [grader._replace(check_all=each(broken)) for grader in graders_of(BOOKING_TASK)]
    checks = [grader.score_all([Answer("x")])[0] for grader in graders]
    assert checks[0].fault == "infra"
    assert "RuntimeError: x" in checks[0].reason
    signals = [Score(name="accepted", grader="s", value=1.0)]
    assert combine(BOOKING_TASK, checks, signals) == (None, "unscored", "infra", "infra_fault:shape")


def test_every_score_names_its_grader_version_and_task() -> None:
    about = a_generation()
    scores = score_signals(BOOKING_TASK, About("", 0.0), [a_signal(about, "edited", "x"), a_signal(about)])
    assert [(score.name, score.weight) for score in scores] == [("edited", 1.0), ("accepted", 0.0)]
    assert all(score.grader.endswith(BOOKING_TASK.hash) for score in scores)


def a_task(**changes: Any) -> Task:
    """A verifier gates, two others are worth 0.3 and 0.2, users the rest."""
    verifiers = [
        {"name": "shape", "kind": "json_schema", "config": {"schema": {}}},
        {"name": "exact", "kind": "json_exact", "role": "component", "weight": 0.3},
        {"name": "same", "kind": "json_exact", "role": "component", "weight": 0.2},
    ]
    signals = {"accepted": {"type": "bool", "labels": {"true": 1.0, "false": 0.0}}}
    return Task.model_validate({"name": "t", "signals": signals, "verifiers": verifiers} | changes)


def saying(check: Check) -> CheckAll:
    return lambda answers: [check for _ in answers]


def checked(task: Task, *checks: Check, said: float | None = 1.0) -> RewardVerdict:
    asked = zip(graders_of(task), checks, strict=True)
    graders = [grader._replace(check_all=saying(check)) for grader, check in asked]
    scores = [grader.score_all([Answer("x")])[0] for grader in graders]
    signals = [] if said is None else [Score(name="accepted", grader="s", value=said)]
    return combine(task, scores, signals)


def test_components_and_signals_add_up_by_their_weights() -> None:
    assert checked(a_task(), right(), right(), Check(0.5)).reward == pytest.approx(0.3 + 0.1 + 0.5)
    assert checked(a_task(), Check(0.5), right(), Check(0.5)).reward == pytest.approx(0.45)


def test_a_gate_scales_how_far_the_reward_lies_above_the_worst() -> None:
    task = a_task(reward={"low": -1.0, "high": 1.0})
    assert checked(task, Check(0.5), right(), right()).reward == pytest.approx(0.0)
    assert checked(task, wrong("no"), right(), right()) == (-1.0, "scored", "model", "gate:shape")


def test_a_known_model_fault_is_kept_even_if_other_graders_failed() -> None:
    assert checked(a_task(), wrong("no"), broken("down"), right())[:3] == (0.0, "scored", "model")


def test_what_is_missing_by_our_fault_makes_the_reward_null_or_leaves_its_weight_to_the_others() -> None:
    assert checked(a_task(), right(), broken("down"), right()) == (None, "unscored", "infra", "infra_fault:exact")
    renormalised = checked(a_task(reward={"missing": "renormalise"}), right(), broken("down"), Check(0.0))
    assert renormalised.reward == pytest.approx(0.5 / 0.7)


def test_silence_leaves_its_weight_to_the_graders_only_where_the_task_says_so() -> None:
    right_twice = (right(), right(), Check(0.5))
    assert checked(a_task(reward={"missing": "renormalise"}), *right_twice, said=None) == SILENT
    assert checked(a_task(silence="expected"), *right_twice, said=None) == SILENT
    assert checked(a_task(silence="renormalise"), *right_twice, said=None).reward == pytest.approx(0.4 / 0.5)
    assert checked(a_task(silence="renormalise"), *right_twice, said=0.0).reward == pytest.approx(0.4)
    gates = [{"name": "shape", "kind": "json_schema", "config": {"schema": {}}}]
    assert checked(a_task(silence="renormalise", verifiers=gates), right(), said=None) == NOTHING_TO_WEIGH


def test_what_is_expected_stands_for_silence_alone() -> None:
    task, graders = a_task(silence="expected"), graders_of(a_task())
    checks = [Score(name=grader.name, grader="g", value=1.0, weight=grader.weight) for grader in graders]
    said = [Score(name="accepted", grader="s", value=0.0)]
    assert combine(task, checks, [], expected=0.4).reward == pytest.approx(0.7)
    assert combine(task, checks, said, expected=0.4).reward == pytest.approx(0.5)
    failed = [msgspec.structs.replace(checks[0], value=0.0), *checks[1:]]
    assert combine(task, failed, [], expected=0.4)[:3] == (0.0, "scored", "model")


@pytest.mark.parametrize(
    ("checks", "wanted"),
    [
        ((right(), right(), right()), 1.0),
        ((right(), right(), Check(0.0)), 0.6),
        ((Check(0.5), right(), right()), 0.5),
        ((wrong("no"), right(), right()), None),  # the worst, whatever anybody says
        ((right(), broken("down"), right()), None),
        ((right(), unlabelled("no reference"), right()), None),
    ],
)
def test_what_graders_alone_make_of_an_answer(checks: tuple[Check, ...], wanted: float | None) -> None:
    for low in (0.0, -1.0):
        task = a_task(reward={"low": low, "high": 1.0})
        graders = [
            grader._replace(check_all=saying(check)) for grader, check in zip(graders_of(task), checks, strict=True)
        ]
        scores = [grader.score_all([Answer("x")])[0] for grader in graders]
        assert grade_of(task, scores) == (None if wanted is None else pytest.approx(wanted))


def test_gates_alone_grade_by_the_least_of_them() -> None:
    gates: list[dict[str, Any]] = [
        {"name": name, "kind": "json_schema", "config": {"schema": {}}} for name in ("one", "two")
    ]
    task = a_task(verifiers=gates)
    graders = graders_of(task)
    scores = [
        Score(name=grader.name, grader="g", value=value) for grader, value in zip(graders, (0.75, 1.0), strict=True)
    ]
    assert grade_of(task, scores) == 0.75


def test_a_gate_that_could_not_be_asked_is_never_guessed() -> None:
    task = a_task(reward={"missing": "renormalise"})
    assert checked(task, broken("down"), right(), right())[:3] == (None, "unscored", "infra")


def test_with_every_component_missing_there_is_nothing_to_renormalise() -> None:
    task = a_task(
        reward={"missing": "renormalise", "signals": 0.0},
        verifiers=[{"name": "exact", "kind": "json_exact", "role": "component"}],
    )
    assert checked(task, broken("down"))[:3] == (None, "unscored", "infra")


def test_an_app_that_sends_a_useless_reference_is_named_and_nobody_learns() -> None:
    assert checked(a_task(), right(), bad_reference("not JSON"), right())[:3] == (None, "unscored", "user")


def test_verifiers_alone_may_pay_where_the_task_gives_signals_no_weight() -> None:
    task = a_task(verifiers=[{"name": "exact", "kind": "json_exact", "role": "component"}])
    assert checked(task, right(), said=None)[:2] == (1.0, "scored")


def test_a_judge_of_what_came_next_speaks_where_no_user_did() -> None:
    task = a_task(verifiers=[{"name": "next", "kind": "json_exact", "role": "signal"}])
    assert checked(task, Check(0.25), said=None).reward == pytest.approx(0.25)
    assert checked(task, Check(0.25), said=1.0).reward == 1.0
    assert checked(task, unlabelled("nothing came"), said=None)[:2] == (None, "unlabelled")
