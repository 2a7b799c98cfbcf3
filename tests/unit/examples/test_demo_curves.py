from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts.draws import is_exploring
from contracts.ids import new_completion_id, sample_key
from examples.demo.curves import (
    acceptance_curve,
    base_acceptance,
    exploring_acceptance,
    last_acceptance,
    realistic_delta,
)
from pipelines.training.checkpoints.checkpoint_names import MANIFEST, CheckpointManifest, seal
from weights.tensors import Tensor, write_safetensors


def signal(at: float, *, positive: bool, key: str = "k") -> dict[str, Any]:
    return {"kind": "signal", "key": key, "at": at, "positive": positive}


# One signal a second: the first 30 are mixed, the rest accept.
CLIENTS = [signal(100.0 + second, positive=second % 2 == 0 or second >= 30) for second in range(60)]


def test_the_curve_has_what_users_accepted_beside_what_the_gate_said() -> None:
    curve = acceptance_curve(CLIENTS, [(99.0, 0.5), (131.0, 0.9), (500.0, 1.0)])
    assert [(item.seconds, item.num_signals, item.gate) for item in curve] == [
        (15.0, 15, 0.5), (30.0, 15, 0.5), (45.0, 15, 0.9), (60.0, 15, 0.9),
    ]  # fmt: skip
    assert [item.accepted for item in curve] == [8 / 15, 7 / 15, 1.0, 1.0]
    assert acceptance_curve(CLIENTS, [])[0].gate is None
    assert acceptance_curve([], []) == []


def test_the_last_few_signals_are_no_step_of_their_own() -> None:
    few = [*CLIENTS, signal(161.0, positive=False), signal(162.0, positive=False)]
    curve = acceptance_curve(few, [])
    assert [(item.seconds, item.num_signals) for item in curve] == [(15.0, 15), (30.0, 15), (45.0, 15), (60.0, 17)]
    assert curve[-1].accepted == pytest.approx(15 / 17)
    more = [signal(second, positive=False) for second in (163.0, 164.0)]
    assert len(acceptance_curve([*few, *more], [])) == 5


def test_the_last_fifth_is_of_the_users_time() -> None:
    assert last_acceptance(CLIENTS, 60.0) == (1.0, 12)
    assert last_acceptance(CLIENTS, 25.0) == (35 / 40, 40), "from second 20 on"
    assert last_acceptance([], 60.0) == (None, 0)


def test_the_base_policy_is_judged_by_its_own_answers() -> None:
    answers = [{"kind": "generation", "key": key, "version": number, "at": 1.0} for key, number in (("a", 0), ("b", 1))]
    said = [signal(2.0, positive=False, key="a"), signal(3.0, positive=True, key="b")]
    assert base_acceptance([*answers, *said]) == 0.0


def test_what_exploring_costs_is_the_share_that_users_would_accept_without_it() -> None:
    keys = [sample_key(new_completion_id(), 0) for _ in range(400)]
    explores = [is_exploring(key.partition(":")[0], 0.25) for key in keys]
    said = [signal(1.0, positive=not wide, key=key) for key, wide in zip(keys, explores, strict=True)]
    found = exploring_acceptance(said, 0.25, 0.0)
    assert (found["exploring"], found["others"]) == (0.0, 1.0)
    assert found["cost_points"] == pytest.approx(100 * sum(explores) / 400)
    assert exploring_acceptance([], 0.25, 10.0) == {"exploring": None, "others": None, "cost_points": None}


def save(folder: Path, serial: int, version: int | None, values: np.ndarray) -> None:
    place = folder / f"checkpoint-000001-{serial:08d}"
    place.mkdir(parents=True)
    write_safetensors(place / "weights.safetensors", {"w": Tensor("F32", values.shape, values.view(np.uint8).ravel())})
    (place / MANIFEST).write_bytes(seal(CheckpointManifest(epoch=1, step=1, version=version, files={})))


def test_a_realistic_rate_changes_few_weights(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    old = random.normal(0, 0.02, (64, 64)).astype("<f4")
    save(tmp_path, 1, 1, old)
    assert realistic_delta(tmp_path, 3e-4) is None, "there is nothing to compare it with"
    save(tmp_path, 2, None, old)
    save(tmp_path, 3, 2, (old + random.normal(0, 3e-4, old.shape)).astype("<f4"))
    as_it_was, at_millionth = realistic_delta(tmp_path, 1e-6), realistic_delta(tmp_path, 3e-4)
    assert as_it_was is not None
    assert at_millionth is not None
    assert as_it_was["density"] > 0.8
    assert 0.0 < at_millionth["density"] < 0.1
    assert at_millionth["ratio"] > 4 * as_it_was["ratio"]
