from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.ids import new_completion_id
from contracts.records import Episode, Generation, Signal, pack_body
from contracts.tasks import Task
from contracts.tasks.judges import JudgeRule
from rewards.episode import UnpackedEpisode, answer_of
from rewards.judges.report import identity_of
from rewards.panel import TaskGraders
from rewards.rubric import Components, RewardVerdict, components_of, verdict_of
from rewards.signals.weighing import Weighing
from rewards.steps import ScoringSteps
from rewards.verifiers.check import ParsedAnswer
from runtime.database import Database
from tests.fakes import BOOKING_TASK, a_generation, a_signal
from tests.unit.rewards.judges.figures import FIGURES
from tests.worlds.servers.judge import AskedJudge, JudgeServer, judge_server, verdict

SIGNALS = {
    "accepted": {"type": "bool", "labels": {"true": 1.0, "false": 0.0}},
    "next": {"means": "follow_up"},
    "again": {"means": "regenerate", "labels": {"true": 0.0}},
}


def decide(asked: AskedJudge) -> str:
    """Better is what is longer; content is who says thanks."""
    sections = asked.sections
    if "FIRST ANSWER" in sections:
        return verdict("first" if len(sections["FIRST ANSWER"]) > len(sections["SECOND ANSWER"]) else "second")
    return verdict("yes" if "thanks" in sections.get("NEXT MESSAGE", sections["ANSWER"]) else "no")


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    with judge_server(decide) as running:
        yield running


MakeGraders = Callable[..., TaskGraders]


@pytest.fixture
def graders() -> Iterator[MakeGraders]:
    """Makes graders of tasks, and closes them."""
    made: list[TaskGraders] = []

    def make(*tasks: Task, **options: Any) -> TaskGraders:
        made.append(TaskGraders({task.name: task for task in tasks}, **options))
        return made[-1]

    yield make
    for item in made:
        item.close()


def a_task(folder: Path, url: str, **judge: Any) -> Task:
    """A task with one judge, admitted if its word counts."""
    rule = {"name": "judge", "url": url, "model": "m", "criteria": "Is the user content?", "retries": 0, **judge}
    if rule.get("role") != "watch":
        head = {"task": "t", "judge": "judge", "at": "", "labels_file": "", "labels_sha256": ""}
        identity = identity_of(JudgeRule.model_validate(rule))
        rule["admission"] = str(folder / "judge.json")
        (folder / "judge.json").write_text(json.dumps({**head, "identity": identity, "figures": FIGURES}))
    return Task.model_validate({"name": "booking", "signals": SIGNALS, "judges": [rule]})


def opened(turn: Generation, *signals: Signal) -> UnpackedEpisode:
    episode = Episode(key=turn.key, revision=1, reason="window", turns=(turn,), signals=signals, closed_at=111.0)
    return UnpackedEpisode(episode, turn, turn.open())


def score(made: TaskGraders, task: Task, *items: UnpackedEpisode) -> list[tuple[Components, RewardVerdict]]:
    """The components of each item, and the verdict on them."""
    components = [components_of(task, item) for item in made.grade(items)]
    return [(found, verdict_of(task, found)) for found in components]


def test_choices_of_one_completion_are_compared_with_each_other_alone(
    tmp_path: Path, server: JudgeServer, graders: MakeGraders
) -> None:
    completion_id = new_completion_id()
    texts = ["two", "two of them", "two at seven"]
    turns = [a_generation(text, completion_id=completion_id, choice=choice) for choice, text in enumerate(texts)]
    other = a_generation("alone")
    wanted: list[Collection[str]] = []

    def siblings(completion_ids: Collection[str]) -> Mapping[str, Mapping[int, str]]:
        wanted.append(set(completion_ids))
        return {completion_id: dict(reversed(list(enumerate(texts)))), other.completion_id: {0: "alone"}}

    made = graders(a_task(tmp_path, server.url, role="watch", protocol="pairwise"), siblings=siblings)
    *compared, alone = made.grade([opened(turn) for turn in (*turns, other)])
    assert [item.grader_scores[0].value for item in compared] == [0.0, 0.5, 1.0]
    assert (alone.grader_scores[0].value, alone.grader_scores[0].status) == (None, "unlabelled")
    assert wanted == [{completion_id, other.completion_id}], "all at once"
    shown = {frozenset((asked.sections["FIRST ANSWER"], asked.sections["SECOND ANSWER"])) for asked in server.asked}
    assert shown == {frozenset(pair) for pair in ((texts[0], texts[1]), (texts[0], texts[2]), (texts[1], texts[2]))}


