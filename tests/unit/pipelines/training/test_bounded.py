"""A life of hundreds of versions, with rollbacks, late rewards and changed tasks: what the trainer knows stops growing."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pytest

from pipelines.training.checkpoints.checkpoint import SAMPLES, CheckpointStore
from pipelines.training.known import known_samples, lineage
from pipelines.training.known.lineage import Lineage, VersionTree, left_behind, left_versions
from pipelines.training.learning import trackers
from pipelines.training.learning.masters import Checkpoint
from pipelines.training.learning.trackers import BetaTracker
from pipelines.training.samples import reward_watch
from pipelines.training.samples.intake import Intake
from pipelines.training.samples.reward_watch import RewardWatch
from pipelines.training.state import Fate, TrainerState, begin_epoch, cut_version, finish_learning_again, roll_back
from tests.unit.pipelines.training.builders import experience, newest_in, segment, whole

if TYPE_CHECKING:
    from contracts.revocations import Treatment

VERSION_SECONDS, HORIZON, BATCH = 7200.0, 40 * 7200.0, 12
LIVES = 480
EVERY = 7
"""Versions from one rollback to the next."""


class Size(NamedTuple):
    """Of what is held after a version: in a checkpoint, in the file of samples, and in memory."""

    state: int
    lineage: int
    rows: int
    cuts: int
    branches: int
    recent: int


@pytest.fixture(autouse=True)
def _small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A life of any length reaches the bounds; this one shall be short."""
    monkeypatch.setattr(lineage, "MOST_RUNS", 20)
    monkeypatch.setattr(lineage, "MOST_LEFT", 30)
    monkeypatch.setattr(known_samples, "MOST_CUTS", 50)
    monkeypatch.setattr(known_samples, "_PAGE", 10)
    monkeypatch.setattr(trackers, "MOST_KEYS", 30)
    monkeypatch.setattr(reward_watch, "MOST_NAMES", 20)


@pytest.mark.slow
def test_what_the_trainer_knows_stops_growing(tmp_path: Path) -> None:
    sizes = list(live(tmp_path, LIVES))
    early, late = sizes[LIVES // 4 : LIVES // 2], sizes[-LIVES // 4 :]
    for name in Size._fields:
        before, after = max(getattr(size, name) for size in early), max(getattr(size, name) for size in late)
        # Numbers get longer, by a digit or two.
        assert after <= 1.1 * before, name
    assert sizes[-1].cuts <= 51
    assert sizes[-1].rows < 3 * 60 * BATCH


def live(folder: Path, number: int) -> Iterator[Size]:
    """The size after each version. Every third rollback revokes its versions as poison, every third as evidence."""
    store, state, watch = CheckpointStore(folder, keep=2), TrainerState(epoch=1), RewardWatch(0.0, 1.0, 60.0)
    tracker, left = BetaTracker(), dict[int, int]()
    state.sequence = 0
    for version in range(1, number + 1):
        now = 1_700_000_000.0 + version * VERSION_SECONDS
        learn(state, watch, tracker, now, version)
        cut_version(state, version, now)
        if version % EVERY == 0:
            before = Lineage.of(state.lineage)
            target = TrainerState(lineage=before[2:])
            choices: tuple[dict[int, Treatment], ...] = (
                {},
                dict.fromkeys(before[:2], "poison"),
                dict.fromkeys(before[:2], "evidence"),
            )
            roll_back(state, target, choices[version // EVERY % 3], now)
            begin_epoch(state, state.epoch + 1)
            left = left_versions(left | left_behind(before, state.lineage), state.lineage)
            finish_learning_again(state, ())
        tree = VersionTree(state.lineage, left)
        assert all(tree.exists(item) for item in range(max(version - 30, 0), version + 1))
        state.expired_before = now - HORIZON
        told(state)
        state.tracker, state.reward_levels = tracker.to_json(), watch.levels.to_json()
        store.save(Checkpoint(state, {}, {}))
        yield Size(
            len(state.to_json()),
            len(Lineage.of(state.lineage).to_json()),
            *rows(folder / SAMPLES),
            len(left),
            len(watch._recent) + len(watch.suspect_since),
        )
        if version % 100 == 0:
            found = newest_in(folder)
            assert exact(found.state) == exact(state), "and a restart goes on with the same"
            state = found.state


def learn(state: TrainerState, watch: RewardWatch, tracker: BetaTracker, now: float, version: int) -> None:
    """One batch of a task whose file changes with every fourth version; and a record without a reward."""
    batch = [
        experience(
            segment([1], [2], [-1.0]),
            key=key_at(now - number * 600.0, number),
            task_hash=str(version // 4),
            baseline_key=str(version + number),
            reward=number % 2,
        )
        for number in range(BATCH)
    ]
    intake = Intake(state)
    watch.suspicions(batch, now)
    watch.learned(batch)
    watch.suspect_since.setdefault(f"task@{version}", now)
    for item in batch:
        assert not intake._is_expired(item.key)
        tracker.update(item.baseline_key, version, item.reward or 0.0)
        state.fates[item.key] = Fate(0, "trained", applied=item.reward, pull=0.1, weight=1.0, zero=0.5)
        state.note(item.key)
    state.unrewarded[key_at(now, BATCH)] = 0


def exact(state: TrainerState) -> bytes:
    return msgspec.json.encode(state, enc_hook=whole, order="deterministic")


def told(state: TrainerState) -> None:
    state.unreported.clear()
    state.unreported_epochs.clear()


def key_at(now: float, number: int) -> str:
    value = int(now * 1000) << 80 | 0x7 << 76 | 0b10 << 62 | number
    return f"chatcmpl-{uuid.UUID(int=value)}:0"


def rows(path: Path) -> tuple[int, int]:
    connection = sqlite3.connect(path)
    try:
        (changes,) = connection.execute("SELECT count(*) FROM change").fetchone()
        (cuts,) = connection.execute("SELECT count(*) FROM cut").fetchone()
    finally:
        connection.close()
    return changes, cuts
