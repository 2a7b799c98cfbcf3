"""What agents do wrong in sessions, through the real endpoint, feedback, the join and rewards: each call has a named outcome.

The table names, for each call, why it begins a branch (empty: it goes on token for token) and its state: `learned` is a reward of its session.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from sqlalchemy import select

from contracts.ids import sample_key
from contracts.ledger import generation_counts, signal_counts
from contracts.records import Experience, Generation, decode
from contracts.segments import whole
from contracts.tables import generation
from contracts.tasks.loading import load_tasks
from contracts.topics import EXPERIENCES, GENERATIONS
from pipelines.episodes.handler import EpisodesHandler
from pipelines.training.learning.advantages import advantages_of
from pipelines.training.learning.trackers import MovingAverageTracker
from pipelines.training.settings import TrainingSettings
from rewards.worker import RewardsHandler
from runtime.database import Database
from runtime.log.answers import with_answers
from runtime.log.local import LocalLog
from runtime.operations import Operations
from runtime.template.chat_template import load_template
from runtime.worker import Worker
from services.feedback.app import create_app as create_feedback
from services.inference.app import create_app as create_inference
from services.serving import make_web
from tests.chat_templates.bundled import make_bundled
from tests.unit.services.inference.conftest import stage
from tests.unit.services.inference.test_template_tools import TOOLS
from tests.unit.services.inference.world import FakeEngine, Stage
from tests.unit.services.serving import make_home, make_key, serve

__all__ = ["stage"]
TASK = """
name = "{name}"
window_seconds = 60
[sampling]
owner = "caller"
temperature = 1.0
max_tokens = 64
[signals.solved]
type = "bool"
labels = {{ true = 1.0, false = 0.0 }}
[credit]
rule = "equal"
longest_seconds = 100
"""
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is it?"}]
TITLED = [{"role": "system", "content": "Name this chat."}, {"role": "user", "content": "Where is it?"}]
OTHERS = [{**TOOLS[0], "function": {**TOOLS[0]["function"], "name": "look_elsewhere"}}]
TWO = [*TOOLS[:1], *OTHERS]
OUTCOMES = {
    "a linear session": ["first: learned", ": learned", ": learned"],
    "a rewritten last answer": ["first: unlabelled off_line", "answer_rewritten: learned"],
    "reordered tools": ["first: learned", "tools_changed: learned"],
    "changed tools": ["first: learned", "tools_changed: learned"],
    "a truncated turn": ["first: learned", "answer_cut: learned"],
    "two branches at once": ["first: learned", ": unlabelled off_line", ": learned", ": learned"],
    "a retry": ["first: unlabelled off_line", "repeated: learned", ": learned"],
    "a title": ["first: learned", "other_beginning: unlabelled off_line", ": learned"],
    "another task": ["first: unlabelled off_line", "task_changed: learned", ": learned"],
    "a straggler": ["first: learned", ": learned", ": unlabelled silence"],
    "nobody speaks": ["first: unlabelled silence", "other_beginning: unlabelled off_line", ": unlabelled silence"],
}


class Said(NamedTuple):
    """A call: its id, and the conversation with its answer."""

    id: str
    messages: list[dict[str, Any]]

    def then(self, text: str = "And then?") -> list[dict[str, Any]]:
        return [*self.messages, {"role": "user", "content": text}]


@dataclass
class BadInputWorld:
    """The applications behind one port, and the workers behind their log, at a time that tests move."""

    url: str
    key: str
    log: LocalLog
    database: Database
    workers: Sequence[Worker[Any]]
    shift: list[float]
    calls: dict[str, list[str]] = field(default_factory=dict)

    def post(self, target: str, body: Any, key: str = "") -> httpx.Response:
        headers = {"authorization": f"Bearer {key or self.key}"}
        return httpx.post(f"{self.url}{target}", json=body, headers=headers, timeout=30.0)

    def ask(
        self, session: str, messages: list[dict[str, Any]], *, url: str = "", task: str = "support", **fields: Any
    ) -> Said:
        time.sleep(0.003)  # ids have milliseconds, and the order of calls matters
        metadata = {"metadata": {"task": task, **({} if url else {"session_id": session})}}
        body = {"model": "demo", "messages": messages, **metadata, **fields}
        answer = self.post(f"{url}/v1/chat/completions", body)
        assert answer.status_code == 200, answer.text
        content = answer.json()
        self.calls.setdefault(session, []).append(content["id"])
        said = {"role": "assistant", "content": content["choices"][0]["message"]["content"]}
        return Said(content["id"], [*messages, said])

    def speak(self, session: str, *, value: bool = True) -> None:
        time.sleep(0.003)
        body = {"session_id": session, "name": "solved", "value": value, "submitter": {"id": "u"}}
        assert self.post("/v1/feedback", body).status_code == 202

    def later(self, seconds: float) -> None:
        self.shift[0] += seconds
        for _ in range(6):
            for worker in self.workers:
                while worker.step():
                    pass

    def records(self, topic: str, kind: type[Any]) -> list[Any]:
        places = range(self.log.num_partitions)
        return [decode(kind, item.value) for place in places for item in self.log.read(topic, place, 0, 1000)]

    def experiences(self) -> dict[str, Experience]:
        """The newest revision of each sample, with its tokens."""
        records = [
            item for place in range(self.log.num_partitions) for item in self.log.read(EXPERIENCES, place, 0, 1000)
        ]
        found = [
            whole(decode(Experience, item.value), item.answer)
            for item in with_answers(self.log, self.database, records)
        ]
        return {item.key: item for item in sorted(found, key=lambda item: item.revision)}

    def outcomes(self) -> dict[str, list[str]]:
        """By session, in the order of calls; the ledger balances."""
        with self.database.snapshot() as connection:
            columns = generation.c
            rows = connection.execute(
                select(columns.completion_id, columns.choice, columns.state, columns.state_reason)
            )
            states = {sample_key(*row[:2]): row[2:] for row in rows}
            for counts in (generation_counts(connection), signal_counts(connection)):
                assert counts.unexplained == 0
        logged = {item.key: item for item in self.records(GENERATIONS, Generation)}
        learned = {key for key, item in self.experiences().items() if item.reward == 1.0 and item.share}
        told = {}
        for session, calls in self.calls.items():
            keys = [sample_key(each, 0) for each in calls]
            assert all(logged[key].session_id == session for key in keys)
            ends = ["learned" if key in learned else " ".join(states[key]).strip() for key in keys]
            told[session] = [f"{logged[key].turn.branch}: {end}" for key, end in zip(keys, ends, strict=True)]
        return told


@pytest.fixture
def world(tmp_path: Path, database: Database, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[BadInputWorld]:
    base = make_bundled(tmp_path / "base", "qwen3")
    tokenizer, engine = load_template(str(base)).tokenizer, FakeEngine("-")
    [engine.end] = tokenizer.encode("<|im_end|>").ids
    engine.answer = [*tokenizer.encode("It is on its way.").ids, engine.end]
    stage.engine = engine
    settings = make_home(tmp_path, stage.url)
    for name, path in zip(("support", "other"), settings.tasks, strict=True):
        path.write_text(TASK.format(name=name))
    shift, real, log = [0.0], time.time, LocalLog(tmp_path / "log")
    monkeypatch.setattr(time, "time", lambda: real() + shift[0])
    monkeypatch.setattr(time, "time_ns", lambda: int((real() + shift[0]) * 1e9))
    children = {
        "/v1/feedback": create_feedback(settings, event_log=log),
        "/": create_inference(settings, event_log=log),
    }
    with serve(make_web(children, Operations({}))) as url:
        tasks = load_tasks(settings.tasks)
        workers = [
            Worker(handler, database, log, clock=time.time)
            for handler in (EpisodesHandler(tasks, time.time), RewardsHandler(tasks, time.time, database))
        ]
        yield BadInputWorld(url, make_key(database), log, database, workers, shift)


@pytest.mark.slow
def test_each_call_of_a_session_has_a_named_outcome(world: BadInputWorld) -> None:
    ask = world.ask
    last = ask("a linear session", ask("a linear session", ASKED).then())
    ask("a linear session", last.then("Thanks."))

    *before, answer = ask("a rewritten last answer", ASKED).messages
    ask("a rewritten last answer", [*before, {**answer, "content": "It is lost."}, {"role": "user", "content": "Oh."}])

    for session, tools in (("reordered tools", TWO[::-1]), ("changed tools", OTHERS)):
        ask(session, ask(session, ASKED, tools=TWO).then(), tools=tools)
    ask("a truncated turn", ask("a truncated turn", ASKED, max_tokens=3).then())

    first = ask("two branches at once", ASKED)
    both = [
        threading.Thread(target=ask, args=("two branches at once", first.then(text))) for text in ("Left?", "Right?")
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    *_, newest = sorted(world.calls["two branches at once"][1:])
    world.calls["two branches at once"][1:] = sorted(world.calls["two branches at once"][1:])
    asked = {item.completion_id: item.open().messages[-1]["content"] for item in world.records(GENERATIONS, Generation)}
    said = {"role": "assistant", "content": "It is on its way."}
    ask("two branches at once", [*first.then(asked[newest]), said, {"role": "user", "content": "Thanks."}])

    ask("a retry", ASKED)
    ask("a retry", ask("a retry", ASKED).then())

    for session in ("a title", "nobody speaks"):
        first = ask(session, ASKED)
        ask(session, TITLED)
        ask(session, first.then())
    second = ask("another task", ask("another task", ASKED).then(), task="other")
    ask("another task", second.then("Thanks."), task="other")
    second = ask("a straggler", ask("a straggler", ASKED).then())

    for session in OUTCOMES.keys() - {"nobody speaks"}:
        world.speak(session)
    world.later(5.0)
    learned = world.experiences()
    world.later(70.0)
    assert {key: item.revision for key, item in learned.items()} == {
        key: item.revision for key, item in world.experiences().items() if key in learned
    }
    ask("a straggler", second.then("Still there?"))
    world.later(70.0)
    assert world.outcomes() == OUTCOMES


@pytest.mark.slow
def test_a_session_without_end_closes_its_calls_one_by_one(world: BadInputWorld) -> None:
    said = world.ask("endless", ASKED)
    for _ in range(4):
        world.later(40.0)
        said = world.ask("endless", said.then())
    world.later(1.0)
    assert world.outcomes() == {"endless": ["first: unlabelled silence", ": unlabelled silence", *[": pending"] * 3]}
    world.speak("endless")
    world.later(5.0)
    assert world.outcomes()["endless"][2:] == [": learned"] * 3
    assert {item.reward for item in world.experiences().values() if item.reward is not None} == {1.0}


@pytest.mark.slow
def test_a_stolen_or_ended_session_answers_nobody_and_logs_nothing(world: BadInputWorld) -> None:
    made = world.post("/v1/sessions", {"task": "support", "budget": {"calls": 9}}).json()
    other = world.post("/v1/sessions", {"task": "support"}).json()
    url, body = f"/sessions/{made['id']}", {"model": "demo", "messages": ASKED}
    world.ask(made["id"], ASKED, url=url)
    refused = [
        world.post(f"{url}/v1/chat/completions", body, other["key"]),
        world.post(f"{url}/v1/chat/completions", body, made["key"][:-1] + ("1" if made["key"][-1] == "0" else "0")),
        world.post(f"{url}/v1/chat/completions", {**body, "metadata": {"task": "other"}}),
        world.post(f"{url}/v1/chat/completions", {**body, "metadata": {"session_id": "else"}}),
    ]
    httpx.delete(f"{world.url}/v1/sessions/{made['id']}", headers={"authorization": f"Bearer {world.key}"}, timeout=9.0)
    refused += [
        world.post(f"{url}/v1/chat/completions", body),
        world.post("/v1/chat/completions", body, made["key"]),
    ]
    errors = [
        (answer.status_code, answer.json()["error"]["code"], answer.json()["error"]["param"]) for answer in refused
    ]
    assert errors == [
        (403, "other_session", "session_id"),
        (401, errors[1][1], None),
        (400, "invalid_request", "metadata.task"),
        (400, "invalid_request", "metadata.session_id"),
        (403, "session_over", None),
        (403, "session_over", None),
    ]
    thief = make_key(world.database, tenant="thief")
    said = world.post(f"{url}/v1/chat/completions", {**body, "metadata": {"task": "support"}}, thief)
    assert said.status_code == 200, "a session of its own, of the same name"
    item = {"session_id": made["id"], "name": "solved", "value": False, "submitter": {"id": "u"}}
    assert world.post("/v1/feedback", item, thief).status_code == 202
    world.speak(made["id"])
    world.later(5.0)
    assert world.outcomes() == {made["id"]: ["first: learned"]}
    rewards = {(each.tenant, each.reward) for each in world.experiences().values()}
    assert rewards == {("default", 1.0), ("thief", 0.0)}


@pytest.mark.slow
def test_sessions_of_one_group_are_compared_with_each_other(world: BadInputWorld) -> None:
    for number, value in enumerate((True, False, False)):
        made = world.post("/v1/sessions", {"task": "support", "group": "issue 812"}).json()
        said = world.ask(made["id"], ASKED, url=f"/sessions/{made['id']}")
        for _ in range(number):
            said = world.ask(made["id"], said.then(), url=f"/sessions/{made['id']}")
        world.speak(made["id"], value=value)
    world.later(5.0)
    found = sorted(world.experiences().values(), key=lambda item: -(item.reward or 0.0))
    assert [item.share.group for item in found if item.share] == ["issue 812"] * 6
    values = advantages_of(found, MovingAverageTracker(initial=0.1), TrainingSettings(whiten=False)).values
    assert values == pytest.approx([1.0] + [-0.5] * 5)
