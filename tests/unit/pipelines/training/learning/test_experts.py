"""Recorded experts on their way to a gradient: what is refused, and how rows carry them."""

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from contracts.packing import pack_experts
from contracts.records import Experience, Segment
from contracts.sampling import ExpertShape
from pipelines.training.known.lineage import VersionTree
from pipelines.training.learning.micro_batches import micro_batches
from pipelines.training.learning.trainee import GradientRows
from pipelines.training.learning.trainees import trainee_of
from pipelines.training.samples.refusals import Refusal, TrainingLimits, refuse
from pipelines.training.settings import AdapterSettings, TrainingSettings
from policy.routing import ABSENT, NO_REPLAY, Routing
from tests.each_case import each_case
from tests.models import tiny_model
from tests.unit.pipelines.training.builders import experience, segment

ROUTING = Routing(layers=(1, 2), num_hidden_layers=3, num_chosen=2, num_experts=300)
UNKNOWN = Routing(problem="the experts of this model are of a kind that is not known")
PLAIN = segment([5, 6, 7], [8, 9], [-0.5, -1.5])
CHOICES = np.stack([np.arange(8).reshape(4, 2), np.arange(8).reshape(4, 2) + 290], axis=1).astype("<u2")


def routed(choices: np.ndarray, shape: tuple[int, int, int] | None = None) -> Segment:
    claimed = ExpertShape(*(shape or choices.shape))
    return msgspec.structs.replace(PLAIN, experts=pack_experts(choices.tobytes()), expert_shape=claimed)


def refused(item: Experience, routing: Routing = ROUTING, *, needs: bool = False) -> Refusal | None:
    limits = TrainingLimits(
        max_length=8, vocabulary_size=48, policy="tiny", routing=routing,
        needs_experts=needs,
    )  # fmt: skip
    return refuse(item, VersionTree((0,)), limits, now=1000.0)


def test_recorded_experts_are_trained_and_so_are_samples_without() -> None:
    assert refused(experience(routed(CHOICES))) is None
    assert refused(experience(PLAIN)) is None
    assert refused(experience(routed(CHOICES)), needs=True) is None
    assert refused(experience(PLAIN), needs=True) == Refusal("off_support", "no_experts")
    assert refused(experience(routed(CHOICES), PLAIN), needs=True) == Refusal("off_support", "no_experts")


def changed(place: tuple[int, int, int], value: int) -> np.ndarray:
    choices = CHOICES.copy()
    choices[place] = value
    return choices


@each_case(
    "bad",
    [
        routed(CHOICES[:3]),
        routed(CHOICES, (5, 2, 2)),
        routed(CHOICES, (4, 4, 1)),
        routed(CHOICES, (-4, -2, 2)),
        routed(CHOICES, (2**62, 2, 2)),
        routed(CHOICES[:, :1]),
        routed(CHOICES[..., :1]),
        routed(changed((3, 1, 0), 300)),
        routed(changed((0, 0, 0), 1)),
        msgspec.structs.replace(PLAIN, experts=b"12"),
        msgspec.structs.replace(PLAIN, experts=b"", expert_shape=ExpertShape(4, 2, 2)),
        msgspec.structs.replace(routed(CHOICES), experts=pack_experts(CHOICES.tobytes())[:-1]),
        msgspec.structs.replace(routed(CHOICES), experts=CHOICES.tobytes()),
        msgspec.structs.replace(routed(CHOICES), experts=pack_experts(bytes(65 * 2**20))),
    ],
)
def test_experts_that_the_model_cannot_have_chosen_are_refused_by_name(bad: Segment) -> None:
    assert refused(experience(PLAIN, bad)) == Refusal("filtered", "malformed_experts")


def test_experts_for_a_dense_model_are_refused_and_those_for_an_unknown_kind_are_left_alone() -> None:
    assert refused(experience(routed(CHOICES)), NO_REPLAY) == Refusal("filtered", "malformed_experts")
    assert refused(experience(routed(CHOICES)), UNKNOWN) is None


def test_rows_carry_their_experts_and_say_where_none_are_known() -> None:
    longer = segment([5, 6, 7, 1, 2], [8, 9], [-0.5, -1.5])
    [batch] = micro_batches([experience(longer), experience(routed(CHOICES))], max_tokens=100, routing=ROUTING)

    assert batch.experts_BLMK is not None
    assert batch.experts_BLMK.shape == (2, 7, 2, 2)
    assert (batch.experts_BLMK[0] == ABSENT).all()
    np.testing.assert_array_equal(batch.experts_BLMK[1, :4].numpy(), CHOICES.astype(np.int16))
    assert (batch.experts_BLMK[1, 4:] == ABSENT).all()


def test_a_record_of_all_layers_is_cut_to_those_with_experts() -> None:
    everything = np.zeros((4, 3, 2), "<u2")
    everything[:, 1:] = CHOICES
    [batch] = micro_batches([experience(routed(everything))], max_tokens=100, routing=ROUTING)

    assert batch.experts_BLMK is not None
    np.testing.assert_array_equal(batch.experts_BLMK[0, :4].numpy(), CHOICES.astype(np.int16))


@pytest.mark.parametrize("options", [{}, {"routing": UNKNOWN}])
def test_nothing_is_carried_where_nothing_is_replayed(options: dict[str, Any]) -> None:
    [batch] = micro_batches([experience(routed(CHOICES))], max_tokens=100, **options)
    assert batch.experts_BLMK is None


@pytest.mark.parametrize("rank", [None, 2])
def test_recomputed_layers_take_the_recorded_experts_though_the_leash_scores_the_base(rank: int | None) -> None:
    found = []
    for recompute in ("never", "always"):
        settings = TrainingSettings(
            adapter=None if rank is None else AdapterSettings(rank=rank), recompute=recompute, kl_coefficient=0.5, loss="truncated"
        )  # fmt: skip
        trainee = trainee_of(tiny_model("qwen3_moe"), settings)
        num_layers, num_chosen = len(trainee.routing.layers), trainee.routing.num_chosen
        chosen = np.argsort(np.random.default_rng(0).random((4, num_layers, trainee.routing.num_experts)), axis=-1)
        trainee.backward(
            GradientRows([experience(routed(chosen[..., :num_chosen].astype("<u2")))], [1.0], [1.0], are_new=True)
        )
        found.append([weight.grad for _, weight in trainee.optimizer.stepped()])
    for gradient, again in zip(*found, strict=True):
        torch.testing.assert_close(again, gradient, atol=1e-6, rtol=1e-4)
