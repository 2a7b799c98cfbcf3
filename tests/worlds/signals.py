"""What floods and what is flooded: answers, signals about them, and the same of another tenant."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from msgspec.structs import replace

from contracts.event_log import Message
from contracts.records import Generation, Signal, Submitter
from contracts.topics import GENERATIONS, SIGNALS
from runtime.log.outbox import message
from tests.worlds.feed import a_generation

_SUBMITTERS = 50


def an_answer(seed: int, tenant: str = "default") -> Generation:
    """A finished answer."""
    return replace(a_generation(random.Random(seed), time.time()), tenant=tenant)


def signals_about(about: Generation, num: int, first: int = 0, *, is_decisive: bool = True) -> Iterator[Signal]:
    """Signals of many submitters, each with an id of its own; `first`: the number in the first id."""
    for number in range(first, first + num):
        yield Signal(
            id=f"{about.completion_id}-{number}",
            completion_id=about.completion_id,
            choice=about.choice,
            name="accepted",
            value=is_decisive,
            at=about.finished_at + 1.0 + number * 1e-3,
            received_at=about.finished_at + 2.0,
            tenant=about.tenant,
            submitter=Submitter(id=f"user-{number % _SUBMITTERS}"),
        )


def answer_message(about: Generation) -> Message:
    """Its record."""
    return message(GENERATIONS, about.key, about)


def signal_message(said: Signal) -> Message:
    """Its record."""
    return message(SIGNALS, said.key, said)
