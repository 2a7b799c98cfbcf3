import json
import math
from pathlib import Path

import pytest

from pipelines.training.guard import HISTORY, WARM_UP, comparable_norm, judge, remember, write_bundle

CALM = [comparable_norm(1.0, 64)] * WARM_UP


def verdict(
    history: list[float], *, loss: float = 0.1, norm: float = 1.0, num_samples: int = 64, harmless: float = 1.0
) -> str:
    return judge(history, loss=loss, gradient_norm=norm, num_samples=num_samples, spread=15.0, harmless=harmless).reason


def test_an_ordinary_step_is_taken() -> None:
    assert verdict(CALM, norm=3.0) == ""


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_never_taken(broken: float) -> None:
    assert verdict([], loss=broken) == "non_finite_loss"
    assert verdict([], norm=abs(broken)) == "non_finite_gradient"


def test_a_spike_is_skipped_after_the_warm_up() -> None:
    assert verdict(CALM, norm=5.0) == "gradient_spike"
    assert verdict(CALM[1:], norm=5.0) == ""


def test_a_norm_that_clipping_leaves_alone_is_no_spike() -> None:
    assert verdict([1e-9] * WARM_UP, norm=1.0) == ""
    assert verdict([1e-9] * WARM_UP, norm=1.1) == "gradient_spike"


def test_a_small_batch_may_be_noisier() -> None:
    assert verdict(CALM, norm=5.0, num_samples=4) == ""


def test_a_norm_that_rose_for_good_is_accepted_in_the_end() -> None:
    history, skipped = CALM, 0
    while verdict(history, norm=50.0):
        history = remember(history, 50.0, 64)
        skipped += 1
        assert skipped <= HISTORY
    assert skipped > 3


def test_history_is_bounded_and_finite() -> None:
    history: list[float] = []
    for norm in [*range(HISTORY * 2), math.nan]:
        history = remember(history, norm, 1)
    assert history == list(range(HISTORY, HISTORY * 2))


def test_a_bundle_is_json_even_about_nan(tmp_path: Path) -> None:
    path = write_bundle(
        tmp_path / "bundles", "step-1", {"loss": math.nan, "samples": [{"advantage": math.inf, "key": "k"}]}
    )
    assert json.loads(path.read_text()) == {"loss": "nan", "samples": [{"advantage": "inf", "key": "k"}]}
