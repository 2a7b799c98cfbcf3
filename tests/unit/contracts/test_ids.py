from __future__ import annotations

import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InvalidRequest
from contracts.ids import (
    NUM_ROUTES,
    completion_id_of,
    imported_completion_id,
    is_stored,
    new_completion_id,
    parse_sample_key,
    response_id_of,
    route_of,
    route_of_text,
    sample_key,
    time_of,
)


@given(st.text(min_size=1, max_size=40))
def test_a_session_shares_one_route(session: str) -> None:
    assert route_of(new_completion_id(session)) == route_of(new_completion_id(session)) == route_of_text(session)


def test_ids_are_unique_and_sort_by_time() -> None:
    first = [new_completion_id() for _ in range(1000)]
    assert len(set(first)) == 1000
    time.sleep(0.002)
    assert max(first)[:22] <= new_completion_id()[:22]


@pytest.mark.parametrize("stored", [True, False])
def test_a_response_and_its_completion_are_found_from_each_other(stored: bool) -> None:
    completion_id = new_completion_id(stored=stored)
    response_id = response_id_of(completion_id)

    assert response_id == f"resp_{completion_id.removeprefix('chatcmpl-')}"
    assert completion_id_of(response_id) == completion_id_of(completion_id) == completion_id
    for text in ("", "resp_", "resp_x", f"{response_id}x", f"resp_{response_id}", f"msg_{response_id[5:]}"):
        assert completion_id_of(text) == text


@given(st.text(min_size=1, max_size=40))
def test_an_id_says_that_its_answer_is_kept_nowhere(session: str) -> None:
    kept, unkept = new_completion_id(session), new_completion_id(session, stored=False)
    assert (is_stored(kept), is_stored(unkept)) == (True, False)
    assert uuid.UUID(unkept.removeprefix("chatcmpl-")).version == 8
    assert route_of(unkept) == route_of(kept)
    assert time_of(unkept) == pytest.approx(time.time(), abs=60)


@pytest.mark.parametrize("text", ["", "chatcmpl-", "chatcmpl-xyz", "x" * 22 + "8", "chatcmpl-xxxxxxxx-xxxx-8"])
def test_what_is_no_id_says_nothing(text: str) -> None:
    assert is_stored(text)


def test_routes_spread() -> None:
    routes = {route_of(new_completion_id()) for _ in range(2000)}
    assert all(0 <= route < NUM_ROUTES for route in routes)
    assert len({route % 4 for route in routes}) == 4


def test_a_sample_key_round_trips() -> None:
    completion_id = new_completion_id()
    assert parse_sample_key(sample_key(completion_id, 3)) == (completion_id, 3)


@pytest.mark.parametrize(
    "text", ["", "chatcmpl-", "chatcmpl-xyz", "cmpl-018f", "chatcmpl-3f2504e0-4f89-41d3-9a0c-0305e82c3301"]
)
def test_foreign_ids_are_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidRequest, match="completion id"):
        route_of(text)


def test_an_imported_id_is_the_same_whenever_it_is_made_and_has_the_rows_own_time_and_route() -> None:
    made = imported_completion_id(1_750_000_000.25, b"row 1", "visit-7")
    assert made == imported_completion_id(1_750_000_000.25, b"row 1", "visit-7")
    assert (time_of(made), route_of(made), is_stored(made)) == (1_750_000_000.25, route_of_text("visit-7"), True)
    assert len({imported_completion_id(1.0, b"%d" % number) for number in range(1000)}) == 1000
    assert len({route_of(imported_completion_id(1.0, b"%d" % number)) for number in range(1000)}) > 800
