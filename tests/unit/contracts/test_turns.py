"""Rows and tokens of a session, from what its calls logged."""

from __future__ import annotations

import msgspec
import pytest

from contracts.record_checks import problem_of
from contracts.turns import CountedCall, SessionShare, SessionTurn, count_rows


def call(key: str, num_prompt: int, parent: str | None = None, shared: int = 0, branch: str = "") -> CountedCall:
    return CountedCall(key, SessionTurn(parent, shared, branch), num_prompt, 10)


LINE = [call("a", 90, branch="first"), call("b", 120, "a", 100), call("c", 150, "b", 130)]


def test_a_linear_session_is_one_row_whose_tokens_count_once() -> None:
    counted = count_rows(LINE)
    assert (counted.calls, counted.rows, counted.branches) == (3, 1, {"first": 1})
    assert (counted.tokens_apart, counted.tokens_together) == (390, 160)
    assert counted.saved == pytest.approx(1 - 160 / 390)


def test_a_branch_is_a_row_of_its_own_and_shares_its_beginning() -> None:
    counted = count_rows([*LINE, call("d", 140, "b", 80, "history_rewritten"), call("e", 50, branch="other_beginning")])
    assert counted.rows == 3
    assert counted.branches == {"first": 1, "history_rewritten": 1, "other_beginning": 1}
    assert counted.tokens_together == 160 + (150 - 80) + 60


def test_two_calls_that_go_on_from_one_are_two_rows() -> None:
    assert count_rows([*LINE, call("d", 150, "b", 130)]).rows == 2


def test_a_parent_that_is_not_logged_shares_nothing() -> None:
    counted = count_rows([call("b", 120, "a", 100)])
    assert (counted.rows, counted.tokens_apart, counted.tokens_together) == (1, 130, 130)


def test_no_calls() -> None:
    assert count_rows([]) == (0, 0, {}, 0, 0)
    assert count_rows([]).saved == 0


def test_places_and_shares_from_before_there_were_groups_are_read() -> None:
    place = msgspec.msgpack.encode({"parent": None, "parent_tokens": 3, "branch": "first"})
    assert msgspec.msgpack.decode(place, type=SessionTurn) == SessionTurn(None, 3, "first", None)
    share = {"session": "s", "last": "c:0", "index": 0, "calls": 1, "credit": 1.0, "ended_at": 2.0}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(share), type=SessionShare).group is None


@pytest.mark.parametrize("group", ["x" * 65, "a\0b"])
def test_a_group_that_no_database_takes_is_a_problem(group: str) -> None:
    assert "group" in problem_of(SessionTurn(group=group))


def test_a_share_that_an_earlier_release_logged_is_still_read() -> None:
    logged = {"session": "s", "last": "chatcmpl-1:0", "index": 0, "calls": 2, "credit": 0.5}
    share = msgspec.convert(logged, SessionShare)
    assert (share.ended_at, share.group) == (0.0, None)
