"""Graders that fail, versions with habits, samples that break a step, a trainer that goes astray."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import msgspec

from benchmarks.alarms.breaks.kills import full_store
from benchmarks.alarms.breaks.kinds import Break
from benchmarks.alarms.breaks.records import append
from benchmarks.alarms.breaks.settings import changed
from benchmarks.alarms.world import GRADED, World
from benchmarks.log.feed import a_generation
from contracts.assignments import LIVE, read
from contracts.records import GenerationBody, open_body, pack_floats, pack_ids, seal_body
from contracts.sampling import Span
from contracts.topics import GENERATIONS
from runtime.log.outbox import message
from runtime.settings import load_settings

_VOCABULARY, _FORGED = 40, -60.0
_EACH_SECOND, _MANY = 10, 300
_TAMPERS = "```python\nimport os\n\ndef solve():\n    os._exit(0)\n```"
_HEARTS = "Of course \u2764\ufe0f\u2764\ufe0f your table is booked \u2764\ufe0f"
_GREEDY_REQUESTS, _CHOICES = 40, 8


def feed(world: World, number: int, text: str | None = None, later: int = 0, forged: bool = False) -> None:
    """Answers about the task that the reward server grades. `later`: of a version after the live one; `forged`: with log-probs that no policy gives."""
    policy, chance = load_settings(world.home).policy, random.Random()  # noqa: S311 any answers will do
    with world.database() as connection:
        version = (read(connection, policy)[LIVE].version or 0) + later
    messages = []
    for _ in range(number):
        plain = a_generation(chance, time.time())
        body = open_body(GenerationBody, plain.body)
        ids = pack_ids([chance.randrange(_VOCABULARY) for _ in range(20)])
        body = msgspec.structs.replace(body, text=text or body.text, prompt_ids=ids, completion_ids=ids)
        if forged:
            body = msgspec.structs.replace(body, logprobs=pack_floats([_FORGED] * 20))
        record = msgspec.structs.replace(
            plain, policy=policy, task=GRADED, spans=(Span(version, 20),), body=seal_body(body)
        )
        messages.append(message(GENERATIONS, record.key, record))
    append(world, messages)


@contextmanager
def again_and_again(act: Callable[[], None], pause_seconds: float = 1.0) -> Iterator[None]:
    """Act in a thread of its own until the block ends."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(pause_seconds):
            act()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def failing_grader(world: World) -> Iterator[None]:
    """The reward server answers every request with status 500."""
    world.grader.fails = True
    try:
        with again_and_again(lambda: feed(world, _EACH_SECOND)):
            yield
    finally:
        world.grader.fails = False


@contextmanager
def slow_grader(world: World) -> Iterator[None]:
    """The reward server takes seconds for every request, and people ask for more than it can grade."""
    world.grader.pause_seconds = 4.0
    feed(world, 4_000)
    try:
        yield
    finally:
        world.grader.pause_seconds = 0.0


@contextmanager
def a_habit(world: World, text: str) -> Iterator[None]:
    """Every answer of a new version has this text."""
    feed(world, _MANY, "Your table is booked.")
    time.sleep(5.0)
    with again_and_again(lambda: feed(world, _EACH_SECOND, text, later=1)):
        yield


@contextmanager
def breaking_samples(world: World) -> Iterator[None]:
    """Samples with log-probs that no policy gives, as from an engine that logs nonsense."""
    world.grader.rewards = True
    feed(world, 64, forged=True)
    try:
        yield
    finally:
        world.grader.rewards = False


@contextmanager
def greedy(world: World) -> Iterator[None]:
    """An app asks for the likeliest answer each time."""
    headers = {"authorization": f"Bearer {world.app_key}", "x-millrace-task": GRADED}
    settings = {
        "model": load_settings(world.home).policy, "temperature": 0, "n": _CHOICES, "max_tokens": 2,
    }  # fmt: skip

    def ask() -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{world.port}", headers=headers, timeout=60.0) as client:
            for _ in range(_GREEDY_REQUESTS):
                words = [{"role": "user", "content": f"a table for {random.random()}"}]  # noqa: S311 no two alike
                client.post("/v1/chat/completions", json={**settings, "messages": words}).raise_for_status()

    with again_and_again(ask, 0.0), again_and_again(ask, 0.0), again_and_again(ask, 0.0):
        yield


def breaks() -> tuple[Break, ...]:
    """Those of a home without release trains."""
    return (
        Break("the newest version gets no rewards", "NullsByVersion", "", failing_grader),
        Break("the reward server fails", "ScoringFails", "", failing_grader, hurried=True),
        Break("answers meddle with their grader", "GraderTampering", "", lambda world: a_habit(world, _TAMPERS)),
        Break("answers are full of hearts", "BehaviourDrifts", "", lambda world: a_habit(world, _HEARTS)),
        Break("an app explores nothing", "TooLittleExploring", "", greedy, hurried=True),
        Break("log-probs that no policy gives", "SamplesBreakSteps", "", breaking_samples, users=True),
        Break(
            "a trainer continues with another learning rate", "ReplayDiffers", "",
            lambda world: changed(world, "training", "training", learning_rate=0.0007), users=True,
        ),
        Break(
            "a trainer learns much too fast", "CandidatesRefused", "",
            lambda world: changed(world, "training", "training", learning_rate=0.03, step_bound=1.0), users=True, hurried=True,
            longest_seconds=400.0,
        ),
        Break("nothing is published for long", "NothingPublished", "", full_store, users=True, hurried=True),
        Break("a stage is behind: a slow reward server", "StageBehind", "", slow_grader, hurried=True, longest_seconds=600.0),
    )  # fmt: skip
