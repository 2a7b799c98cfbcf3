"""Hard deaths in a step: its samples are known, deadly ones are left out, good ones are trained."""

import os
from pathlib import Path

import numpy as np
import pytest

from pipelines.training.samples.attempts import Attempts, survives
from tests.forked import ended, start
from tests.unit.pipelines.training.breaking import DEADLY, answer, breaking_model
from tests.unit.pipelines.training.world import World


def train(home: Path, device: str) -> None:
    """A trainer's whole life, in a process that its samples may kill."""
    world = World(home, batch_size=4, publish_samples=10**6)
    world.make_model = breaking_model
    trainer = world.start()
    if device == "accelerator":
        trainer.learner.trainee.can_fork = False
    for _ in range(8):
        trainer.turn()
    trainer.checkpoint()
    world.close()


def restarts_of(home: Path, device: str) -> int:
    """Start the trainer until it ends by itself; returns the number of restarts."""
    for number in range(6):
        if ended(start(train, home, device, output=home / "trainer.txt")) == 0:
            return number
    raise AssertionError("it never ends by itself")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "deadly", "most"),
    [("cpu", {1, 3, 6, 9}, 1), ("accelerator", {2}, 2), ("accelerator", {7}, 2)],
)
def test_a_row_that_kills_the_process_costs_at_most_two_restarts(
    tmp_path: Path, device: str, deadly: set[int], most: int
) -> None:
    world = World.new(tmp_path / "home")
    random = np.random.default_rng(0)
    items = [answer(random, token=DEADLY if number in deadly else None) for number in range(10)]
    world.add(*items)
    world.close()
    assert 1 <= restarts_of(tmp_path / "home", device) <= most
    world = World(tmp_path / "home")
    world.make_model = breaking_model
    fates = world.start().state.fates
    assert {item.key: (fates[item.key].state, fates[item.key].reason) for item in items} == {
        item.key: ("quarantined", "step_error") if number in deadly else ("trained", "")
        for number, item in enumerate(items)
    }
    assert not (tmp_path / "home" / "attempt.json").exists()
    world.close()


def test_a_step_that_ends_leaves_nothing(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path / "attempt.json")
    attempts.begin(1, 2, ["a", "b"])
    assert (tmp_path / "attempt.json").exists()
    attempts.end()
    assert list(tmp_path.iterdir()) == []
    assert not Attempts(tmp_path / "attempt.json").has_died


def test_who_was_in_a_step_that_killed_is_suspected_and_who_kills_alone_is_condemned(tmp_path: Path) -> None:
    path = tmp_path / "attempt.json"
    Attempts(path).begin(1, 2, ["a", "b", "c"])
    second = Attempts(path)
    assert (second.has_died, second.known.num_deaths, second.known.suspects) == (True, 1, {"a", "b", "c"})
    second.begin(1, 2, ["a"], alone="a")
    second.survived("a")
    second.end()
    second.begin(1, 2, ["b"], alone="b")
    third = Attempts(path)
    assert third.known.condemned == {"b"}
    # The death is explained: the size of the batch was not to blame.
    assert (third.known.num_deaths, third.known.suspects) == (0, {"c"})
    third.survived("c")
    third.end()
    assert Attempts(path).known.condemned == {"b"}
    third.saved({"x"})
    assert path.exists()
    third.saved({"a", "b"})
    assert not path.exists()


def test_a_death_between_steps_blames_nobody_again(tmp_path: Path) -> None:
    path = tmp_path / "attempt.json"
    Attempts(path).begin(1, 2, ["a", "b"])
    assert Attempts(path).known.num_deaths == 1
    again = Attempts(path)
    assert (again.has_died, again.known.num_deaths, again.known.suspects) == (False, 1, {"a", "b"})


def test_deaths_that_nobody_explains_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "attempt.json"
    for number in range(2):
        attempts = Attempts(path)
        assert attempts.known.num_deaths == number
        attempts.survived("a", "b")
        attempts.begin(1, 2, ["a", "b"])
    assert Attempts(path).known.num_deaths == 2


def test_a_file_that_nobody_can_read_suspects_nobody(tmp_path: Path) -> None:
    (tmp_path / "attempt.json").write_bytes(b'{"keys": [tru')
    assert Attempts(tmp_path / "attempt.json").remembered == set()


@pytest.mark.slow
def test_a_copy_of_the_process_dies_for_it() -> None:
    assert survives(lambda: None) is True
    assert survives(lambda: 1 / 0) is True
    assert survives(lambda: os._exit(9)) is False
    assert survives(lambda: os.kill(os.getpid(), 9)) is False
    assert survives(lambda: os.read(os.pipe()[0], 1), 0.2) is None
