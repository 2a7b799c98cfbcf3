"""Which checkpoint is the newest, and which are valid."""

import sqlite3
from pathlib import Path

import pytest
import torch

from pipelines.training.checkpoints.checkpoint import SAMPLES, CheckpointStore
from pipelines.training.checkpoints.checkpoint_names import highest_epoch, names_in, parse_name, void_names
from pipelines.training.learning.masters import Checkpoint
from pipelines.training.state import TrainerState
from runtime.lease import IssuedEpoch
from runtime.lease_holder import this_process
from tests.unit.pipelines.training.builders import newest_in


def save(folder: Path, epoch: int) -> str:
    state = TrainerState(epoch=epoch, step=epoch)
    name = CheckpointStore(folder, keep=9).save(Checkpoint(state, {"w": torch.ones(1)}, {}))
    # As if every trainer had come so far before another one wrote.
    with sqlite3.connect(folder / SAMPLES) as connection:
        connection.execute("DELETE FROM owner")
    return name


def epochs(**starts: str | None) -> dict[int, IssuedEpoch]:
    issued = {int(name[1:]): start for name, start in starts.items()}
    return {number: IssuedEpoch(number, this_process(), 0.0, start) for number, start in issued.items()}


def test_the_newest_is_that_of_the_highest_epoch_whoever_wrote_last(tmp_path: Path) -> None:
    first = save(tmp_path, 7)
    successor = save(tmp_path, 8)
    late = save(tmp_path, 7)
    assert (first, successor, late) == (
        "checkpoint-000007-00000001", "checkpoint-000008-00000002", "checkpoint-000007-00000003",
    )  # fmt: skip
    assert names_in(tmp_path) == [first, late, successor]
    found = newest_in(tmp_path)
    assert (found.name, found.state.epoch) == (successor, 8)
    assert highest_epoch(tmp_path) == 8


def test_homes_of_before_are_loaded_and_older_than_everything_since(tmp_path: Path) -> None:
    for serial, epoch in ((41, 3), (42, 4)):
        (tmp_path / save(tmp_path, epoch)).rename(tmp_path / f"checkpoint-{serial:08d}")
    (tmp_path / "checkpoint-00000043").mkdir()
    assert highest_epoch(tmp_path) == 5, "the one that cannot be read may have begun an epoch"
    found, refused = CheckpointStore(tmp_path, keep=9).load_newest()
    assert found is not None
    assert (found.name, found.state.epoch) == ("checkpoint-00000042", 4)
    assert [item.name for item in refused] == ["checkpoint-00000043"]
    assert save(tmp_path, 6) == "checkpoint-000006-00000044"
    assert names_in(tmp_path)[-1] == "checkpoint-000006-00000044"


@pytest.mark.parametrize("name", ["checkpoint-1", "checkpoint-00000001.tmp", "other", "checkpoint-7-00000001"])
def test_what_is_called_otherwise_is_no_checkpoint(name: str) -> None:
    assert parse_name(name) is None


OLD, KEPT, LATER, NEW = (
    "checkpoint-00000090", "checkpoint-000007-00000098", "checkpoint-000007-00000099", "checkpoint-000008-00000100",
)  # fmt: skip


def test_what_was_written_after_a_successor_began_is_void_also_before_it_wrote_anything() -> None:
    issued = epochs(e7=OLD, e8=KEPT)
    assert void_names([OLD, KEPT, LATER], issued) == {LATER}
    assert void_names([OLD, KEPT, LATER, NEW], issued) == {LATER}


def test_one_that_has_not_said_what_it_goes_on_from_voids_nothing() -> None:
    assert void_names([OLD, KEPT, LATER], epochs(e7=OLD, e8=None)) == set()


def test_one_that_found_nothing_voids_all_before() -> None:
    assert void_names([LATER, NEW], epochs(e7=None, e8="")) == {LATER}


def test_epochs_that_were_never_issued_are_void_and_those_before_the_first_are_of_before() -> None:
    issued = epochs(e8=None, e9=None)
    names = [KEPT, NEW, "checkpoint-000010-00000001"]
    assert void_names(names, issued) == {"checkpoint-000010-00000001"}
