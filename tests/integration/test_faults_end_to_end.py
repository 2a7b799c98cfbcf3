"""Who was at fault, all the way to the weights: real episodes, rewards and trainer over the embedded log, no servers.

Two published mistakes are not repeated. A model fault that is dropped from training teaches the policy to make it, since
nothing says that it is bad. An infra fault that counts as 0 teaches it to avoid whatever it was doing at the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sqlalchemy import func, select

from contracts.ledger import generation_counts
from contracts.records import Experience, Generation, Submitter, decode, pack_floats, pack_ids
from contracts.sampling import Span
from contracts.segments import whole
from contracts.tables import score, training_step
from contracts.tasks import Task
from contracts.topics import EXPERIENCES, GENERATIONS, SIGNALS
from pipelines.episodes.handler import EpisodesHandler
from pipelines.training.worker import Trainer
from policy.logprobs import TokenScorer
from rewards.worker import RewardsHandler
from runtime.log.answers import with_answers
from runtime.log.outbox import message
from runtime.worker import Worker
from tests.fakes import BOOKING_TASK, a_generation, a_signal, everything
from tests.ledger_states import generation_states
from tests.unit.pipelines.training.builders import VOCABULARY, random_key, tiny_model
from tests.unit.pipelines.training.world import POLICY, World, weights_of

BATCH, ROUNDS = 8, 3
NUM_FAILING = 81
"""Beside 8 that are scored: 91%, as in the incident."""
GOOD, MALFORMED, UNLUCKY = '{"party":2}', "a table for two, gladly", '{"party":2,"grader":"breaks"}'


GRADER = """
def grade(completions, **kwargs):
    if any("breaks" in str(completion) for completion in completions):
        raise ConnectionError("the server behind this grader does not answer")
    return [1.0] * len(completions)
"""
"""Somebody's own reward function; a batch that raises is tried again one by one."""


class Loop:
    """Episodes, rewards and training over one home; the task has a gate that breaks on some answers."""

    def __init__(self, home: Path) -> None:
        self.world = World.new(home, batch_size=BATCH, publish_samples=BATCH)
        tasks = {"booking": task_with_grader(home)}
        self.rewards = RewardsHandler(tasks, self._clock)
        self.workers: list[Worker[Any]] = [
            Worker(handler, self.world.database, self.world.log, clock=self._clock)
            for handler in (EpisodesHandler(tasks, self._clock), self.rewards)
        ]
        self.trainer: Trainer = self.world.start()

    def close(self) -> None:
        self.rewards.close()
        self.world.close()

    def _clock(self) -> float:
        return self.world.now

    def learn(self, *turns: Generation, accepted: bool = True) -> None:
        """Users accept (or not) all of these answers, malformed ones too, and whatever follows from that happens."""
        self.world.log.append([message(GENERATIONS, turn.key, turn) for turn in turns])
        # Everybody speaks once: what one person may say in all is another matter.
        signals = [a_signal(turn, value=accepted, submitter=Submitter(id=turn.key)) for turn in turns]
        self.world.log.append([message(SIGNALS, signal.key, signal) for signal in signals])
        for _ in range(2):
            self.work()
        self.world.turns(self.trainer, 4)
        self.work()

    def work(self) -> None:
        for worker in self.workers:
            while worker.step():
                pass

    def finish(self) -> None:
        self.trainer.checkpoint()
        self.work()

    def experiences(self) -> list[Experience]:
        found = with_answers(self.world.log, self.world.database, everything(self.world.log, EXPERIENCES))
        return [whole(decode(Experience, record.value), record.answer) for record in found]

    def figures(self) -> list[dict[str, Any]]:
        with self.world.database.snapshot() as connection:
            statement = select(training_step.c.metrics).order_by(training_step.c.step)
            return list(connection.execute(statement).scalars())


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    loop = Loop(tmp_path / "home")
    yield loop
    loop.close()


def task_with_grader(folder: Path) -> Task:
    file = folder / "grader.py"
    file.write_text(GRADER)
    content = BOOKING_TASK.model_dump(mode="json", exclude_unset=True)
    content["verifiers"].append({"name": "own", "kind": "function", "config": {"path": f"{file}:grade"}})
    return Task.model_validate(content)


def answers(random: np.random.Generator, text: str, count: int, version: int = 0) -> list[Generation]:
    """Random tokens with the log-probs that the tiny base gives them."""
    scorer, found = TokenScorer(tiny_model()), []
    for _ in range(count):
        completion = random.integers(1, VOCABULARY, 4).tolist()
        input_ids = torch.tensor([[1, 2, 3, *completion]])
        mask_BT = torch.tensor([[False, False, True, True, True, True]])  # noqa: N806 letters of its dimensions
        with torch.no_grad():
            log_probs = scorer(input_ids, torch.ones_like(input_ids), mask_BT, 1.0).log_probs_BT[mask_BT]
        found.append(
            a_generation(
                text,
                completion_id=random_key(random).rpartition(":")[0],
                policy=POLICY,
                completion_ids=pack_ids(completion),
                logprobs=pack_floats(log_probs.tolist()),
                spans=(Span(0, version),),
            )
        )
    return found


