"""A trainer beside users: it waits for them, but not without end; its micro-batches are as short as the budget; and no number changes."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from pipelines.training.checkpoints.plans import digest_of
from pipelines.training.known.experiences import row_lengths
from pipelines.training.learning.learner import Learner
from pipelines.training.learning.short_batches import FEWEST_TOKENS, TRIES, keep_short, rows_of_length
from pipelines.training.learning.stages import Stages
from pipelines.training.learning.trainee import GradientRows, GradientSums, Trainee
from pipelines.training.learning.users_first import LEAST_SHARE, UsersFirst
from pipelines.training.settings import AdapterSettings, TrainingSettings
from pipelines.training.shards.trainee import GroupTrainee
from tests.unit.pipelines.training.builders import a_learner, random_experience, tiny_model
from tests.unit.pipelines.training.fake_trainee import UnigramTrainee

CPU = torch.device("cpu")


class Time:
    """A clock that passes `each` seconds per look."""

    def __init__(self, each: float) -> None:
        self.now, self.each = 0.0, each

    def __call__(self) -> float:
        self.now += self.each
        return self.now


class Counted(UsersFirst):
    """Counts what it is asked."""

    def __init__(self) -> None:
        super().__init__(lambda: 0, threading.Event(), CPU)
        self.num_asked, self.num_turns = 0, 0

    def wait(self) -> None:
        self.num_asked += 1

    @contextmanager
    def turn(self) -> Iterator[None]:
        self.num_turns += 1
        yield


class Slow(UnigramTrainee):
    """A micro-batch takes so many seconds per token. Its context has 64 tokens, its budget 1,024."""

    def __init__(self, seconds_of_token: float, fails: Sequence[Exception] = ()) -> None:
        super().__init__()
        self.each, self.longest_rows, self.fails, self.num_processes = seconds_of_token, 0, [*fails], 1
        self.first = UsersFirst(lambda: 0, threading.Event(), CPU)

    def backward(self, rows: GradientRows) -> GradientSums:
        found = super().backward(rows)
        lengths = row_lengths(rows.experiences)
        self.longest_rows = max(self.longest_rows, *lengths)
        self.first.seconds = self.each * sum(lengths) / self.num_processes
        return found

    def machine(self) -> dict[str, str]:
        return super().machine() | {"processes": str(self.num_processes)}


def test_a_micro_batch_waits_while_users_wait() -> None:
    left = [1, 1, 1, 0, 7]
    users = UsersFirst(lambda: left.pop(0), threading.Event(), CPU, Time(0.001))
    users.seconds = 1.0
    users.wait()
    assert left == [7]


def test_users_who_never_pause_leave_a_twentieth() -> None:
    clock = Time(0.1)
    users = UsersFirst(lambda: 1, threading.Event(), CPU, clock, clock)
    with users.turn():
        clock.now += 0.9
    took, before = users.seconds, clock.now
    users.wait()
    assert took / (took + clock.now - before) == pytest.approx(LEAST_SHARE, rel=0.02)


def test_no_wait_is_longer_than_a_minute() -> None:
    clock = Time(1.0)
    users = UsersFirst(lambda: 1, threading.Event(), CPU, clock)
    users.seconds = 600.0
    users.wait()
    assert clock.now < 65


def test_a_process_that_shall_end_waits_for_nobody() -> None:
    stop = threading.Event()
    stop.set()
    clock = Time(0.001)
    users = UsersFirst(lambda: 1, stop, CPU, clock)
    users.seconds = 1e9
    users.wait()
    assert clock.now < 1


@pytest.mark.parametrize(
    "changes", [{}, {"adapter": AdapterSettings(rank=2)}, {"loss": "truncated"}, {"precision": "bfloat16"}]
)
def test_waiting_changes_no_bit(changes: dict[str, Any]) -> None:
    settings = TrainingSettings(learning_rate=1e-2, max_tokens=24, divergence_bound=math.inf)
    random = np.random.default_rng(2)
    items = [random_experience(random, reward=float(number % 2)) for number in range(6)]
    weights, digests, figures = [], [], list[dict[str, Any]]()
    busy = iter([1, 0] * 1000)
    for users in (None, UsersFirst(lambda: next(busy), threading.Event(), CPU, Time(0.001))):
        learner = a_learner(tiny_model(), settings, **changes)
        learner.trainee.users = users
        results = [learner.step(items, [1.0] * len(items), {}) for _ in range(2)]
        digests.append([digest_of(result) for result in results])
        weights.append([*learner.trainee.masters()[0].values()])
        figures += [result.metrics for result in results]
    untrained = a_learner(tiny_model(), settings, **changes).trainee.masters()[0]
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(weights[0], untrained.values(), strict=True))
    assert digests[0] == digests[1]
    assert ["seconds_users" in each for each in figures] == [False, False, True, True]


@pytest.mark.parametrize(("loss", "num_passes"), [("vcpo", 1), ("m2po", 2)])
def test_every_micro_batch_of_a_step_is_asked_for(loss: str, num_passes: int) -> None:
    users, random = Counted(), np.random.default_rng(3)
    items = [random_experience(random) for _ in range(5)]
    learner = a_learner(
        tiny_model(), TrainingSettings(max_tokens=1, kl_coefficient=0.0, divergence_bound=math.inf, loss=loss)
    )
    learner.trainee.users = users
    result = learner.step(items, [1.0] * len(items), {})
    assert not result.skipped
    assert users.num_asked == users.num_turns
    assert users.num_asked >= (num_passes + 1) * len(items), "those of the gradient, and those that measure the step"


def test_of_several_processes_rank_0_asks() -> None:
    share: Any = UnigramTrainee()
    group: Any = None
    trainee: Trainee = GroupTrainee(share, group)
    assert trainee.users is None
    trainee.users = Counted()
    assert share.users is trainee.users


def test_a_stage_inside_another_is_counted_once() -> None:
    stages, began = Stages(), time.monotonic()
    with stages.stage("optimizer"), stages.stage("users"):
        time.sleep(0.02)
    assert 0.02 <= sum(stages.take().values()) <= time.monotonic() - began


def sized(trainee: Slow, seconds: float) -> tuple[int, list[Any]]:
    learner = Learner(trainee, TrainingSettings())
    with capture_logs() as lines:
        keep_short(learner, trainee.first, seconds)
    assert trainee.logits_V.grad is None
    return learner.budget.most, [line for line in lines if line["log_level"] == "warning"]


@pytest.mark.parametrize(("seconds", "most"), [(0.1, 64), (0.128, 128), (0.5, 256), (100.0, 1024)])
def test_a_micro_batch_has_as_many_tokens_as_fit_into_the_budget(seconds: float, most: int) -> None:
    trainee = Slow(0.001)
    found, warnings = sized(trainee, seconds)
    assert (found, trainee.longest_rows) == (most, 64)
    assert warnings == []


def test_processes_that_share_the_rows_are_measured_with_as_many_tokens_each() -> None:
    trainee = Slow(0.001)
    trainee.num_processes = 3
    assert sized(trainee, 0.128)[0] == 128


def test_a_budget_below_a_row_of_the_context_says_how_long_that_takes() -> None:
    found, (warning,) = sized(Slow(0.001), 0.05)
    assert found == 32
    assert warning["tokens"] == 64
    assert warning["takes"] == pytest.approx(64.0)


def test_a_budget_below_every_micro_batch_is_said_and_training_goes_on() -> None:
    found, warnings = sized(Slow(0.001), 0.001)
    assert found == FEWEST_TOKENS
    assert [round(warning["takes"]) for warning in warnings] == [32, 64]


def test_what_does_not_fit_into_memory_is_too_long() -> None:
    full = [torch.OutOfMemoryError("full"), MemoryError()]
    assert sized(Slow(0.0, full * TRIES), 1.0)[0] == FEWEST_TOKENS


def test_a_moment_in_which_the_machine_is_busy_makes_nothing_small() -> None:
    assert sized(Slow(0.0, [MemoryError()] * (TRIES - 1)), 1.0)[0] == 1024


def test_another_error_is_not_hidden() -> None:
    with pytest.raises(RuntimeError, match="no kernel"):
        sized(Slow(0.0, [RuntimeError("no kernel")]), 1.0)


def test_the_rows_that_are_measured_share_nothing_and_have_every_token() -> None:
    rows = rows_of_length(150, 64, 64)
    assert row_lengths(rows) == [64, 64, 22]
    assert len({row.segments[0].token_ids[:4] for row in rows}) == 3
    assert [row.segments[0].loss_mask.count(1) for row in rows] == [63, 63, 21]
