"""The journal on disk: what was durable is read again, what was torn never was, and a stopped twin adds nothing."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
from blake3 import blake3

from contracts.errors import InvalidSettings, StaleWrite, Unavailable, WeightsRefused
from pipelines.training.checkpoints import journal as journals
from pipelines.training.checkpoints.checkpoint_names import highest_epoch
from pipelines.training.checkpoints.journal import Journal
from pipelines.training.checkpoints.plans import Ending, Journaled, JournalRecord, StateKept
from pipelines.training.known.batches import Batch, Lesson
from pipelines.training.samples.trial import Plan
from pipelines.training.state import Fate
from pipelines.training.text.samples import TextBatch, TextSample
from tests.unit.pipelines.training.builders import random_experience
from tests.worlds.hostile_files import HOSTILE_FILES

NAME = "checkpoint-000001-00000001"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / NAME).mkdir()
    return tmp_path


def a_plan(step: int) -> Plan:
    random = np.random.default_rng(step)
    sample, again = random_experience(random), random_experience(random, revision=2)
    edit = TextSample(
        key=sample.key, revision=0, kind="pair", prompt_ids=(1, 2), chosen_ids=(3, 4), rejected_ids=(5,), weight=0.5
    )
    batch = Batch([sample], [Lesson(again, 0.5, 0.25, owed=0.125)], TextBatch.of([edit]))
    weights = {sample.key: 0.75}
    return Plan(epoch=1, step=step, at=3.0, batch=batch, weights=weights, max_tokens=64, num_threads=1)


def an_end(plan: Plan) -> Ending:
    keys = plan.batch.keys
    fates = {key: Fate(0, "trained", applied=0.1, pull=0.2, weight=1.0) for key in keys}
    return Ending(step=plan.step + 1, learned=keys, fates=fates, max_tokens=64, digest="d", seconds=0.5)


def kept(epoch: int = 1) -> StateKept:
    return StateKept(epoch=epoch, mark=7, state=b'{"epoch": 1}')


def write(folder: Path, *records: JournalRecord, epoch: int = 1) -> Journal:
    journal = Journal(folder)
    journal.start(NAME, epoch)
    add(journal, *records)
    return journal


def add(journal: Journal, *records: JournalRecord) -> None:
    for record in records:
        {Plan: journal.begin, Ending: journal.end, StateKept: journal.keep}[type(record)](record)  # type: ignore[operator]


def test_what_is_written_is_read_with_every_field(folder: Path) -> None:
    records: list[JournalRecord] = [a_plan(1), an_end(a_plan(1)), kept(), a_plan(2)]
    journal = write(folder, *records)
    assert Journal(folder).read(NAME, before=2).records == records
    assert (journal.num_steps, journal.seconds) == (1, 0.5)
    assert journal.num_bytes == (folder / NAME / "journal-000001").stat().st_size
    assert highest_epoch(folder) == 1


RECORDS: list[JournalRecord] = [a_plan(1), an_end(a_plan(1)), kept()]


def num_read(folder: Path, content: bytes) -> int:
    """How many of the records such a file gives: the first ones, and no others."""
    (folder / NAME / "journal-000001").write_bytes(content)
    found = Journal(folder).read(NAME, before=2).records
    assert found == RECORDS[: len(found)]
    return len(found)


@pytest.mark.slow
def test_cut_anywhere_it_gives_the_records_before(folder: Path) -> None:
    write(folder, *RECORDS)
    whole = (folder / NAME / "journal-000001").read_bytes()
    found = [num_read(folder, whole[:length]) for length in range(len(whole) + 1)]
    assert found == sorted(found)
    assert set(found) == {0, 1, 2, 3}


@pytest.mark.slow
def test_a_changed_bit_ends_it_there(folder: Path) -> None:
    write(folder, *RECORDS)
    whole = (folder / NAME / "journal-000001").read_bytes()
    for at in range(0, len(whole), 7):
        assert num_read(folder, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]) < 3


def test_what_a_stopped_twin_adds_is_not_part_of_it(folder: Path) -> None:
    twin = write(folder, a_plan(1), an_end(a_plan(1)), a_plan(2))
    successor = Journal(folder)
    found = successor.read(NAME, before=2)
    assert len(found.records) == 3
    # The step that had begun is taken again under the new epoch, so it continues before it.
    successor.start(NAME, 2, found)
    add(twin, an_end(a_plan(2)), kept())
    add(successor, a_plan(2), an_end(a_plan(2)), kept(2))
    third = Journal(folder)
    again = third.read(NAME, before=3)
    assert again.records == [a_plan(1), an_end(a_plan(1)), a_plan(2), an_end(a_plan(2)), kept(2)]
    assert (again.epoch, again.number) == (2, 3)
    third.start(NAME, 3, again)
    assert (third.num_steps, third.seconds) == (2, 1.0)
    assert Journal(folder).read(NAME, before=4).records == again.records


def test_a_successor_that_wrote_no_header_never_began(folder: Path) -> None:
    write(folder, kept())
    (folder / NAME / "journal-000002").write_bytes(b"\0\0")
    assert Journal(folder).read(NAME, before=3).records == [kept()]


def test_while_a_checkpoint_is_written_records_go_to_both(folder: Path) -> None:
    other = "checkpoint-000001-00000002"
    (folder / other).mkdir()
    journal = write(folder, a_plan(1), an_end(a_plan(1)))
    journal.start(other, 1)
    add(journal, a_plan(2), an_end(a_plan(2)))
    assert len(journal.read(NAME, before=2).records) == 4
    assert journal.read(other, before=2).records == [a_plan(2), an_end(a_plan(2))]
    journal.settle(other)
    add(journal, kept())
    assert (len(journal.read(NAME, before=2).records), len(journal.read(other, before=2).records)) == (4, 3)
    assert journal.num_steps == 1
    journal.leave()
    assert not journal.is_open
    journal.begin(a_plan(3))
    assert len(journal.read(other, before=2).records) == 3


def test_a_checkpoint_that_is_gone_is_another_trainers_work(folder: Path) -> None:
    with pytest.raises(StaleWrite, match="another trainer"):
        Journal(folder).start("checkpoint-000001-00000009", 1)


def test_a_full_disk_refuses_the_step_and_keeps_what_was(folder: Path) -> None:
    journal = write(folder, a_plan(1))
    path = folder / NAME / "journal-000001"
    before = path.read_bytes()
    with room_for(len(before) + 10):
        with pytest.raises(Unavailable, match="no space left"):
            journal.begin(a_plan(2))
        assert path.read_bytes() == before
        # The step was taken already: its end waits in memory.
        journal.end(an_end(a_plan(1)))
        assert path.read_bytes() == before
    journal.begin(a_plan(2))
    assert journal.read(NAME, before=2).records == [a_plan(1), an_end(a_plan(1)), a_plan(2)]


def test_it_takes_no_more_steps_than_a_restart_may_need(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "MOST_STEPS", 2)
    journal = write(folder, a_plan(1), an_end(a_plan(1)), a_plan(2), an_end(a_plan(2)))
    assert journal.is_full
    with pytest.raises(Unavailable, match="2 steps"):
        journal.begin(a_plan(3))
    assert len(journal.read(NAME, before=2).records) == 4


def test_a_step_larger_than_a_record_may_be_is_refused_before_anything_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = write(folder, a_plan(1))
    monkeypatch.setattr(journals, "MOST_RECORD_BYTES", 100)
    with pytest.raises(InvalidSettings, match="batch_size"):
        journal.begin(a_plan(2))
    assert journal.read(NAME, before=2).records == [a_plan(1)]


def written_by_hand(folder: Path, epoch: int, *records: object) -> None:
    """A file whose checksums fit, whatever stands in it."""
    digest, data = b"millrace journal", b""
    for record in records:
        payload = msgspec.msgpack.encode(record)
        digest = blake3(digest + payload).digest(16)
        data += len(payload).to_bytes(4, "big") + digest + payload
    (folder / NAME / f"journal-{epoch:06d}").write_bytes(data)


def test_what_another_release_wrote_is_refused_by_name_and_says_what_to_do(folder: Path) -> None:
    written_by_hand(folder, 1, {"checkpoint": NAME, "epoch": 1}, {"type": "of a later release"})
    with pytest.raises(WeightsRefused, match=r"journal-000001 was written by another Millrace .* start that release"):
        Journal(folder).read(NAME, before=2)


def test_after_a_thousand_starts_the_records_of_the_first_are_still_found(folder: Path) -> None:
    write(folder, a_plan(1), an_end(a_plan(1)))
    for epoch in range(2, 1200):
        after = 2 if epoch == 2 else 0
        written_by_hand(
            folder, epoch, {"checkpoint": NAME, "epoch": epoch, "after_epoch": epoch - 1, "after_count": after}
        )
    found = Journal(folder).read(NAME, before=1200)
    assert found == Journaled([a_plan(1), an_end(a_plan(1))], 1199, 0)


@pytest.mark.parametrize("kind", ["sparse", "a pipe", "a device", "a folder", "a link to itself"])
def test_what_no_trainer_wrote_is_not_read(folder: Path, kind: str) -> None:
    HOSTILE_FILES[kind](folder / NAME / "journal-000001")
    with pytest.raises((WeightsRefused, OSError)):
        Journal(folder).read(NAME, before=2)


@contextmanager
def room_for(num_bytes: int) -> Iterator[None]:
    """No file may grow beyond this, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
