"""Broken responses of an engine: the unmodified openai SDK raises the right error, and the log names the cause."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.adversary.attacks.cases.broken_answers import CASES, BrokenAnswer
from tests.worlds.engines.broken import Gateway, gateway


@pytest.fixture(scope="module")
def attacked() -> Iterator[Gateway]:
    with gateway() as attacked:
        yield attacked


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_client_is_told_and_the_log_says_what_it_was(attacked: Gateway, case: BrokenAnswer, stream: bool) -> None:
    assert attacked.trouble(case, stream=stream) is None


def test_after_all_of_it_whole_answers_come_through(attacked: Gateway) -> None:
    assert attacked.serves()
