"""Where masters fit, as a trainer that starts finds it. Figures are those of cards and hosts that one can rent."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.errors import InvalidSettings
from contracts.memory.shapes import ModelShape, shape_of
from contracts.memory.training import CARD_BYTES, HOST_BYTES, TrainingWay, memory_of, passes_of
from pipelines.training.learning.trainees import way_now
from pipelines.training.settings import AdapterSettings, TrainingSettings

GB = 10**9
ON_DEVICE, IN_HOST, TIGHT = TrainingWay(), TrainingWay(is_host=True), TrainingWay(is_host=True, is_tight=True)
SIZES = {"num_hidden_layers": 1, "hidden_size": 64, "vocab_size": 64}
NO_ANCHOR = {"kl_coefficient": 0.0, "mismatch_samples": 0}


def of_billions(count: float) -> ModelShape:
    return shape_of(SIZES, {"model.layers.0.up_proj.weight": (int(count * 250_000), 4000)})


def at_start(billions: float, card: int, host: int, **settings: Any) -> TrainingWay:
    training = TrainingSettings(max_tokens=1, **settings).model_dump()
    return way_now(of_billions(billions), training, card * GB, host * GB, "cuda")


@pytest.mark.parametrize(
    ("billions", "card", "host", "settings", "expected"),
    [
        (1.5, 80, 64, {}, ON_DEVICE),
        (1.5, 24, 64, {}, IN_HOST),  # 30 GB on the device
        (8, 80, 200, {}, IN_HOST),  # 64 GB
        (8, 60, 200, {}, TIGHT),
        (8, 141, 200, {}, IN_HOST),
        (14, 80, 330, NO_ANCHOR, TIGHT),  # on paper: 56 GB, and 322 of host memory
        (8, 150, 200, NO_ANCHOR, ON_DEVICE),  # 144 GB; with a frozen copy 160
        (8, 150, 200, {"precision": "float32"}, ON_DEVICE),  # 144 GB: weights are the masters
        (8, 60, 1, {"adapter": AdapterSettings()}, TrainingWay(8)),
    ],
)
def test_masters_go_where_they_fit(
    billions: float, card: int, host: int, settings: dict[str, Any], expected: TrainingWay
) -> None:
    assert at_start(billions, card, host, **settings) == expected


@pytest.mark.parametrize(
    ("billions", "card", "host", "settings", "says"),
    [
        (
            8,
            80,
            200,
            {"masters": "device"},
            r"masters on the device .* cuda has 80\.6 GB; what fits: .*masters = \"host\";",
        ),
        (
            8,
            80,
            100,
            {},
            r"of the host's memory it takes 184\.7 GB, and 100\.7 GB are there; what fits: \[training\] adapter",
        ),
        (14, 80, 330, {}, 'masters = "host", kl_coefficient = 0 and mismatch_samples = 0'),
        (70, 80, 300, {}, "no way of training fits"),
        (8, 30, 200, {"adapter": AdapterSettings(), "precision": "float32"}, r"in float32 takes 32\.\d GB"),
    ],
)
def test_a_model_that_fits_nowhere_is_refused_with_what_would(
    billions: int, card: int, host: int, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidSettings, match=says):
        at_start(billions, card, host, **settings)


@pytest.mark.parametrize("way", [ON_DEVICE, IN_HOST, TIGHT])
def test_what_is_computed_before_a_start_is_what_it_then_takes(way: TrainingWay) -> None:
    training = TrainingSettings(masters="host" if way.is_host else "device").model_dump()
    need = memory_of(of_billions(1), way, passes_of(training))
    free = need.card - CARD_BYTES, need.host - HOST_BYTES
    assert way_now(of_billions(1), training, *free, "cuda") == way
    for less in ((free[0], free[1] - 1), (free[0] - 1, free[1])):
        try:
            assert way_now(of_billions(1), training, *less, "cuda") == TIGHT != way
        except InvalidSettings:
            assert less[1] < free[1] or way != IN_HOST
