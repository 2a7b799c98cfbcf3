"""Users of a small world: answers straight onto the log, signals over HTTP, and a list of the acknowledged signals."""

from __future__ import annotations

import queue
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self

import httpx

from contracts.errors import Unavailable
from contracts.event_log import Message
from contracts.records import Generation
from contracts.topics import GENERATIONS
from runtime.log.outbox import message
from tests.worlds.faults.world import PATIENCE_SECONDS, FaultWorld
from tests.worlds.feed import WINDOW_SECONDS, a_generation

AT_ONCE, PAUSE_SECONDS = 10, 0.1
_SILENT_SHARE, _EARLY_SHARE, _SECOND_SHARE = 0.3, 0.3, 0.3
_ANSWER_SECONDS = 60.0


class FaultTraffic:
    """Flows while the block runs. What the log refuses is sent again until it is acknowledged; a signal is sent once.

    `answers` counts the statuses that feedback answered.
    """

    def __init__(self, world: FaultWorld) -> None:
        self._world = world
        self._chance = random.Random(1)
        self._said: queue.Queue[dict[str, object]] = queue.Queue()
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in (self._answer, self._speak)]
        self.num_generations = 0
        self.answers: Counter[int] = Counter()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self._errors, self._errors

    def flow(self, num_generations: int) -> None:
        """Return when so many more were acknowledged."""
        wanted, deadline = self.num_generations + num_generations, time.monotonic() + PATIENCE_SECONDS
        while self.num_generations < wanted:
            assert time.monotonic() < deadline, f"{self.num_generations} of {wanted} were acknowledged"
            time.sleep(PAUSE_SECONDS)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 told at the end of the block
            self._errors.append(error)

    def _answer(self) -> None:
        while not self._stop.wait(PAUSE_SECONDS):
            batch: list[Message] = []
            late: list[dict[str, object]] = []
            for _ in range(AT_ONCE):
                silent = self._chance.random() < _SILENT_SHARE
                about = a_generation(self._chance, time.time() - (2 * WINDOW_SECONDS if silent else 0))
                batch.append(message(GENERATIONS, about.key, about))
                for item in [] if silent else self._signals(about):
                    early = self._chance.random() < _EARLY_SHARE
                    self._said.put(item) if early else late.append(item)
            append(self._world, batch)
            self.num_generations += len(batch)
            for item in late:
                self._said.put(item)

    def _signals(self, about: Generation) -> list[dict[str, object]]:
        names = ["accepted", "edited"] if self._chance.random() < _SECOND_SHARE else ["accepted"]
        return [
            {
                "id": f"fb-{uuid.uuid4()}",
                "completion_id": about.completion_id,
                "choice": about.choice,
                "name": name,
                "value": "more people" if name == "edited" else True,
                "submitter": {"id": "user-1"},
            }
            for name in names
        ]

    def _speak(self) -> None:
        headers = {"authorization": f"Bearer {self._world.key}"}
        with httpx.Client(base_url=self._world.settings.feedback_url, headers=headers, timeout=_ANSWER_SECONDS) as http:
            while not (self._stop.is_set() and self._said.empty() and not self._threads[0].is_alive()):
                try:
                    item = self._said.get(timeout=PAUSE_SECONDS)
                except queue.Empty:
                    continue
                status = http.post("/v1/feedback", json=item).status_code
                self.answers[status] += 1
                if status == httpx.codes.ACCEPTED:
                    self._world.clients.append({"kind": "signal", **item})


def append(world: FaultWorld, messages: list[Message]) -> None:
    """Append until it is acknowledged, and note it in the clients' list."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            world.users_log.append(messages)
        except Unavailable:
            if time.monotonic() > deadline:
                raise
        else:
            world.clients.extend({"kind": "generation", "key": item.key} for item in messages)
            return


def a_burst(world: FaultWorld, num_generations: int) -> None:
    """Many silent answers at once."""
    chance = random.Random(2)
    batch = [a_generation(chance, time.time() - 2 * WINDOW_SECONDS) for _ in range(num_generations)]
    append(world, [message(GENERATIONS, about.key, about) for about in batch])
