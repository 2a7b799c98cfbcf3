from __future__ import annotations

from typing import Any

import pytest

from contracts.records import Score
from contracts.tasks import Task
from rewards.graders import CheckAll, each
from rewards.rubric import Verdict, combine
from rewards.signals.mapping import About, score_signals
from rewards.verifiers.check import Answer, Check, bad_reference, broken, right, unlabelled, wrong
from rewards.verifiers.registry import graders_of
from tests.fakes import BOOKING_TASK, a_generation, a_signal


def verdict_of(text: str, *said: tuple[str, Any], task: Task = BOOKING_TASK) -> Verdict:
    about = a_generation(text)
    signals = [a_signal(about, name, value) for name, value in said]
    graders = graders_of(task)
    checks = [grader.score_all([Answer(text)])[0] for grader in graders]
    return combine(task, graders, checks, score_signals(task, About(text, about.finished_at), signals))


@pytest.mark.parametrize(
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
    assert combine(BOOKING_TASK, graders, checks, signals) == (None, "unscored", "infra", "infra_fault:shape")


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


def checked(task: Task, *checks: Check, said: float | None = 1.0) -> Verdict:
    asked = zip(graders_of(task), checks, strict=True)
    graders = [grader._replace(check_all=saying(check)) for grader, check in asked]
    scores = [grader.score_all([Answer("x")])[0] for grader in graders]
    signals = [] if said is None else [Score(name="accepted", grader="s", value=said)]
    return combine(task, graders, scores, signals)


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
