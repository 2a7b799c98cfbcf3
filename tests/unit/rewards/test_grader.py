"""A grader that fails is our own fault, never the model's: in a grader, in a panel, and through the worker to a real database."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from prometheus_client import REGISTRY
from sqlalchemy import select

from contracts.event_log import LogRecord
from contracts.records import Episode, Experience, Outcome, Score, decode, encode
from contracts.tables import score
from contracts.tasks import Task
from contracts.topics import EPISODES, EXPERIENCES
from rewards.grader import CheckAll, Grader, each
from rewards.panel import Panel
from rewards.verifiers.check import Answer, Check, right
from rewards.worker import RewardsHandler
from runtime.database import Database
from tests.each_case import each_case
from tests.fakes import BOOKING_TASK, a_generation, a_signal

ANSWERS = [Answer(f"answer {number}") for number in range(5)]
DEADLINE = 1.0


class Panic(BaseException):
    """As libraries in Rust raise it."""


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("it cannot even say what it is")


def a_grader(check_all: Callable[[Sequence[Answer]], Any], **changes: Any) -> Grader:
    made = Grader("own", "gate", 0.0, "own/1#h", is_slow=False, check_all=cast("CheckAll", check_all))
    return made._replace(**changes)


def is_infra(found: Score) -> bool:
    return (found.value, found.status, found.fault) == (None, "unscored", "infra")


WRONG_VALUES: dict[str, tuple[Any, str]] = {
    "nan": (Check(math.nan), "nan"),
    "infinity": (Check(math.inf), "inf"),
    "minus infinity": (Check(-math.inf), "-inf"),
    "too much": (Check(1.0001), "not in [0, 1]"),
    "too little": (Check(-0.1), "not in [0, 1]"),
    "a bool": (Check(True), "not a number"),
    "a text as value": (Check(cast("float", "1.0")), "not a number"),
    "no value": (Check(None), "not a number"),
    "a complex number": (Check(cast("float", 1j)), "not a number"),
    "a bare number": (1.0, "float, not a Check"),
    "a bare bool": (True, "bool, not a Check"),
    "a bare text": ("right", "str, not a Check"),
    "nothing": (None, "NoneType, not a Check"),
    "a status nobody knows": (Check(1.0, status=cast("Any", "fine")), "'fine'"),
    "a fault nobody knows": (Check(1.0, fault=cast("Any", "yours")), "'yours'"),
    "a score that is our fault": (Check(1.0, fault="infra"), "fault of 'infra'"),
    "an impossible propensity": (Check(1.0, propensity=0.0), "propensity"),
    "a reason that is no text": (Check(1.0, reason=cast("str", b"x")), "bytes"),
}


@each_case(("found", "says"), WRONG_VALUES.values())
def test_what_is_no_score_is_our_fault_and_the_others_are_unharmed(found: Any, says: str) -> None:
    scores = a_grader(lambda answers: [right(), found, *[right() for _ in answers[2:]]]).score_all(ANSWERS)
    assert is_infra(scores[1])
    assert says in scores[1].reason
    assert [item.value for item in scores] == [1.0, None, 1.0, 1.0, 1.0]


WRONG_SHAPES: dict[str, Any] = {
    "a scalar": 1.0,
    # It has five fields, as there are five answers.
    "one check": right(),
    "a bool": True,
    "a text of as many letters": "right",
    "nothing": None,
    "a dictionary": {"rewards": [1.0] * 5},
    "an array": np.ones(5),
    "a set": frozenset(range(5)),
    "too few": [right()] * 4,
    "one alone": [right()],
    "too many": [right()] * 6,
    "none": [],
}


@each_case("found", [*WRONG_SHAPES.values(), "generator"])
def test_a_batch_in_the_wrong_shape_is_never_spread_over_the_answers(found: Any) -> None:
    num_asked = []

    def check_all(answers: Sequence[Answer]) -> Any:
        num_asked.append(len(answers))
        return (right() for _ in answers) if isinstance(found, str) and found == "generator" else found

    scores = a_grader(check_all).score_all(ANSWERS)
    assert all(map(is_infra, scores))
    assert all("for 5 answers" in item.reason for item in scores)
    assert num_asked == [5], "who cannot count the answers of a batch is not trusted with them one by one"


@each_case("error", [ValueError("bad"), SystemExit(0), Panic("rust"), RecursionError(), Mute()])
@each_case("is_batch", [True, False])
def test_an_answer_that_breaks_it_does_not_take_the_others_with_it(error: BaseException, is_batch: bool) -> None:
    asked = []

    def check(answer: Answer) -> Check:
        asked.append(answer.text)
        if answer.text == "answer 3":
            raise error
        return right()

    scores = a_grader((lambda answers: list(map(check, answers))) if is_batch else each(check)).score_all(ANSWERS)
    assert is_batch or len(asked) == len(ANSWERS), "no answer is paid for twice"
    assert [item.value for item in scores] == [1.0, 1.0, 1.0, None, 1.0]
    assert is_infra(scores[3])
    assert type(error).__name__ in scores[3].reason


def test_a_person_can_still_interrupt() -> None:
    def interrupted(_: object) -> Any:
        raise KeyboardInterrupt

    for check_all in (interrupted, each(interrupted)):
        with pytest.raises(KeyboardInterrupt):
            a_grader(check_all).score_all(ANSWERS)


def test_what_was_not_scored_has_no_value_whatever_it_says() -> None:
    (found,) = a_grader(lambda _: [Check(0.0, "unscored", "infra", "x" * 10_000)]).score_all(ANSWERS[:1])
    assert is_infra(found)
    assert len(found.reason) == 200


def test_scores_carry_name_label_weight_time_and_propensity() -> None:
    grader = a_grader(lambda answers: [Check(np.float64(0.5), propensity=0.25)] * len(answers), weight=0.3)
    (found, _) = grader.score_all(ANSWERS[:2])
    assert (found.name, found.grader, found.weight, found.value, found.propensity) == ("own", "own/1#h", 0.3, 0.5, 0.25)
    assert type(found.value) is float
    assert 0.0 <= found.seconds < 60.0
    skipped = grader.skipped("no need")
    assert (skipped.value, skipped.status, skipped.fault, skipped.reason) == (None, "unlabelled", "none", "no need")
    assert grader.score_all([]) == []


def test_in_a_panel_the_other_graders_and_the_other_answers_are_unharmed() -> None:
    def fails_on_two(answers: Sequence[Answer]) -> list[Check]:
        return [Check(math.nan if answer.text == "answer 2" else 1.0) for answer in answers]

    graders = [
        a_grader(fails_on_two),
        a_grader(lambda _: 1.0, name="scalar", is_slow=True),
        a_grader(lambda answers: [right() for _ in answers], name="sound", is_slow=True),
    ]
    with ThreadPoolExecutor(2) as pool:
        rows = Panel(BOOKING_TASK.model_copy(update={"verifiers": ()}), graders).grade(ANSWERS, pool)
    assert [row[0].fault for row in rows] == ["none", "none", "infra", "none", "none"]
    assert all(is_infra(row[1]) for row in rows)
    assert all(row[2].value == 1.0 for row in rows)


OWN = """
import math, sys, time

