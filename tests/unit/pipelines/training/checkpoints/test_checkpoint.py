from pathlib import Path

import pytest
import torch

from contracts.errors import Unavailable, WeightsRefused
from pipelines.training.checkpoints.checkpoint import CheckpointStore
from pipelines.training.checkpoints.checkpoint_names import highest_epoch
from pipelines.training.learning.masters import Checkpoint
from pipelines.training.state import Fate, TrainerState
from tests.unit.pipelines.training.builders import newest_in


def checkpoint(step: int, version: int | None = None, epoch: int = 1) -> Checkpoint:
    state = TrainerState(
        epoch=epoch, step=step, fates={"k": Fate(2, "trained", version=3, late=4)}, positions={"experiences": {0: 7}}
    )
    return Checkpoint(state, {"w": torch.full((3,), float(step))}, {"exp_avg/w": torch.ones(3)}, version)


def step_of(store: CheckpointStore) -> int | None:
    found, _ = store.load_newest()
    return found.state.step if found else None


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    saved = checkpoint(5, version=3)
    store.save(saved)

    found = newest_in(tmp_path)
    assert (found.state, found.version) == (saved.state, 3)
    assert torch.equal(found.weights["w"], saved.weights["w"])
    assert torch.equal(found.optimizer["exp_avg/w"], saved.optimizer["exp_avg/w"])


def test_a_full_disk_leaves_nothing_behind_and_the_older_ones_alone(tmp_path: Path) -> None:
    CheckpointStore(tmp_path, keep=2).save(checkpoint(1))

    def full(place: str) -> None:
        if place == "checkpoint: before optimizer.safetensors":
            raise Unavailable("no space left")

    store = CheckpointStore(tmp_path, 2, full)
    with pytest.raises(Unavailable):
        store.save(checkpoint(2))
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-000001-00000001"]
    assert step_of(store) == 1


def test_an_empty_folder_has_none(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "new", keep=1)
    assert store.load_newest() == (None, [])
    assert highest_epoch(tmp_path / "new") == 0


@pytest.mark.parametrize("file", ["weights.safetensors", "optimizer.safetensors", "state.json", "MANIFEST.json"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_any_damage_is_refused_by_name_and_the_previous_one_is_used(tmp_path: Path, file: str, damage: str) -> None:
    store = CheckpointStore(tmp_path, keep=3)
    store.save(checkpoint(1, epoch=1))
    path = tmp_path / store.save(checkpoint(2, epoch=2)) / file
    content = path.read_bytes()
    if damage == "truncate":
        path.write_bytes(content[:-1])
    elif damage == "flip":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    else:
        path.unlink()

    found, refused = store.load_newest()

    assert found is not None
    assert found.state.step == 1
    assert [item.name for item in refused] == ["checkpoint-000002-00000002"]
    assert file in refused[0].reason
    assert highest_epoch(tmp_path) >= 2, "the lost checkpoint's epoch is never used again"
    assert store.save(checkpoint(3, epoch=3)) == "checkpoint-000003-00000003"


def test_every_byte_of_the_manifest_counts(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=3)
    path = tmp_path / store.save(checkpoint(1)) / "MANIFEST.json"
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert step_of(store) is None, place
    path.write_bytes(content)
    assert step_of(store) == 1


def test_a_newer_schema_says_upgrade(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=3)
    path = tmp_path / store.save(checkpoint(1)) / "MANIFEST.json"
    path.write_bytes(path.read_bytes().replace(b'"schema": 1', b'"schema": 2'))
    assert "newer_schema" in store.load_newest()[1][0].reason


def test_the_newest_stay_and_versions_in_use_stay(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for number in range(10):
        store.save(checkpoint(number, version=number if number % 2 == 0 else None), keep_versions={0})
    # Two newest are 8 and 9, two newest versions 6 and 8, and version 0 is in use.
    assert {store.load(name).state.step for name in store.names()} == {0, 6, 8, 9}
    assert store.versions() == {0, 6, 8}


def test_starting_on_a_version_again_and_again_pushes_no_other_out(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=3)
    for version in (0, 1, 2, 2, 2, 2, 2, 2):
        store.save(checkpoint(version, version=version), keep_versions={2})
    assert store.versions() == {0, 1, 2}
    assert len(store.names()) == 5, "the three newest, and one of each other version"


def test_the_checkpoint_of_a_version_is_found_past_a_damaged_copy(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=5)
    store.save(checkpoint(1, version=4))
    (tmp_path / store.save(checkpoint(2, version=4)) / "state.json").write_bytes(b"{}")
    assert store.load_version(4).state.step == 1
    with pytest.raises(WeightsRefused, match="version 5 has no intact checkpoint here; these versions have one: 4"):
        store.load_version(5)
