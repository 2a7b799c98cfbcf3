"""A minimum or exact version: it holds for every token, or the request is refused and may be retried."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.assignments import CANDIDATE, LIVE, move, read
from contracts.errors import InvalidRequest, VersionNotServed
from contracts.sampling import Span
from runtime.database import Database
from services.inference.idempotency import REPLAYED
from services.inference.terms import VersionRequirement, version_requirement
from tests.each_case import each_case
from tests.unit.services.inference.conftest import Inference, text_of
from tests.unit.services.inference.world import FakeEngine, event_of
from tests.unit.services.serving import wait_until

pytestmark = pytest.mark.usefixtures("alone")
TEXT = "Tisch für 4: {ok}"
WAYS = (False, True)
"""Whole and streamed."""


class SwappingEngine(FakeEngine):
    """Changes its version before the tokens that `swaps` names; `silent`: it does not say which it serves."""

    def __init__(self, says: str) -> None:
        super().__init__(says)
        self.swaps: dict[int, int] = {}
        self.silent = False

    async def _stream(self, _asked: dict[str, Any]) -> AsyncIterator[str]:
        said: int | None = None
        try:
            for place, token_id in enumerate(self.answer):
                self.version = self.swaps.get(place, self.version)
                spans = [] if self.silent or said == self.version else [(place, self.version)]
                said = self.version
                reason = "stop" if token_id == self.end else None
                yield event_of(token_id, spans, reason)
        finally:
            self.num_closed += 1


@pytest.fixture
def engine() -> SwappingEngine:
    return SwappingEngine(TEXT)


def assign(database: Database, version: int | None, arm: str = LIVE, share: float = 1.0) -> None:
    with database.transaction() as connection:
        held = read(connection, "demo").get(arm)
        epoch = held.epoch if held else 0
        move(
            connection, policy="demo", arm=arm, version=version, expected_epoch=epoch, writer="test", reason="test", share=share
        )  # fmt: skip


def refused(inference: Inference, **changes: Any) -> openai.ConflictError:
    with pytest.raises(openai.ConflictError) as caught:
        inference.ask(**changes)
    error = caught.value
    assert (error.status_code, error.code) == (409, "version_not_served")
    assert error.response.headers["retry-after"] == "1"
    assert "try again" in error.message
    return error


@each_case(
    ("labels", "pinned", "param"),
    [
        ({"min_version": "v7"}, None, "metadata.min_version"),
        ({"min_version": ""}, None, "metadata.min_version"),
        ({"min_version": "-1"}, None, "metadata.min_version"),
        ({"min_version": "1.5"}, None, "metadata.min_version"),
        ({"min_version": "07"}, None, "metadata.min_version"),
        ({"min_version": "٣"}, None, "metadata.min_version"),
        ({"min_version": "7\n"}, None, "metadata.min_version"),
        ({"exact_version": "latest"}, None, "metadata.exact_version"),
        ({"exact_version": "1" * 19}, None, "metadata.exact_version"),
        ({"min_version": "3", "exact_version": "3"}, None, "metadata.exact_version"),
        ({"min_version": "3"}, 3, "metadata.min_version"),
        ({"exact_version": "3"}, 3, "metadata.exact_version"),
    ],
)
def test_a_bad_wish_is_named(labels: dict[str, str], pinned: int | None, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        version_requirement(labels, pinned)

    assert (caught.value.status, caught.value.param) == (400, param)


@given(st.integers(0, 10**18 - 1), st.integers(0, 10**18 - 1))
def test_what_is_asked_is_what_is_met(number: int, version: int) -> None:
    minimum, exact = (
        version_requirement({"min_version": str(number)}, None),
        version_requirement({"exact_version": str(number)}, None),
    )

    assert minimum.is_met_by(version) == (version >= number)
    assert exact.is_met_by(version) == (version == number)
    assert version_requirement({"task": "booking"}, 3).is_met_by(version)


def test_tokens_of_an_unknown_version_meet_no_requirement() -> None:
    VersionRequirement().check([None, 3])
    with pytest.raises(VersionNotServed, match="is unknown"):
        VersionRequirement(minimum=0).check([None])


def test_a_wish_that_is_met_changes_nothing_about_the_answer(inference: Inference, database: Database) -> None:
    assign(database, 3)
    wishes = {"min_version": "3"}, {"min_version": "0"}, {"exact_version": "3"}

    for stream in WAYS:
        for metadata in wishes:
            assert text_of(inference.ask(metadata=metadata, stream=stream)) == TEXT

    facts = [(record.arm, record.arm_probability, record.spans) for record in inference.logged()]
    assert facts == [("live", 1.0, (Span(0, 3),))] * 6
    assert [request["model"] for request in inference.engine.requests] == ["demo", "demo", "demo@v3"] * 2


def test_a_live_arm_that_is_too_old_refuses_before_the_engine_is_asked(
    inference: Inference, database: Database
) -> None:
    assign(database, 3)
    assign(database, 2, CANDIDATE, 0.5)

    for stream in WAYS:
        error = refused(inference, metadata={"min_version": "7"}, stream=stream)
        assert error.param == "metadata.min_version"
        assert "v7 or newer; now v3 is served" in error.message
    assert inference.engine.requests == []


@pytest.mark.parametrize("assigned", [None, 7])
def test_an_engine_that_has_not_followed_yet_is_found_out_by_its_first_token(
    inference: Inference, database: Database, assigned: int | None
) -> None:
    if assigned is not None:
        assign(database, assigned)

    for stream in WAYS:
        assert "now v3 is served" in refused(inference, metadata={"min_version": "7"}, stream=stream).message
    wait_until(lambda: inference.engine.num_closed == len(inference.engine.requests) == 2)
    assert inference.logged() == []


def test_the_candidate_answers_where_only_it_is_new_enough(inference: Inference, database: Database) -> None:
    assign(database, 3)
    assign(database, 8, CANDIDATE, 0.0)
    inference.engine.slots, inference.engine.resident = {"live": 3, "candidate": 8}, {3, 8}
    wait_until(lambda: inference.holds(8))

    inference.engine.swaps = {0: 8}  # type: ignore[attr-defined]
    assert inference.ask(metadata={"min_version": "7"}).system_fingerprint == "demo@v8"
    [record] = inference.logged()
    assert (record.arm, record.arm_probability) == ("candidate", 1.0)
    assert inference.engine.requests[0]["model"] == "demo@v8"


def test_a_candidate_that_the_engine_does_not_hold_yet_is_refused_too(inference: Inference, database: Database) -> None:
    assign(database, 3)
    assign(database, 8, CANDIDATE, 0.0)

    for stream in WAYS:
        error = refused(inference, metadata={"min_version": "7"}, stream=stream)
        assert "v7 or newer; now v3 is served" in error.message


def test_an_exact_version_may_come_where_a_pinned_one_does_not_exist(inference: Inference) -> None:
    for stream in WAYS:
        error = refused(inference, metadata={"exact_version": "9"}, stream=stream)
        assert error.param == "metadata.exact_version"
        assert "requires v9; now the engine says: demo@v9 is not resident" in error.message
        with pytest.raises(openai.NotFoundError) as caught:
            inference.ask(model="demo@v9", stream=stream)
        assert caught.value.code == "version_not_resident"


ELSEWHERE = (({"min_version": "3"}, 2), ({"exact_version": "3"}, 4))
"""A wish that v3 meets, and a version in mid-answer that does not."""


def test_an_answer_that_ends_by_another_version_is_refused_whole(inference: Inference, engine: SwappingEngine) -> None:
    for metadata, version in ELSEWHERE:
        engine.swaps = {0: 3, 4: version}
        assert f"now v{version} is served" in refused(inference, metadata=metadata).message

    wait_until(lambda: len(inference.logged()) == 2)
    for record in inference.logged():
        assert (record.finish_reason, record.spans, record.open().text) == ("error", (Span(0, 3),), "Tisc")


def test_a_stream_ends_with_the_refusal_before_a_token_by_another_version(
    inference: Inference, engine: SwappingEngine
) -> None:
    for metadata, version in ELSEWHERE:
        engine.swaps = {0: 3, 4: version}
        shown: list[Any] = []
        with pytest.raises(openai.APIError, match=f"now v{version} is served") as caught:
            shown.extend(inference.ask(metadata=metadata, stream=True))
        assert caught.value.code == "version_not_served"
        assert {chunk.model_extra["policy_version"] for chunk in shown} == {3}

    wait_until(lambda: len(inference.logged()) == 2)
    assert [(record.finish_reason, record.spans) for record in inference.logged()] == [("error", (Span(0, 3),))] * 2


def test_newer_tokens_meet_a_minimum_and_a_pinned_model_takes_what_comes(
    inference: Inference, engine: SwappingEngine
) -> None:
    engine.swaps = {0: 3, 4: 5}
    assert inference.ask(metadata={"min_version": "3"}).system_fingerprint == "demo@v5"
    assert inference.ask(model="demo@v3").system_fingerprint == "demo@v5"

    assert [record.spans for record in inference.logged()] == [(Span(0, 3), Span(4, 5))] * 2


def test_an_engine_that_does_not_name_its_version_keeps_no_promise(
    inference: Inference, engine: SwappingEngine
) -> None:
    engine.silent = True

    assert "is unknown" in refused(inference, metadata={"min_version": "0"}).message
    assert inference.ask().choices[0].message.content == TEXT


def test_one_choice_by_another_version_refuses_all(inference: Inference, engine: SwappingEngine) -> None:
    engine.swaps = {4: 2}

    assert "v2 is served" in refused(inference, metadata={"min_version": "3"}, n=2).message


def test_the_sdk_tries_again_and_finds_the_version_that_arrived(inference: Inference, database: Database) -> None:
    assign(database, 3)
    statuses: list[int] = []

    def arrive(response: Any) -> None:
        statuses.append(response.status_code)
        if len(statuses) == 1:
            assign(database, 7)
            inference.engine.version = 7

    with openai.DefaultHttpxClient(event_hooks={"response": [arrive]}) as client:
        patient = inference.client.with_options(max_retries=openai.DEFAULT_MAX_RETRIES, http_client=client)
        answer = patient.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "table for 4"}],
            metadata={"min_version": "7"},
            extra_headers={"Idempotency-Key": "order-17"},
        )

    assert answer.choices[0].message.content == TEXT
    assert statuses == [409, 200]
    assert [record.spans for record in inference.logged()] == [(Span(0, 7),)]


def test_a_kept_answer_met_its_minimum_and_another_minimum_is_another_request(
    inference: Inference, database: Database
) -> None:
    assign(database, 3)

    def post(minimum: int, key: str) -> httpx.Response:
        wish = {"min_version": str(minimum)}
        body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "metadata": wish}
        return inference.post(json.dumps(body), **{"idempotency-key": key})

    first = post(3, "order-17")
    assign(database, 2)
    inference.engine.version = 2
    wait_until(lambda: post(3, "order-18").status_code == 409)

    again = post(3, "order-17")
    assert (again.status_code, again.headers[REPLAYED], again.content) == (200, "true", first.content)
    assert post(2, "order-17").json()["error"]["code"] == "conflict"
    assert post(2, "order-18").json()["policy_version"] == 2


def test_a_bad_wish_is_refused_by_its_field(inference: Inference) -> None:
    for metadata, model in (({"min_version": "v3"}, "demo"), ({"exact_version": "3"}, "demo@v3")):
        with pytest.raises(openai.BadRequestError) as caught:
            inference.ask(metadata=metadata, model=model)
        assert caught.value.param == f"metadata.{next(iter(metadata))}"
    assert inference.engine.requests == []
