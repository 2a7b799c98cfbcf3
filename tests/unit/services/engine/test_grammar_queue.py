"""Whose grammar is compiled next: turns, seconds, and what nobody waits for any more."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import Overloaded
from services.engine.grammar_queue import Compilation, GrammarQueue, GrammarWaiter, QueueBounds


@pytest.fixture
def queue() -> GrammarQueue:
    return GrammarQueue(QueueBounds(seconds_per_minute=20.0, num_requests=4))


def taken(queue: GrammarQueue) -> Compilation:
    compilation = queue.take()
    assert compilation is not None
    return compilation


def test_tenants_take_turns_and_each_has_one_at_a_time(queue: GrammarQueue) -> None:
    for number in range(4):
        queue.join(f"bomb {number}", "one", 0.0)
    first = taken(queue)
    assert queue.take() is None, "the second worker stays free for others"
    queue.join("small", "two", 0.0)
    assert taken(queue).grammar == "small"
    queue.answered(first)
    queue.end(first, 1.0, 1.0)
    assert [first.grammar, taken(queue).grammar] == ["bomb 0", "bomb 1"]
    assert queue.take() is None


@given(asked=st.lists(st.sampled_from("abcd"), max_size=24))
def test_nobody_is_passed_over_twice_for_another(asked: list[str]) -> None:
    queue = GrammarQueue(QueueBounds(num_requests=100))
    for number, tenant in enumerate(asked):
        queue.join(f"{tenant} {number}", tenant, 0.0)
    turns = []
    while (compilation := queue.take()) is not None:
        turns.append(compilation.grammar)
        queue.answered(compilation)
        queue.end(compilation, 0.1, 0.0)
    assert sorted(turns) == sorted(f"{tenant} {number}" for number, tenant in enumerate(asked))
    for tenant in set(asked):
        own = [place for place, grammar in enumerate(turns) if grammar.startswith(tenant)]
        assert [turns[place] for place in own] == [
            f"{tenant} {number}" for number, at in enumerate(asked) if at == tenant
        ]
        for earlier, later in pairwise(own):
            between = [grammar[0] for grammar in turns[earlier + 1 : later]]
            assert len(between) == len(set(between))


def test_equal_grammars_are_one_compilation_that_takes_the_first_turn_of_any_who_wait(queue: GrammarQueue) -> None:
    for number in range(3):
        queue.join(f"bomb {number}", "one", 0.0)
    behind, early = queue.join("same", "one", 0.0), queue.join("same", "two", 0.0)
    bomb, same = taken(queue), taken(queue)
    assert (bomb.grammar, same.grammar, same.turn_of) == ("bomb 0", "same", "two")
    late = queue.join("same", "three", 0.0)
    assert queue.answered(same) == [behind, early, late]
    assert queue.end(same, 0.1, 0.0) == []
    assert queue.take() is None, "nobody waits for it any more, in any tenant's line"


def test_what_nobody_waits_for_is_dropped_and_what_runs_is_named(queue: GrammarQueue) -> None:
    running, waiting, beside = (queue.join(name, "one", 0.0) for name in ("a", "b", "a"))
    compilation = taken(queue)
    assert queue.leave(running) is None, "another request waits for it"
    assert queue.leave(waiting) is None, "it had not begun"
    assert queue.leave(beside) is compilation
    assert queue.leave(beside) is None
    again = queue.join("a", "one", 0.0)
    assert again.compilation is not compilation, "nobody joins what is being killed"
    assert queue.take() is None, "its worker is not free yet"
    assert queue.answered(compilation) == []
    queue.end(compilation, 1.0, 1.0)
    assert taken(queue) is again.compilation
    assert queue.answered(again.compilation) == [again]


def test_a_tenant_that_spent_its_seconds_is_refused_until_they_lie_a_minute_back(queue: GrammarQueue) -> None:
    for at in (0.0, 10.0):
        queue.join("bomb", "one", at)
        bomb = taken(queue)
        queue.answered(bomb)
        waiting = [queue.join(f"next {number}", "one", at) for number in range(2)]
        shared = queue.join("next 0", "two", at)
        refused = queue.end(bomb, 10.0, at + 10.0)
        if at == 0.0:
            assert refused == []
            for waiter in (*waiting, shared):
                queue.leave(waiter)
    assert refused == waiting
    assert queue.refusal("one", 20.0).headers == {"retry-after": "50"}
    with pytest.raises(Overloaded, match=r"more than 20 s to compile within a minute.*try again in 50 s") as caught:
        queue.join("next", "one", 20.0)
    assert (caught.value.status, caught.value.headers["retry-after"]) == (429, "50")
    assert taken(queue) is shared.compilation, "another tenant waits for the same one, and may"
    queue.join("next", "one", 70.0)


def test_the_requests_of_one_tenant_that_wait_are_bounded(queue: GrammarQueue) -> None:
    waiting = [queue.join("same", "one", 0.0) for _ in range(4)]
    with pytest.raises(Overloaded, match="4 requests of yours") as caught:
        queue.join("same", "one", 0.0)
    assert caught.value.headers["retry-after"] == "1"
    queue.join("same", "two", 0.0)
    queue.leave(waiting[0])
    queue.join("other", "one", 0.0)


def test_at_the_end_all_who_wait_are_named(queue: GrammarQueue) -> None:
    waiting: list[GrammarWaiter] = [queue.join(name, "one", 0.0) for name in ("a", "b", "b")]
    running = taken(queue)
    assert queue.empty() == waiting
    assert queue.take() is None
    assert queue.answered(running) == []
