"""A test of many cases names the one that fails."""

from __future__ import annotations

import inspect

import pytest

from tests.each_case import each_case


def test_every_case_runs_and_a_failure_names_its_own() -> None:
    seen: list[tuple[int, str]] = []

    @each_case("number", [1, 2])
    @each_case(("word", "length"), [("a", 1), ("bc", 2)])
    def about(tmp_path: str, number: int, word: str, length: int) -> None:
        assert tmp_path == "given"
        seen.append((number, word))
        assert len(word) == length, "no such length"
        assert (number, word) != (2, "bc"), "the last one"

    assert [*inspect.signature(about).parameters] == ["tmp_path"]
    with pytest.raises(AssertionError, match="the last one") as failed:
        about(tmp_path="given")
    assert seen == [(1, "a"), (1, "bc"), (2, "a"), (2, "bc")]
    assert failed.value.__notes__ == ["in the case {'word': 'bc', 'length': 2}", "in the case {'number': 2}"]


def test_a_list_without_cases_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="no cases"):
        each_case("number", [])
