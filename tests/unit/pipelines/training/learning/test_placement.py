"""Where masters fit. Figures are those of cards and hosts that one can rent."""

from __future__ import annotations

from pathlib import Path

import pytest

from contracts.errors import InvalidSettings, NotFound
from pipelines.training.learning.placement import Placement, placement
from pipelines.training.learning.trainees import fitting
from pipelines.training.settings import TrainingSettings
from tests.unit.pipelines.training.builders import tiny_model

GB = 10**9
ON_DEVICE, IN_HOST, TIGHT = Placement("device"), Placement("host"), Placement("host", "bfloat16")


@pytest.mark.parametrize(
    ("billions", "card", "host", "has_reference", "expected"),
    [
        (1.5, 80, 64, True, ON_DEVICE),
        (1.5, 24, 64, True, IN_HOST),  # 30 GB on the device
        (8, 80, 200, True, IN_HOST),  # 64 GB
        (8, 60, 200, True, TIGHT),
        (8, 141, 200, True, IN_HOST),
        (14, 80, 300, False, TIGHT),  # on paper: 56 GB, and 252 of host memory
    ],
)
def test_masters_go_where_they_fit(
    billions: float, card: int, host: int, has_reference: bool, expected: Placement
) -> None:
    found = placement(
        int(billions * GB), card * GB, host * GB, has_reference=has_reference, activation_bytes=int(0.5 * GB)
    )
    assert found == expected


@pytest.mark.parametrize(
    ("billions", "card", "host", "wanted", "says"),
    [
        (8, 80, 200, "device", "do not fit into the 80 GB"),  # what was asked for is not replaced
        (8, 80, 100, "auto", "144 GB in host memory"),
        (14, 80, 300, "auto", "kl_coefficient = 0 with mismatch_samples = 0 would fit"),
        (70, 80, 300, "auto", r"adapter = \{ rank = 8 \}"),
    ],
)
def test_a_model_that_fits_nowhere_is_refused_with_what_would(
    billions: int, card: int, host: int, wanted: str, says: str
) -> None:
    with pytest.raises(InvalidSettings, match=says):
        placement(billions * GB, card * GB, host * GB, wanted)  # type: ignore[arg-type]


def test_float32_passes_have_float32_gradients_and_no_second_weights() -> None:
    assert ON_DEVICE.bytes_per_parameter(is_reduced=False) == (16, 0)
    assert ON_DEVICE.bytes_per_parameter() == (18, 0)
    assert IN_HOST.bytes_per_parameter() == (6, 12)
    assert TIGHT.bytes_per_parameter() == (4, 12)
    with pytest.raises(InvalidSettings):
        placement(8 * GB, 50 * GB, 300 * GB, is_reduced=False)


def test_only_the_configuration_of_a_checkpoint_is_read(tmp_path: Path) -> None:
    tiny_model().config.save_pretrained(tmp_path)  # no weights are there
    count = sum(parameter.numel() for parameter in tiny_model().parameters())
    settings = TrainingSettings(max_tokens=1)
    found = [fitting(str(tmp_path), settings, size * count, GB, is_reduced=True).masters for size in (25, 20 - 4)]
    assert found == ["device", "host"]
    with pytest.raises(InvalidSettings, match="do not fit"):
        fitting(str(tmp_path), settings, 5 * count, GB, is_reduced=True)
    with pytest.raises(NotFound):
        fitting(str(tmp_path / "none"), settings, GB, GB, is_reduced=True)
