"""Release trains that nobody hears of, that have no engine, that cannot be conducted, and that bring worse versions."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import select, update

from contracts import assignments
from contracts.assignments import LIVE
from contracts.tables import train
from pipelines.release.train.repository import CANARY_STAGE
from runtime.settings import load_settings
from tests.adversary.alarms.breaks.kinds import Break
from tests.adversary.alarms.breaks.settings import changed
from tests.adversary.alarms.world import WatchedHome, until

TRAINS = ("--slots=live,candidate,learning,canary",)
UNGATED = (*TRAINS, "--sentinels={folder}/hopeless.jsonl")
"""Sentinels that no version answers rightly, so that the gate refuses nobody."""
_NO_BYTES, _FAR = 900_001, 999
_DEPARTS_SECONDS, _SILENCE_SECONDS = 300.0, 90.0


def running(world: WatchedHome, *states: str) -> Any:
    """The row of the running train; None if there is none, or in another state."""
    with world.database() as connection:
        row = connection.execute(select(train).where(train.c.ended_at.is_(None)).order_by(train.c.id.desc())).first()
    return row if row is not None and (not states or row.state in states) else None


@contextmanager
def departed(world: WatchedHome, *states: str) -> Iterator[Any]:
    """A train, in one of these states; its row. Users work until there is one."""
    working = threading.Thread(target=world.users, args=(_DEPARTS_SECONDS,), daemon=True)
    if running(world, *states) is None:
        working.start()
    until(lambda: running(world, *states) is not None, _DEPARTS_SECONDS, "no train departed")
    yield running(world, *states)
    world.end_users()


@contextmanager
def nobody_asks(world: WatchedHome) -> Iterator[None]:
    """The users leave while a version is proven on them."""
    settings = changed(world, "release", "train", silence_seconds=_SILENCE_SECONDS, shadow_prompts=0)
    with settings, departed(world, CANARY_STAGE):
        world.end_users()
        yield


@contextmanager
def no_slot(world: WatchedHome) -> Iterator[None]:
    """Every engine was started without a canary slot."""
    with departed(world), changed(world, "engine", "engine", slots=["live", "candidate", "learning"]):
        yield


@contextmanager
def damaged_train(world: WatchedHome) -> Iterator[None]:
    """The row of the running train cannot be read."""
    with departed(world) as row:
        mine = update(train).where(train.c.id == row.id)
        with world.database() as connection:
            connection.execute(mine.values(settings=["not", "settings"]))
        try:
            yield
        finally:
            with world.database() as connection:
                connection.execute(mine.values(settings=row.settings))


@contextmanager
def lost_live(world: WatchedHome) -> Iterator[None]:
    """The live arm points at a version whose bytes are lost."""
    policy = load_settings(world.home).policy

    def point(version: int | None) -> int | None:
        with world.database() as connection:
            arm = assignments.lock(connection, policy)[LIVE]
            assignments.move(
                connection, policy=policy, arm=LIVE, version=version, expected_epoch=arm.epoch, writer="benchmark",
                reason="a version without bytes",
            )  # fmt: skip
            return arm.version

    before = point(_NO_BYTES)
    try:
        yield
    finally:
        point(before)


@contextmanager
def junk(world: WatchedHome) -> Iterator[None]:
    """An object of the weight store is not what its name says."""
    policy = world.home / "weights" / load_settings(world.home).policy
    newest = max(path for path in policy.iterdir() if path.name.startswith("v0"))
    copied = shutil.copytree(newest, policy / f"v{_FAR:06d}")
    for path in copied.iterdir():
        path.write_bytes(path.read_bytes()[:-20])
    try:
        yield
    finally:
        shutil.rmtree(copied)


@contextmanager
def worse_versions(world: WatchedHome) -> Iterator[None]:
    """A trainer that goes astray, and a gate that is blind to it: users prove it, one version after the other."""
    short = changed(world, "release", "train", shadow_prompts=60)
    with short, changed(world, "training", "training", learning_rate=0.03, step_bound=1.0):
        yield


def breaks() -> tuple[Break, ...]:
    """Those about versions."""
    return (
        Break("an object in the weight store is damaged", "WeightStoreJunk", "", junk, users=True),
        Break("nobody asks any more", "TrainStopped", "", nobody_asks, hurried=True, options=TRAINS, longest_seconds=400.0),
        Break("no engine has a canary slot any more", "NoCanarySlot", "", no_slot, hurried=True, options=TRAINS),
        Break("the row of a train is damaged", "TrainStands", "", damaged_train, hurried=True, options=TRAINS, longest_seconds=700.0),
        Break(
            "users prove versions worse", "VersionsRevoked", "", worse_versions, users=True, options=UNGATED, longest_seconds=900.0
        ),
        Break("the bytes of the live version are lost", "EngineNotOnLive", "", lost_live, users=True, hurried=True),
    )  # fmt: skip
