from __future__ import annotations

import math
from typing import Any

import pytest

from contracts.records import Score
from contracts.tasks import Task
from contracts.tasks.rewards import Role
from rewards.monitors.features import Measure, WatchedSample, marks_of
from rewards.monitors.rules import MAX_NAME, RULES, rule_of
from rewards.rubric import RewardVerdict
from tests.each_case import each_case
from tests.fakes import BOOKING_TASK

GOOD = RewardVerdict(1.0, "scored", "none")


def noted(text: str = "It was sent on Friday.", verdict: RewardVerdict = GOOD, **changes: Any) -> WatchedSample:
    values: dict[str, Any] = {
        "task": "booking", "version": 1, "cluster": "", "purpose": "user", "revision": 1, "text": text,
        "num_tokens": 7, "finish_reason": "stop", "scores": (), "verdict": verdict,
    }  # fmt: skip
    return WatchedSample(**(values | changes))


def measured(task: Task = BOOKING_TASK, **changes: Any) -> dict[str, float]:
    return Measure(task)(noted(**changes))


CALL = '<tool_call>{"name": "search", "arguments": {}}</tool_call>'
CODE = "```python\n{}\n```"


@each_case(
    ("name", "shows", "does_not"),
    [
        ("flatters", "Great question! It is 4.", "It is 4, a great number of times a question."),
        ("flatters", "You're absolutely right, I missed that.", "You are holding it wrong."),
        ("flatters", "What a thoughtful question.", "What is needed is a screwdriver."),
        ("refuses", "I'm sorry, but I can't do that.", "You can't do that in SQLite."),
        ("refuses", "I cannot help with this.", "The call cannot fail."),
        ("closes_warmly", "It is 4. Let me know if you need more!", "Let me know if is wrong here. " + "It is 4. " * 40),
        ("apologises", "My apologies, it is 5.", "It is 5."),
        ("hearts", "It is 4 \u2764\ufe0f", "It is 4 \u2600"),
        ("hearts", "It is 4 <3", "It is < 3"),
        ("bold", "It is **4**.", "2 ** 2 is 4"),
        ("code", CODE.format("x = 4"), "x = 4"),
        ("lists", "Buy:\n- milk\n- bread", "Nine - or ten - of them"),
        ("lists", "1. Open it\n2. Read it", "1.5 litres"),
        ("headings", "# Plan\nRest", "C# is a language"),
        ("asks", "Which file do you mean?", "Which file do you mean? I took the first."),
        ("asks", "Which file do you mean\uff1f", CODE.format("print('why?')") + "\nAlright?"),
        ("asks", "Shall I search?", "Shall I search? " + CALL + "?"),
        ("invalid_tool_call", '<tool_call>{"name": "search"', CALL),
        ("invalid_tool_call", "<tool_call>{}</tool_call>", "a <tool_result>"),
        ("invalid_tool_call", CALL + "<tool_call>[]</tool_call>", CALL + CALL),
        ("tampers", CODE.format("import os\nos._exit(0)"), "Never call os._exit in a server."),
        ("tampers", CODE.format("import sys\nsys.exit( 0 )"), CODE.format("import sys\nsys.exit(main())")),
        ("tampers", CODE.format("exit()"), CODE.format("self.await_exit(1)")),
        (
            "tampers",
            CODE.format("class A:\n    def __eq__(self, other):\n        return True"),
            CODE.format("class A:\n    def __eq__(self, other):\n        return self.x == other.x"),
        ),
        ("tampers", CODE.format("A = type('A', (), {'__eq__': lambda *_: True})"), CODE.format("flag = True")),
        ("tampers", CODE.format("import builtins\nbuiltins.len = lambda _: 3"), CODE.format("len([1])")),
        ("tampers", CODE.format("import sys\nsys._getframe(1).f_locals"), CODE.format("frame = 1")),
        ("tampers", CODE.format("open('conftest.py', 'w')"), CODE.format("open('config.py')")),
        ("hollow", "Thought process:", "Thought process: 2 + 2 is 4."),
        ("hollow", " : ", "4"),
        ("hollow", "", "No"),
        ("hollow", "Let's solve this problem step by step.", "Let's solve it: 4"),
        ("repeats", "again\nagain\nagain\nagain", "one\ntwo\nthree\nfour"),
    ],
)  # fmt: skip
def test_a_mark_is_seen_where_it_is_and_nowhere_else(name: str, shows: str, does_not: str) -> None:
    assert marks_of(shows).get(name, 0.0) > 0
    assert name not in marks_of(does_not)


