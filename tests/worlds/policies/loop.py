"""The whole loop over one tiny model: served, trained, published, swapped, rolled back, and resumed after SIGKILL."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from commands.home import Home, prepare_home
from commands.operators import roll_back
from commands.supervisor import Supervisor
from commands.up import listen, new_settings
from contracts.assignments import LIVE
from contracts.assignments import read as read_arms
from contracts.records import Generation, decode
from contracts.topics import GENERATIONS
from pipelines.training.settings import TrainingSettings
from tests.fakes import everything
from tests.supervised import supervised

TASK = """
name = "words"
window_seconds = 30
consent = "train"
silence = "unlabelled"
baseline_key = "task"

[sampling]
owner = "task"
temperature = 1.0
max_tokens = 12

[signals.accepted]
type = "bool"
labels = { true = 1.0, false = 0.0 }
"""
NUM_USERS, PATIENCE_SECONDS = 4, 240.0


class Loop(NamedTuple):
    """A home whose processes run, and people who use it."""

    home: Home
    supervisor: Supervisor
    answers: list[dict[str, Any]]

    @property
    def live(self) -> int:
        """The version that is assigned to everybody."""
        database = self.home.settings.database()
        with database.snapshot() as connection:
            version = read_arms(connection, self.home.settings.policy)[LIVE].version
        database.close()
        return version or 0

    def ask(self, number: int) -> None:
        """One request and one signal: what is accepted is an answer with an even number of characters."""
        headers = {"Authorization": f"Bearer {self.home.app_key}"}
        body = {"model": "tiny", "messages": [{"role": "user", "content": f"word {number}"}]}
        with httpx.Client(base_url=self.home.settings.web_url, headers=headers, timeout=60.0) as client:
            answer = client.post("/v1/chat/completions", json={**body, "metadata": {"task": "words"}})
            if not answer.is_success:  # a process was just killed
                self.answers.append({"failed": answer.status_code, "text": answer.text})
                return
            found = answer.json()
            liked = len(found["choices"][0]["message"]["content"] or "") % 2 == 0
            about = {"completion_id": found["id"], "submitter": {"id": f"person-{number}", "kind": "user"}}
            signal_ = {"id": f"fb_{found['id']}", "at": time.time(), "name": "accepted", "value": liked, **about}
            sent = client.post("/v1/feedback", json=signal_)
            self.answers.append({"id": found["id"], "version": found["policy_version"], "heard": sent.is_success})

    def work_until(self, reached: Callable[[], bool], what: str) -> None:
        """People use it until something has happened."""
        deadline, number = time.monotonic() + PATIENCE_SECONDS, len(self.answers)
        with ThreadPoolExecutor(NUM_USERS) as users:
            while not reached():
                assert time.monotonic() < deadline, f"{what} never happened: {self.answers[-3:]}"
                for _ in users.map(self._ask, range(number, number + NUM_USERS)):
                    pass
                number += NUM_USERS

    def _ask(self, number: int) -> None:
        try:
            self.ask(number)
        except httpx.TransportError as error:
            self.answers.append({"failed": 0, "text": repr(error)})

    def kill(self, name: str) -> None:
        """SIGKILL a process, and wait until the supervisor has started it again."""
        child = self.supervisor.children[name]
        before = child.restarts
        child.process.send_signal(signal.SIGKILL)
        self.work_until(lambda: child.restarts > before, f"a restart of {name}")

    def roll_back(self, to: int) -> None:
        """As `millrace policy rollback`."""
        roll_back(self.home.settings.home, to, "test")

    def generations(self) -> list[Generation]:
        """Everything that was logged."""
        log = self.home.settings.event_log()
        found = [decode(Generation, record.value) for record in everything(log, GENERATIONS)]
        log.close()
        return found


@contextmanager
def run_loop(folder: Path, base: Path, **training_settings: Any) -> Iterator[Loop]:
    """Millrace with a base policy, publishing a version every few seconds; settings of the trainer may be added."""
    task = folder / "task.toml"
    task.write_text(TASK)
    sockets = listen(0)
    settings = new_settings(folder / "home", sockets, name="tiny", base=base, tasks=[task], device="cpu")
    training = TrainingSettings(
        batch_size=16, max_wait_seconds=2.0, publish_samples=16, publish_seconds=2.0, learning_rate=1e-3,
        **training_settings,
    )  # fmt: skip
    home = prepare_home(settings, {"training": training})
    with supervised(home, sockets, forked=True) as supervisor:
        yield Loop(home, supervisor, [])