WHOLE = {
    "scalar": 1.0, "text": "11", "nothing": None, "bool": True, "short": [], "long": [1.0, 1.0, 1.0],
    "dictionary": {"rewards": [1.0]},
}
EACH = {"nan": math.nan, "inf": math.inf, "minus inf": -math.inf, "two": 2.0, "a text": "1.0", "a complex": 1j}

def grade(completions, **kwargs):
    texts = [completion[0]["content"] for completion in completions]
    for text in texts:
        if text == "hang":
            time.sleep(600)
        if text == "raise":
            raise ConnectionError("the server behind this grader does not answer")
        if text == "exit":
            sys.exit(0)
        if text == "generator":
            return (1.0 for _ in texts)
        if text in WHOLE:
            return WHOLE[text]
    return [EACH.get(text, 1.0) for text in texts]
"""
OF_ONE = ["nan", "inf", "minus inf", "two", "a text", "a complex", "raise", "exit", "hang"]
OF_ALL = ["scalar", "text", "nothing", "bool", "short", "long", "dictionary", "generator"]


def own_task(folder: Path, batch_size: int, role: str = "gate") -> Task:
    (folder / "own.py").write_text(OWN)
    config = {"path": f"{folder}/own.py:grade", "batch_size": batch_size}
    rule = {"name": "own", "kind": "function", "role": role, "deadline_seconds": DEADLINE, "config": config}
    content = BOOKING_TASK.model_dump(mode="json", exclude_unset=True)
    weight = {"weight": 0.5} if role == "component" else {}
    return Task.model_validate({**content, "verifiers": [{**rule, **weight}]})


def worked(database: Database, task: Task, texts: Sequence[str]) -> tuple[dict[str, Experience], dict[str, Outcome]]:
    """What the worker sends for one batch of answers that users accept, by their texts."""
    handler = RewardsHandler({"booking": task}, lambda: 200.0)
    records, names = [], {}
    for place, text in enumerate(texts):
        turn = a_generation(text)
        names[turn.key] = text
        said = (a_signal(turn),)
        episode = Episode(key=turn.key, revision=1, reason="decisive", turns=(turn,), signals=said, closed_at=111.0)
        records.append(LogRecord(EPISODES, 0, place, turn.key, encode(episode), 0.0))
    items = handler.prepare([handler.read(record) for record in records])
    with database.transaction() as connection:
        sent = handler.handle(connection, items)
    handler.close()
    experiences = [decode(Experience, message.value) for message in sent if message.topic == EXPERIENCES]
    outcomes = [decode(Outcome, message.value) for message in sent if message.topic != EXPERIENCES]
    return {names[item.key]: item for item in experiences}, {names[item.key]: item for item in outcomes}


def counted(status: str, fault: str) -> float:
    return REGISTRY.get_sample_value("millrace_scores_total", {"status": status, "fault": fault}) or 0.0


@pytest.mark.slow
@pytest.mark.parametrize("role", ["gate", "component"])
@pytest.mark.parametrize(
    ("batch_size", "failing"), [(32, OF_ONE), (1, OF_ALL)], ids=["one of a batch fails", "a whole batch fails"]
)
def test_what_a_users_own_function_may_do_wrong_never_becomes_a_reward(
    database: Database, tmp_path: Path, role: str, batch_size: int, failing: list[str]
) -> None:
    infra, scored = counted("unscored", "infra"), counted("scored", "none")
    sound = [f'{{"party":{number}}}' for number in range(3)]
    experiences, outcomes = worked(database, own_task(tmp_path, batch_size, role), [sound[0], *failing, *sound[1:]])
    for text in failing:
        found = experiences[text]
        assert (found.reward, found.status, found.fault) == (None, "unscored", "infra"), text
        assert (found.scores[0].value, found.scores[0].fault) == (None, "infra"), text
        assert (outcomes[text].state, outcomes[text].reason) == ("unscored", "infra_fault:own")
    assert [experiences[text].reward for text in sound] == [1.0, 1.0, 1.0]
    assert outcomes.keys() == set(failing)
    assert counted("unscored", "infra") - infra == len(failing)
    assert counted("scored", "none") - scored == len(sound)
    with database.snapshot() as connection:
        rows = connection.execute(select(score.c.reward, score.c.status, score.c.fault)).all()
    assert sorted(map(tuple, rows), key=str) == sorted(
        [(None, "unscored", "infra")] * len(failing) + [(1.0, "scored", "none")] * len(sound), key=str
    )


def test_a_batch_that_is_answered_with_one_number_rewards_nobody(database: Database, tmp_path: Path) -> None:
    experiences, outcomes = worked(
        database, own_task(tmp_path, batch_size=32), ['{"party":1}', "scalar", '{"party":2}']
    )
    assert {item.reward for item in experiences.values()} == {None}
    assert {item.reason for item in outcomes.values()} == {"infra_fault:own"}


def test_a_reason_names_what_went_wrong(database: Database, tmp_path: Path) -> None:
    experiences, _ = worked(database, own_task(tmp_path, batch_size=1), ["hang", "raise", "scalar", "nan"])
    reasons = {text: item.scores[0].reason for text, item in experiences.items()}
    assert "took longer than 1 s" in reasons["hang"]
    assert "does not answer" in reasons["raise"]
    assert "float" in reasons["scalar"]
    assert "nan" in reasons["nan"]