def test_siblings_are_looked_up_only_where_answers_are_compared(
    tmp_path: Path, server: JudgeServer, graders: MakeGraders
) -> None:
    def siblings(completion_ids: Collection[str]) -> Mapping[str, Mapping[int, str]]:
        pytest.fail(f"nobody compares {completion_ids}")

    made = graders(a_task(tmp_path, server.url, role="watch"), siblings=siblings)
    assert [item.grader_scores[0].value for item in made.grade([opened(a_generation("thanks"))])] == [1.0]


def test_what_the_user_wrote_next_reaches_the_judge_and_speaks_for_the_user(
    tmp_path: Path, server: JudgeServer, graders: MakeGraders
) -> None:
    task = a_task(tmp_path, server.url, role="signal", about="follow_up")
    made = graders(task)
    turns = [a_generation(f"answer {number}") for number in range(4)]
    items = [
        opened(turns[0], a_signal(turns[0], "next", "thanks a lot")),
        opened(turns[1], a_signal(turns[1], "next", "no, at eight")),
        opened(turns[2], a_signal(turns[2], "next", "thanks"), a_signal(turns[2], value=False)),
        opened(turns[3]),
    ]
    verdicts = [verdict for _, verdict in score(made, task, *items)]
    assert [verdict.reward for verdict in verdicts] == [1.0, 0.0, 0.0, None], (
        "the judge does not overrule a user who spoke"
    )
    assert verdicts[3].reason == "silence"
    messages = sorted(asked.sections["NEXT MESSAGE"] for asked in server.asked)
    assert messages == ["no, at eight", "thanks", "thanks a lot"]
    assert all(asked.answer.startswith("answer ") for asked in server.asked)


def test_the_newest_message_counts_and_a_lost_signal_is_ignored(tmp_path: Path) -> None:
    task = a_task(tmp_path, "http://127.0.0.1:9/v1", role="watch")
    turn = a_generation()
    said = [a_signal(turn, "next", text, at=at) for text, at in (("second", 105.0), ("first", 103.0))]
    item = opened(turn, *said, a_signal(turn, "forgotten", "later", at=109.0))
    assert answer_of(item, task).metadata["follow_up"] == "second"
    assert "follow_up" not in answer_of(item, BOOKING_TASK).metadata


def test_graders_know_what_was_imported() -> None:
    turn = a_generation()
    before = msgspec.structs.replace(turn, purpose="imported")
    assert [answer_of(opened(each), BOOKING_TASK).is_imported for each in (turn, before)] == [False, True]


def test_verifiers_see_the_calls_of_a_request_that_offered_tools() -> None:
    plain = a_generation()
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    tools = [{"type": "function", "function": {"name": "f"}}]
    bodies = (
        plain.open(),
        msgspec.structs.replace(plain.open(), tools=tools),
        msgspec.structs.replace(plain.open(), tools=tools, tool_calls=[call]),
    )
    turns = [msgspec.structs.replace(plain, body=pack_body(body)) for body in bodies]
    parsed = [answer_of(opened(turn), BOOKING_TASK).parsed for turn in turns]
    assert parsed == [None, ParsedAnswer(plain.open().text, []), ParsedAnswer(plain.open().text, [call])]