def log_prob(trainer: Trainer, items: list[Experience]) -> float:
    """Summed over the sampled tokens of all of them, under the current weights."""
    return float(trainer.learner.trainee.log_probs(items).found_S.sum())


@pytest.mark.slow
def test_a_malformed_answer_is_unlearned_however_much_users_like_it(loop: Loop) -> None:
    random = np.random.default_rng(0)
    good, malformed = answers(random, GOOD, BATCH // 2), answers(random, MALFORMED, BATCH // 2)
    loop.learn(*good, *malformed)

    bad = {turn.key for turn in malformed}
    found = loop.experiences()
    assert {(item.reward, item.status, item.fault) for item in found if item.key in bad} == {(0.0, "scored", "model")}
    assert {(item.reward, item.fault) for item in found if item.key not in bad} == {(1.0, "none")}
    loop.finish()
    with loop.world.database.snapshot() as connection:
        assert {state for _, state in generation_states(connection).values()} == {"trained"}
    groups = [[item for item in found if (item.key in bad) is is_bad] for is_bad in (True, False)]
    logged = [sum(float(np.frombuffer(item.segments[0].logprobs, "<f4").sum()) for item in group) for group in groups]
    now = [log_prob(loop.trainer, group) for group in groups]
    assert loop.trainer.state.step == 1
    assert now[0] < logged[0] - 0.5, "malformed answers are less likely than when they were sampled"
    assert now[1] > logged[1] + 0.5


@pytest.mark.slow
def test_a_grader_that_breaks_on_nine_of_ten_changes_nothing_to_the_bit(tmp_path: Path) -> None:
    quiet, broken = Loop(tmp_path / "quiet"), Loop(tmp_path / "broken")
    random, chance = np.random.default_rng(1), np.random.default_rng(2)
    for version in range(ROUNDS):
        healthy = answers(random, GOOD, BATCH // 2, version) + answers(random, MALFORMED, BATCH // 2, version)
        failing = answers(chance, UNLUCKY, NUM_FAILING, version)
        mixed = [*healthy, *failing]
        quiet.learn(*healthy)
        broken.learn(*(mixed[place] for place in chance.permutation(len(mixed))))
    for loop in (quiet, broken):
        loop.finish()

    assert quiet.trainer.state.step == broken.trainer.state.step == ROUNDS
    expected = weights_of(quiet.trainer)
    assert all(torch.equal(value, expected[name]) for name, value in weights_of(broken.trainer).items())
    assert broken.trainer.learner.tracker.to_json() == quiet.trainer.learner.tracker.to_json()
    assert broken.trainer.learner.guard_history.norms == quiet.trainer.learner.guard_history.norms
    with broken.world.database.snapshot() as connection:
        states = generation_states(connection)
        assert generation_counts(connection).unexplained == 0
        rows = connection.execute(
            # A slow machine sees windows end: an answer is then scored twice, as two revisions.
            select(score.c.version, score.c.status, func.count(score.c.key.distinct())).group_by(
                score.c.version, score.c.status
            )
        )
        by_version = {(version, status): num for version, status, num in rows}
    assert Counter(state for _, state in states.values()) == {
        "trained": ROUNDS * BATCH, "unscored": ROUNDS * NUM_FAILING
    }  # fmt: skip
    assert {key for key, (_, state) in states.items() if state == "trained"} == set(quiet.trainer.state.fates)

    assert {item.fault for item in broken.experiences() if item.status == "unscored"} == {"infra"}

    # What changed nothing is seen all the same: by version, in the scores and in the trainer's figures.
    for version in range(ROUNDS):
        missing = by_version[version, "unscored"] / (by_version[version, "unscored"] + by_version[version, "scored"])
        assert missing == pytest.approx(0.91, abs=0.001)
    figures = broken.figures()
    assert all(set(item["null_mass_of_version"]) <= {"0", "1", "2"} for item in figures)
    assert figures[0]["null_mass_of_version"]["0"] > 0.5
    assert [item["null_mass"] for item in quiet.figures()] == [0.0] * ROUNDS
    for loop in (quiet, broken):
        loop.close()


@pytest.mark.slow
def test_were_they_zeros_they_would_have_been_learned(loop: Loop) -> None:
    """The same failures as the model's fault: what the test above would look like if it could not fail."""
    random = np.random.default_rng(1)
    healthy = answers(random, GOOD, BATCH // 2)
    loop.learn(*healthy, *answers(random, MALFORMED, NUM_FAILING))
    assert loop.trainer.state.step > 1
    assert loop.trainer.learner.tracker.expect("booking", 0) < 0.2
