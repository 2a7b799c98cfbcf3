"""The trainer says how far it is behind: only it knows its positions."""

from __future__ import annotations

from prometheus_client import REGISTRY

from contracts.event_log import LogRecord
from contracts.topics import EXPERIENCES
from pipelines.training.samples.reading import LOOK_SECONDS
from tests.unit.pipelines.training.world import World


def waiting() -> float:
    partitions = [{"group": "training", "topic": EXPERIENCES, "partition": str(number)} for number in range(4)]
    return sum(REGISTRY.get_sample_value("millrace_lag_records", labels) or 0.0 for labels in partitions)


def behind() -> float:
    return REGISTRY.get_sample_value("millrace_behind_seconds", {"group": "training"}) or 0.0


def handled() -> float:
    return REGISTRY.get_sample_value("millrace_records_total", {"group": "training", "topic": EXPERIENCES}) or 0.0


def test_what_waits_in_the_log_is_counted_and_its_age_is_told(world: World) -> None:
    before = handled()
    trainer = world.start()
    world.add_random(20)
    world.turns(trainer, 1)
    assert waiting() > 0, "one batch was read, and the rest waits"
    for _ in range(20):
        world.now += LOOK_SECONDS
        world.turns(trainer, 1)
    assert (waiting(), behind()) == (0.0, 0.0)
    assert handled() - before == 20


def test_it_is_as_far_behind_as_the_oldest_record_that_it_read(world: World) -> None:
    reader = world.make().reader
    reader.note(
        [LogRecord(EXPERIENCES, 0, offset, "", b"", world.now - age) for offset, age in enumerate((10.0, 600.0))]
    )
    assert behind() == 600.0
    reader.note([])
    assert behind() == 0.0