@pytest.mark.parametrize("silence", ["unlabelled", 0.0])
def test_a_judge_of_what_came_next_that_is_away_is_no_silence(
    tmp_path: Path, server: JudgeServer, graders: MakeGraders, silence: Any
) -> None:
    task = a_task(tmp_path, server.url, role="signal", about="follow_up").model_copy(update={"silence": silence})
    server.fails = [(503, {}), (503, {})]
    turns = [a_generation("one"), a_generation("two")]
    spoken, silent = (opened(turn, a_signal(turn, "next", "thanks")) for turn in turns)
    spoken = opened(turns[0], *spoken.episode.signals, a_signal(turns[0]))
    (_, heard), (_, unheard) = score(graders(task), task, spoken, silent)
    assert heard[:3] == (1.0, "scored", "none"), "the user spoke: nobody needs the judge"
    assert unheard == (None, "unscored", "infra", "infra_fault:judge")


def test_a_slip_of_the_hand_does_not_silence_the_judge(
    tmp_path: Path, server: JudgeServer, graders: MakeGraders
) -> None:
    task = a_task(tmp_path, server.url, role="signal", about="follow_up")
    made = graders(task)
    turn = a_generation()
    slip = a_signal(turn, "again", value=True, at=turn.finished_at + 0.5)
    ((components, verdict_on),) = score(made, task, opened(turn, slip, a_signal(turn, "next", "thanks")))
    assert [(item.name, item.status) for item in components.signals] == [("again", "unlabelled")]
    assert verdict_on[:2] == (1.0, "scored")


def test_tasks_are_graded_by_their_own_graders_in_the_order_of_the_items(
    tmp_path: Path, server: JudgeServer, graders: MakeGraders
) -> None:
    polite = a_task(tmp_path, server.url, role="watch").model_copy(update={"name": "polite"})
    made = graders(BOOKING_TASK, polite)
    texts = [("booking", '{"party":2}'), ("polite", "thanks"), ("gone", "?"), ("booking", "no"), ("polite", "no")]
    items = made.grade([opened(a_generation(text, task=task)) for task, text in texts])
    assert [item.body.text for item in items] == [text for _, text in texts]
    values = [[(check.name, check.value) for check in item.grader_scores] for item in items]
    assert values == [
        [("shape", 1.0), ("exact", None)], [("judge", 1.0)], [], [("shape", 0.0), ("exact", None)], [("judge", 0.0)],
    ]  # fmt: skip
    assert made.is_slow


def test_a_scored_episode_holds_all_scores_and_the_cluster_of_the_prompt(
    graders: MakeGraders, database: Database
) -> None:
    turn = a_generation()
    made, tasks = graders(BOOKING_TASK), {"booking": BOOKING_TASK}
    steps = ScoringSteps(tasks, Weighing(tasks, lambda: 200.0))
    with database.transaction() as connection:
        (found,) = steps.run(connection, made.grade([opened(turn, a_signal(turn))]), 200.0)
    assert [item.name for item in found.components.scores] == ["shape", "exact", "accepted"]
    assert (found.verdict.reward, found.learned.weight) == (1.0, 1.0)
    assert found.cluster.startswith("other-")
    assert not made.is_slow


def test_the_tasks_of_a_batch_are_waited_for_side_by_side(graders: MakeGraders, tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=10.0)

    def meet(_asked: AskedJudge) -> str:
        both.wait()
        return verdict("yes")

    with judge_server(meet) as running:
        task = a_task(tmp_path, running.url, role="watch")
        made = graders(task, task.model_copy(update={"name": "other"}))
        items = [
            opened(a_generation("one two", task=name, completion_id=new_completion_id()))
            for name in ("booking", "other")
        ]
        graded = made.grade(items)
    assert [[check.value for check in item.grader_scores] for item in graded] == [[1.0], [1.0]]
