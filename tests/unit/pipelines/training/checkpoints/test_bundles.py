import json
import os
from pathlib import Path

import pytest

from pipelines.training.checkpoints import bundles
from pipelines.training.checkpoints.bundles import BUNDLE, BundleOrigin, Bundles
from pipelines.training.samples.reward_watch import Suspicion
from tests.unit.pipelines.training.builders import experience, segment

ORIGIN = BundleOrigin(base="base", machine={"device": "cpu"}, settings={})


def keep(kept: Bundles, step: int) -> Path | None:
    found = [Suspicion("chat@", "reward", float("nan"), 16)]
    return kept.keep_rewards([experience(segment([1], [2], [-1.0]))], found, epoch=1, step=step, at=5.0)


def test_a_bundle_is_json_even_about_nan(tmp_path: Path) -> None:
    place = keep(Bundles(tmp_path / "bundles", ORIGIN), 3)
    assert place is not None
    held = json.loads((place / BUNDLE).read_text())
    assert (held["step"], held["tasks"][0]["surprise"], held["origin"]["machine"]) == (3, "nan", {"device": "cpu"})


def test_the_newest_stay_and_what_is_not_a_bundle_stays_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "MOST_BUNDLES", 2)
    (tmp_path / "notes.txt").write_text("an operator's")
    kept = Bundles(tmp_path, ORIGIN)
    for step in (1, 2, 3):
        place = keep(kept, step)
        assert place is not None
        os.utime(place, (step, step))
    assert sorted(path.name[:23] for path in tmp_path.iterdir()) == [
        "notes.txt", "rewards-000001-00000002", "rewards-000001-00000003",
    ]  # fmt: skip


def test_a_disk_that_refuses_costs_the_bundle_alone(tmp_path: Path) -> None:
    (tmp_path / "bundles").write_text("in the way")
    assert keep(Bundles(tmp_path / "bundles", ORIGIN), 1) is None


def test_weights_and_journals_beside_older_bundles_are_deleted(tmp_path: Path) -> None:
    place = tmp_path / "step-000003-00000018-9f2c31aa" / "checkpoint-000003-00000007"
    place.mkdir(parents=True)
    Bundles(tmp_path, ORIGIN)
    assert not place.exists()
    assert place.parent.exists()
