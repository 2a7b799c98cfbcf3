"""A home with a policy of its own and a provider in front: a draw decides who answers, under one id."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from contracts.assignments import CANARY, LEARNING, LIVE, PROVIDER
from contracts.records import Generation
from runtime.database import Database
from runtime.settings import write_settings
from services.provider import ProviderSettings
from tests.unit.services.inference import test_versions_asked
from tests.unit.services.inference.conftest import Inference, a_service
from tests.unit.services.inference.provider.conftest import KEY
from tests.unit.services.inference.provider.test_other_dialects import RESPONSE
from tests.unit.services.inference.world import FakeEngine, Stage, make_base
from tests.unit.services.serving import make_home, serve, wait_until
from tests.worlds.servers.provider import MODEL, FakeProvider, chat_answer

IMAGE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]


def assign(database: Database, version: int | None, arm: str, share: float = 1.0) -> None:
    """Move an arm, and let the endpoint read it: what it knows of the arms is a fifth of a second old at most."""
    test_versions_asked.assign(database, version, arm, share)
    time.sleep(0.25)


class Both(Inference):
    """The service, and the provider that stands in front of its policy."""

    provider: FakeProvider

    def wait_until_held(self) -> None:
        """Until the endpoint knows that an engine holds the canary."""
        wait_until(lambda: self.holds(5))

    def last(self) -> Generation:
        return self.logged()[-1]


@pytest.fixture
def both(tmp_path: Path, database: Database, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Both]:
    """Version 3 is live, 5 the canary of 50%, 6 in the learning arm; the provider has everybody else."""
    monkeypatch.setenv("MILLRACE_PROVIDER_KEY", KEY)
    engine, fake = FakeEngine("own"), FakeProvider()
    engine.slots, engine.resident = {LIVE: 3, CANARY: 5, LEARNING: 6}, {3, 5, 6}
    make_base(tmp_path / "base")
    settings = make_home(tmp_path, stage.url)
    with serve(fake.app) as there:
        found = ProviderSettings(url=f"{there}/v1", model=MODEL, input_price=2.0, output_price=8.0)
        write_settings(settings, {"provider": found})
        with a_service(settings, database, stage, engine) as world:
            world.__class__, vars(world)["provider"] = Both, fake
            assert isinstance(world, Both)
            assign(database, 3, LIVE)
            assign(database, 6, LEARNING, 0.5)
            assign(database, None, PROVIDER, 1.0)
            wait_until(lambda: world.holds(6))
            yield world


def said(answer: Any) -> str:
    return str(answer.choices[0].message.content)


def test_the_provider_answers_everybody_and_the_learning_arm_nobody(both: Both) -> None:
    for number in range(12):
        answer = both.ask(user=f"person {number}")
        assert (said(answer), answer.id) == ("Sure.", both.last().completion_id)
    assert {(one.arm, one.arm_probability, one.draw) for one in both.logged()} == {(PROVIDER, 1.0, None)}
    assert said(both.ask(model=MODEL)) == "Sure."
    assert both.provider.asked[-1][2]["model"] == MODEL


def test_versions_are_asked_by_name_and_by_operators(both: Both) -> None:
    assert said(both.ask(model="demo@v3")) == "own"
    assert said(both.ask(both.operator, extra_headers={"x-millrace-purpose": "sentinel"})) == "own"
    with pytest.raises(openai.NotFoundError, match="gpt"):
        both.ask(model="gpt")
    assert not both.provider.asked


def test_a_canary_and_the_provider_share_the_users(both: Both, database: Database) -> None:
    assign(database, 5, CANARY, 0.5)
    both.wait_until_held()
    begun = len(both.logged())
    for number in range(24):
        for _ in range(2):
            both.ask(user=f"person {number}")
    records = both.logged()[begun:]
    by_unit = {one.draw.unit: one.arm for one in records if one.draw is not None}
    assert all(one.draw is not None and by_unit[one.draw.unit] == one.arm for one in records)
    assert len(by_unit) == 24
    shares = {one.arm: one.arm_probability for one in records}
    assert shares == {CANARY: 0.5, PROVIDER: 0.5}
    assert set(Counter(by_unit.values())) == {CANARY, PROVIDER}


def test_what_the_own_model_cannot_take_goes_to_the_provider_without_a_draw(both: Both, database: Database) -> None:
    assign(database, 5, CANARY, 1.0)
    both.wait_until_held()
    assert said(both.ask(user="a", messages=[{"role": "user", "content": IMAGE}])) == "Sure."
    assert said(both.ask(user="a", messages=[{"role": "user", "content": "long " * 200}])) == "Sure."
    assert {(one.arm, one.draw) for one in both.logged()[-2:]} == {(PROVIDER, None)}
    assign(database, None, PROVIDER, 0.0)
    with pytest.raises(openai.BadRequestError):
        both.ask(user="a", messages=[{"role": "user", "content": IMAGE}])


def test_a_refusal_passes_through_and_counts_against_the_drawn_arm(both: Both, database: Database) -> None:
    both.provider.status, both.provider.headers = 429, {"retry-after": "7"}
    both.provider.answer = {"error": {"message": "slow down", "type": "rate_limit_error", "code": "x"}}
    with pytest.raises(openai.RateLimitError) as refused:
        both.ask(user="a", metadata={"join_key": "order 7"})
    assert refused.value.response.headers["retry-after"] == "7"
    assert not both.logged()
    assign(database, 5, CANARY, 1e-9)
    with pytest.raises(openai.RateLimitError):
        both.ask(user="a", metadata={"join_key": "order 7"})
    failed = both.last()
    assert (failed.arm, failed.finish_reason, failed.join_key, failed.open().messages) == (PROVIDER, "error", None, [])
    both.provider.status, both.provider.answer = 200, chat_answer("Now.")
    assert said(both.ask(user="a")) == "Now."


def test_anthropics_messages_pass_and_are_drawn_too(both: Both, database: Database) -> None:
    text = {"type": "text", "text": "Sure."}
    both.provider.answer = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "content": [text],
        "stop_reason": "end_turn",
    }
    body = {"model": MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}

    def say() -> str:
        given = {"x-api-key": both.key, "anthropic-version": "2023-06-01"}
        return str(
            httpx.post(f"{both.url}/v1/messages", json=body, headers=given, timeout=10.0).json()["content"][0]["text"]
        )

    assert (say(), both.provider.asked[-1][0], both.last().arm) == ("Sure.", "messages", PROVIDER)
    assign(database, 5, CANARY, 1.0)
    both.wait_until_held()
    assert (say(), both.last().arm) == ("own", CANARY)


def test_what_the_provider_does_not_speak_is_answered_by_own_versions_and_not_compared(
    both: Both, database: Database
) -> None:
    assign(database, 5, CANARY, 0.5)
    both.wait_until_held()
    for number in range(8):
        answer = both.client.completions.create(model="demo", prompt=["four", "five"], user=f"person {number}")
        assert [choice.text for choice in answer.choices] == ["own", "own"]
    assert {one.arm for one in both.logged()} == {CANARY, LIVE}
    assert {one.draw for one in both.logged()} == {None}
    assert not both.provider.asked


def test_what_an_engine_refuses_goes_to_the_provider(both: Both, database: Database) -> None:
    assign(database, 5, CANARY, 1.0)
    both.wait_until_held()
    both.engine.refusal = {"message": "too long", "type": "BadRequestError", "param": "prompt", "code": 400}
    assert said(both.ask(user="a")) == "Sure."
    assert [(one.arm, one.draw) for one in both.logged()] == [(PROVIDER, None)]
    stream = both.ask(user="a", stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == "Sure."
    with pytest.raises(openai.BadRequestError, match="too long"):
        both.ask(model="demo@v3")


def test_a_conversation_of_responses_goes_on_whoever_is_drawn(both: Both, database: Database) -> None:
    assign(database, 5, CANARY, 1.0)
    both.wait_until_held()
    both.provider.answer = RESPONSE
    ask = both.client.responses.create
    first = ask(model="demo", input="four", user="a")
    second = ask(model="demo", input="and five?", user="a", previous_response_id=first.id)
    assert (first.output_text, second.output_text) == ("own", "own")
    assert [(one.arm, one.draw is None) for one in both.logged()] == [(CANARY, False), (CANARY, True)]
    assign(database, None, CANARY, 0.0)
    third = ask(model="demo", input="and six?", user="a", previous_response_id=second.id)
    sent = both.provider.asked[-1][2]
    assert (third.output_text, "previous_response_id" in sent) == ("Sure.", False)
    assert [item["role"] for item in sent["input"]] == ["user", "assistant", "user", "assistant", "user"]
    assert all("id" not in item for item in sent["input"])
    assert [message["content"] for message in both.last().open().messages] == [
        "four", "own", "and five?", "own", "and six?",
    ]  # fmt: skip
    for share in (1.0, 0.0):  # also when its users went over
        assign(database, None, PROVIDER, share)
        ask(model="demo", input="and seven?", user="a", previous_response_id=third.id)
        assert both.provider.asked[-1][2]["previous_response_id"] == "resp_theirs"
        provided = both.last().provided
        assert provided is not None
        assert provided.is_partial
    with pytest.raises(openai.NotFoundError, match="there is no response"):
        ask(model="demo", input="and eight?", user="a", previous_response_id="resp_nobodys")


def test_an_answer_to_what_the_log_has_no_words_for_is_marked(both: Both) -> None:
    for content, is_partial in ((IMAGE, True), ("[1] four\n[2] five", False)):
        both.ask(user="a", messages=[{"role": "user", "content": content}])
        provided = both.last().provided
        assert provided is not None
        assert provided.is_partial == is_partial


def test_both_arms_are_logged_alike(both: Both, database: Database) -> None:
    form: Any = {"format": {"type": "json_object"}}
    both.provider.answer, bodies = RESPONSE, []
    assign(database, 5, CANARY, 1.0)
    both.wait_until_held()
    for arm in (CANARY, PROVIDER):
        both.client.responses.create(model="demo", input="four", user="a", text=form)
        assert both.last().arm == arm
        bodies.append(both.last().open())
        assign(database, 5, CANARY, 0.0)
    own, theirs = ((body.messages, body.tools, body.tool_choice, body.response_format) for body in bodies)
    assert own == theirs


def test_a_stream_of_the_provider_passes(both: Both) -> None:
    stream = both.ask(user="a", stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == "Sure."
    assert both.last().arm == PROVIDER