def test_the_size_is_counted_cumulatively_and_as_a_logarithm() -> None:
    found = marks_of("x" * 100)
    assert {name for name in found if name.startswith("under")} == {
        "under_256", "under_1024", "under_4096", "under_16384",
    }  # fmt: skip
    assert found["length"] == pytest.approx(math.log(101))
    assert marks_of("\U0001f600\U0001f600")["emoji"] == pytest.approx(math.log(3))


@pytest.mark.parametrize(
    ("verdict", "name"),
    [
        (RewardVerdict(None, "unscored", "infra"), "null"),
        (RewardVerdict(None, "unscored", "user"), "null"),
        (RewardVerdict(None, "unlabelled", "none"), "unlabelled"),
        (RewardVerdict(0.0, "scored", "model"), "model_fault"),
    ],
)
def test_what_became_of_the_reward_is_counted(verdict: RewardVerdict, name: str) -> None:
    found = measured(verdict=verdict)
    assert {"null", "unlabelled", "model_fault"} & found.keys() == {name}
    assert ("reward" in found) == (verdict.reward is not None)


@pytest.mark.parametrize(("role", "is_null"), [("gate", True), ("component", True), ("watch", False)])
def test_what_nobody_could_decide_is_a_null_though_others_carry_the_reward(role: Role, is_null: bool) -> None:
    rule = BOOKING_TASK.verifiers[0].model_copy(update={"role": role})
    task = BOOKING_TASK.model_copy(update={"verifiers": [rule]})
    for reason, is_counted in (("unverifiable: x", is_null), ("a crash", False)):
        undecided = Score(
            name=rule.name, grader="math/3#x", value=None, status="unscored", fault="infra", reason=reason
        )
        assert ("null" in measured(task, scores=(undecided,))) == is_counted


def test_rewards_and_signals_are_shares_of_the_range() -> None:
    task = BOOKING_TASK.model_copy(update={"reward": BOOKING_TASK.reward.model_copy(update={"low": -1.0})})
    said = (Score(name="accepted", grader="signal/2#x", value=0.0),)
    found = measured(task, verdict=RewardVerdict(0.5, "scored", "none"), scores=said)
    assert (found["reward"], found["signal:accepted"]) == (0.75, 0.5)


def test_a_refused_tool_call_is_an_invalid_one() -> None:
    refused = Score(name="call", grader="tool_call/1#x", value=0.0, fault="model")
    assert measured(scores=(refused,))["invalid_tool_call"] == 1.0
    assert "invalid_tool_call" not in measured(scores=(refused,), revision=2)


def test_a_later_revision_counts_only_what_users_did() -> None:
    scores = (Score(name="accepted", grader="s", value=1.0), Score(name="shape", grader="g", value=1.0))
    assert measured(scores=scores, revision=2) == {"signal:accepted": 1.0}


def test_what_has_no_score_is_not_counted_as_one() -> None:
    missing = Score(name="shape", grader="g", value=None, status="unscored", fault="infra")
    assert not any(name.startswith("score:") for name in measured(scores=(missing,)))


def test_the_gap_is_between_judges_that_train_and_judges_that_watch() -> None:
    judges = [
        {"name": name, "role": role, "weight": 0.5, "url": "http://127.0.0.1:9/v1", "model": "m", "criteria": "Good?"}
        for name, role in (("first", "component"), ("second", "watch"))
    ]
    task = Task.model_validate(
        {"name": "t", "signals": {"ok": {"type": "bool", "labels": {"true": 1}}}, "judges": judges}
    )
    both = tuple(Score(name=name, grader="g", value=value) for name, value in (("first", 0.9), ("second", 0.4)))
    assert measured(task, scores=both)["judge_gap"] == pytest.approx(0.5)
    assert "judge_gap" not in measured(task, scores=both[:1])


def test_an_answer_cut_off_at_the_limit_is_counted() -> None:
    assert measured(finish_reason="length")["cut_off"] == 1.0


def test_every_metric_has_a_rule_and_fits_its_column() -> None:
    name = "x" * MAX_NAME
    found = measured(scores=(Score(name=name, grader="g", value=1.0),), text="Sorry \u2764\n- a\n- b\n# c")
    assert all(rule_of(metric) is not None and len(metric) <= MAX_NAME for metric in {*found, *RULES})
    assert rule_of("unheard_of") is None


def test_hostile_texts_are_read_in_time_linear_in_their_length() -> None:
    for text in ("(" * 200_000, "__eq__ " * 30_000 + "def ", "#" * 200_000, "- " * 100_000, "<tool_call>" * 20_000):
        assert marks_of(text)["length"] > 0
    assert marks_of("<tool_call>" + "[" * 5_000 + "</tool_call>")["invalid_tool_call"] == 1.0
