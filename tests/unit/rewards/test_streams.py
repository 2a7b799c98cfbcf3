"""What an answer teaches besides its reward, as the reward worker sends it."""

from typing import Any

import pytest
from msgspec.structs import replace

from contracts.records import Experience, GenerationBody, Provided, Signal, Streams, Submitter, pack_body
from contracts.tasks import Task
from rewards.rubric import Components, RewardVerdict
from rewards.signals.weighing import Weight
from rewards.steps import weighted
from runtime.database import Database
from tests.fakes import BOOKING_TASK, a_generation, a_signal
from tests.unit.rewards.test_worker import score

RIGHT, WRONG = '{"party":2}', '{"party":3}'


def a_task(**learning: float) -> Task:
    return Task.model_validate(BOOKING_TASK.model_dump(exclude_unset=True) | {"learning": learning})


EDITS = a_task(ce=1.0, pair=0.5)
TERMS = Provided(origin="openai", may_train=True)


def sent(database: Database, task: Task, *said: dict[str, Any], text: str = WRONG, **changes: Any) -> Streams | None:
    turn = a_generation(text, **changes)
    signals = [replace(a_signal(turn, at=turn.finished_at + place), **each) for place, each in enumerate(said, 1)]
    return one(database, task, turn, *signals).streams


def one(database: Database, task: Task, turn: Any, *signals: Signal) -> Experience:
    (experience,), _ = score(database, turn, *signals, task=task)
    return experience


def edited(text: str) -> dict[str, Any]:
    return {"name": "edited", "value": text, "correction": text, "id": f"edit {text}"}


def test_by_default_a_reward_alone_teaches(database: Database) -> None:
    assert sent(database, BOOKING_TASK, edited(RIGHT)) is None


def test_an_experience_carries_the_newest_edit_and_the_weights_of_its_task(database: Database) -> None:
    assert sent(database, EDITS, edited("{}"), edited(RIGHT)) == Streams(ce=1.0, pair=0.5, edit=RIGHT)
    assert sent(database, a_task(rl=0.0, ce=1.0), edited(RIGHT)) == Streams(rl=0.0, ce=1.0, edit=RIGHT)


def test_any_signal_may_carry_a_correction(database: Database) -> None:
    assert sent(database, EDITS, {"correction": RIGHT}) == Streams(ce=1.0, pair=0.5, edit=RIGHT)


@pytest.mark.parametrize("kind", ["judge", "code"])
def test_only_people_edit(database: Database, kind: Any) -> None:
    said = edited("{}") | {"submitter": Submitter(id="it", kind=kind)}
    assert sent(database, EDITS, edited(RIGHT), said) == Streams(ce=1.0, pair=0.5, edit=RIGHT)


@pytest.mark.parametrize(
    ("edit", "body", "provided", "reason"),
    [
        (" \n", {}, None, "empty_edit"),
        (WRONG, {}, None, "edit_equals_answer"),
        ("AKIA" + "IOSFODNN7EXAMPLE", {}, None, "edit_with_secret"),
        (RIGHT, {"tool_calls": [{"function": {"name": "book", "arguments": "{}"}}]}, None, "edit_of_tool_call"),
        (RIGHT, {"reasoning": "hm"}, None, "edit_of_reasoning"),
        (RIGHT, {}, Provided(origin="openai"), "may_not_train"),
        (RIGHT, {}, Provided(origin="openai", may_train=True, is_partial=True), "partial"),
        (RIGHT, {"tool_calls": [{"function": {"name": "book", "arguments": "{}"}}]}, TERMS, "tool_call"),
        (RIGHT, {"text": "AKIA" + "IOSFODNN7EXAMPLE"}, TERMS, "answer_with_secret"),
        ("", {}, TERMS, "empty_edit"),
    ],
)
def test_text_that_cannot_stand_in_the_answers_place_is_refused_by_name(
    database: Database, edit: str, body: dict[str, Any], provided: Provided | None, reason: str
) -> None:
    turn = a_generation(WRONG)
    told: GenerationBody = replace(turn.open(), **body)
    turn = replace(turn, body=pack_body(told), provided=provided)
    streams = one(database, EDITS, turn, replace(a_signal(turn), **edited(edit))).streams
    assert streams == Streams(ce=1.0, pair=0.5, refused=reason)


@pytest.mark.parametrize("provided", [None, TERMS])
def test_an_answer_with_a_secret_is_no_target_however_users_like_it(
    database: Database, provided: Provided | None
) -> None:
    text = '{"party":2,"name":"AKIA' + 'IOSFODNN7EXAMPLE"}'
    said = [sent(database, EDITS, {"value": value}, text=text, provided=provided) for value in (True, False)]
    assert said == [Streams(ce=1.0, pair=0.5, refused="answer_with_secret"), Streams(ce=1.0, pair=0.5, is_good=False)]


def test_what_users_say_of_an_answer_is_a_thumb_unless_somebody_edited_it(database: Database) -> None:
    task = a_task(thumb=1.0, ce=1.0)
    found = [sent(database, task, {"value": value}, text=RIGHT) for value in (True, False)]
    assert [item.is_good for item in found if item] == [True, False]
    assert sent(database, task, {"value": True}, edited(RIGHT)) == Streams(thumb=1.0, ce=1.0, edit=RIGHT)
    assert sent(database, task) == Streams(thumb=1.0, ce=1.0)
    # A gate says that the model failed, whatever a user liked.
    refused = sent(database, task, {"value": True}, text="nonsense")
    assert refused is not None
    assert refused.is_good is False


def test_a_providers_answer_teaches_where_its_terms_allow_it(database: Database) -> None:
    def learned(text: str = RIGHT, may_train: bool = True, **changes: Any) -> Streams | None:
        provided = replace(TERMS, may_train=may_train)
        return sent(database, EDITS, {"value": True}, text=text, provided=provided, **changes)

    assert learned() == Streams(ce=1.0, pair=0.5, is_good=True)
    assert learned(may_train=False) == Streams(ce=1.0, pair=0.5, refused="may_not_train")
    assert learned(finish_reason="length") == Streams(ce=1.0, pair=0.5, refused="cut")
    turn = a_generation(WRONG, provided=TERMS, finish_reason="length")
    turn = replace(turn, body=pack_body(replace(turn.open(), reasoning="hm")))
    streams = one(database, EDITS, turn, replace(a_signal(turn), **edited(RIGHT))).streams
    assert streams == Streams(ce=1.0, pair=0.5, edit=RIGHT)


@pytest.mark.parametrize(("reason", "is_heard"), [("", True), ("not_asked", True), ("repeated_edit", False)])
def test_the_text_of_a_refused_vote_is_not_learned_where_an_earlier_one_stays(reason: str, is_heard: bool) -> None:
    verdict = RewardVerdict(1.0, "scored", "none")
    assert weighted(EDITS, Components((), ()), verdict, Weight(1.0, reason, 1.0)).is_heard is is_heard


def test_where_no_vote_counts_no_text_does(database: Database) -> None:
    asking = {"probability": 0.5, "signals": ["edited"]}
    task = Task.model_validate(EDITS.model_dump(exclude_unset=True) | {"asking": asking, "silence": "renormalise"})
    found = sent(database, task, edited(RIGHT), ask_probability=1e-9)
    assert found == Streams(ce=1.0, pair=0.5)
