"""What rank 0 asks reaches the others as it was, and how a verb ended is the same for all."""

from typing import Any

import msgspec
import numpy as np
import pytest

from contracts.errors import StepsBroken
from pipelines.training.learning.learner import Learner
from pipelines.training.settings import TrainingSettings
from pipelines.training.shards.hands import Backward, BackwardText, Keep, Order, PlainVerb, Verb, follow, perform
from pipelines.training.text.samples import TextSample
from tests.unit.pipelines.training.builders import bits_now, random_experience
from tests.unit.pipelines.training.fake_trainee import UnigramTrainee


class FakeGroup:
    """A group of three of which one process is here. `fails`: which of the others failed."""

    rank, world = 0, 3

    def __init__(self, *fails: int, orders: tuple[Order, ...] = ()) -> None:
        self.fails, self.orders = fails, [msgspec.msgpack.encode(order) for order in orders]

    def all(self, number: int) -> list[int]:
        return [number, *self.fails]

    def receive(self) -> bytes:
        return self.orders.pop(0)

    def ended_by(self, says: str) -> StepsBroken:
        return StepsBroken(says)


class FakeShare(UnigramTrainee):
    versions: dict[int, Any]

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.versions, self.error, self.norms = {}, error, list[float]()

    def clip(self, max_norm: float) -> float:
        if self.error is not None:
            raise self.error
        self.norms.append(max_norm)
        return max_norm


def performed(share: FakeShare, group: FakeGroup, verb: Verb) -> Any:
    return perform(share, group, verb)  # type: ignore[arg-type]  # fakes


def test_what_no_rank_fails_at_is_returned() -> None:
    assert performed(FakeShare(), FakeGroup(0, 0), PlainVerb("clip", (2.0,))) == 2.0


def test_what_every_rank_fails_at_is_the_ranks_own_error() -> None:
    with pytest.raises(MemoryError):
        performed(FakeShare(MemoryError()), FakeGroup(1, 1), PlainVerb("clip", (2.0,)))


@pytest.mark.parametrize(
    ("error", "fails", "says"),
    [(MemoryError("full"), (0, 0), "rank 0 fail alone in clip: full"), (None, (0, 1), "rank 2 fail alone in clip")],
)
def test_what_only_some_fail_at_ends_the_group(error: Exception | None, fails: tuple[int, ...], says: str) -> None:
    with pytest.raises(StepsBroken, match=says):
        performed(FakeShare(error), FakeGroup(*fails), PlainVerb("clip", (2.0,)))


def test_a_rank_does_what_it_is_asked_with_the_budget_of_rank_0_until_the_end() -> None:
    share = FakeShare()
    end = msgspec.msgpack.decode(msgspec.msgpack.encode({"max_tokens": 0, "verb": {"type": "LastOrder"}}), type=Order)
    orders = Order(32, PlainVerb("clip", (1.0,))), Order(16, PlainVerb("clip", (2.0,))), end
    follow(share, FakeGroup(0, 0, orders=orders))  # type: ignore[arg-type]  # fakes
    assert share.norms == [1.0, 2.0]
    assert share.budget.current == 16


def test_samples_text_and_bits_arrive_as_they_were_sent() -> None:
    rows = Backward([random_experience(np.random.default_rng(0))], [0.5], [3.0], are_new=True)
    text = TextSample(key="k", revision=1, kind="pair", prompt_ids=(1,), chosen_ids=(2,), rejected_ids=(3,), weight=0.5)
    sent: list[Verb] = [rows, BackwardText([text], {"pair": 1.0}, []), PlainVerb("clip", (float("inf"),))]
    assert [msgspec.msgpack.decode(msgspec.msgpack.encode(Order(1, verb)), type=Order).verb for verb in sent] == sent
    share, (tensor,) = FakeShare(), bits_now(Learner(UnigramTrainee(), TrainingSettings())).values()
    performed(share, FakeGroup(0, 0), Keep.of(7, {"a": tensor}))
    assert share.versions[7]["a"].shape == tensor.shape
    assert (share.versions[7]["a"].data == tensor.data).all()
