from __future__ import annotations

import itertools

from contracts.records import Attempt
from pipelines.episodes.retries.rules import Try, replaced, try_of
from tests.fakes import a_generation


def a_try(name: str, count: int, at: float, *, ended_at: float | None = None, is_cut: bool = False) -> Try:
    return Try(name, count, at, at + 1 if ended_at is None else ended_at, is_cut)


def test_each_try_replaces_the_one_before_it() -> None:
    tries = [a_try("a", 0, 0), a_try("b", 1, 10), a_try("c", 2, 20)]
    for order in itertools.permutations(tries):
        assert replaced(order) == {"a": "b", "b": "c"}


def test_a_try_that_left_no_answer_leaves_no_gap() -> None:
    assert replaced([a_try("a", 0, 0), a_try("c", 2, 20)]) == {"a": "c"}


def test_first_tries_replace_nothing() -> None:
    assert replaced([a_try("a", 0, 0), a_try("b", 0, 1), a_try("c", 0, 2)]) == {}


def test_of_two_users_who_asked_the_same_the_one_whose_answer_was_cut_is_meant() -> None:
    tries = [a_try("cut", 0, 0, is_cut=True), a_try("whole", 0, 5), a_try("again", 1, 10)]
    assert replaced(tries) == {"cut": "again"}


def test_two_retries_never_replace_one_answer_twice() -> None:
    tries = [a_try("a", 0, 0), a_try("b", 0, 1), a_try("a2", 1, 10), a_try("b2", 1, 11)]
    assert replaced(tries) == {"b": "a2", "a": "b2"}


def test_ten_minutes_count_from_the_end_of_the_earlier_try() -> None:
    slow = a_try("slow", 0, 0, ended_at=600)
    assert replaced([slow, a_try("again", 1, 1200)]) == {"slow": "again"}
    assert replaced([slow, a_try("again", 1, 1201)]) == {}


def test_what_began_later_is_not_replaced() -> None:
    assert replaced([a_try("again", 1, 0), a_try("first", 0, 5)]) == {}


def test_all_choices_of_a_completion_are_one_try() -> None:
    whole = a_generation(attempt=Attempt("ab", 1), finished_at=105.0)
    cut = a_generation(attempt=Attempt("ab", 1), choice=1, finish_reason="cancelled", finished_at=110.0)
    assert try_of([whole, cut]) == Try(whole.completion_id, 1, 100.0, 110.0, is_cut=True)
    assert try_of([a_generation()]) is None
