"""A random share of answers tells the app to ask its user, and the log records the probability."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from contracts.draws import is_asked
from contracts.errors import InvalidRequest
from runtime.database import Database
from tests.unit.services.inference.conftest import Inference, a_service
from tests.unit.services.inference.test_bad_input import parse
from tests.unit.services.inference.world import FakeEngine, Stage, make_base
from tests.unit.services.serving import make_home

ASKING = "\n[asking]\nprobability = 0.5\n"


@pytest.fixture
def asking(tmp_path: Path, database: Database, engine: FakeEngine, stage: Stage) -> Iterator[Inference]:
    make_base(tmp_path / "base")
    settings = make_home(tmp_path, stage.url)
    (tmp_path / "task.toml").write_text((tmp_path / "task.toml").read_text() + ASKING)
    with a_service(settings, database, stage, engine) as world:
        yield world


def test_half_of_the_answers_ask_and_the_probability_is_logged(asking: Inference) -> None:
    answers = [asking.ask() for _ in range(30)]
    flags = {answer.id: answer.model_extra["ask_feedback"] for answer in answers}
    assert flags == {answer.id: is_asked(answer.id, 0.5) for answer in answers}
    assert {record.ask_probability for record in asking.logged()} == {0.5}


def test_every_chunk_of_a_stream_says_the_same(asking: Inference) -> None:
    chunks = list(asking.ask(stream=True, stream_options={"include_usage": True}))
    assert {chunk.model_extra["ask_feedback"] for chunk in chunks} == {is_asked(chunks[0].id, 0.5)}


def test_a_shadow_waits_behind_users_and_leaves_nothing_in_the_log(asking: Inference) -> None:
    headers = {"x-millrace-purpose": "shadow"}
    for store, num in ((True, 1), (False, 1)):
        asking.ask(asking.operator, model="demo@v3", seed=7, store=store, extra_headers=headers)
        assert asking.engine.requests[-1]["priority"] == 1
        assert [record.purpose for record in asking.logged()] == ["shadow"] * num
    with pytest.raises(openai.PermissionDeniedError):
        asking.ask(extra_headers=headers)


@pytest.mark.parametrize(
    ("changes", "is_operator"),
    [({"store": False}, False), ({"extra_headers": {"x-millrace-purpose": "sentinel"}}, True)],
)
def test_nobody_is_asked_about_what_no_user_saw_or_nobody_may_keep(
    asking: Inference, changes: dict[str, Any], is_operator: bool
) -> None:
    client = asking.operator if is_operator else asking.client
    answers = [asking.ask(client, **changes) for _ in range(10)]
    assert [(answer.model_extra or {})["ask_feedback"] for answer in answers] == [False] * 10
    assert {record.ask_probability for record in asking.logged()} <= {0.0}


def test_a_task_that_says_nothing_of_asking_adds_nothing(inference: Inference) -> None:
    assert "ask_feedback" not in inference.ask().model_extra
    assert [record.ask_probability for record in inference.logged()] == [0.0]


def test_the_join_key_stands_in_the_head_of_the_record(inference: Inference) -> None:
    inference.ask(metadata={"join_key": "order 1"})
    assert [record.join_key for record in inference.logged()] == ["order 1"]


@pytest.mark.parametrize(
    ("join_key", "says"), [("", "1 to 256 characters"), ("x" * 257, "1 to 256 characters"), ("a\0b", "NUL")]
)
def test_a_join_key_that_cannot_be_kept_is_refused_by_name(join_key: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as error:
        parse(metadata={"join_key": join_key})
    assert str(error.value.param).startswith("metadata")
