"""A slot follower against a vLLM server that is rebuilt in the test; a real one is in tests/integration/vllm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import torch

from contracts.assignments import Assignment
from contracts.engines import EngineReplica
from contracts.errors import InvalidSettings, NotFound
from engines.following.driver import ServerFacts, VersionFile
from engines.following.follower import SlotFollower
from engines.vllm.deliver import VllmServer
from tests.unit.engines.vllm.fake_vllm import FakeModel, FakeVllm, version_file, weights_of
from tests.unit.services.serving import serve
from weights.tensors import root_of


class FollowerWorld:
    """A host with one slot: its server can end and start again, and versions are files in a folder."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.assignment: Assignment | None = None
        self.fake: FakeVllm | None = None
        self.model = FakeModel()
        self.address: tuple[str, str] | None = None
        self.num_starts = self.num_ends = 0
        self.swaps: list[tuple[str, int]] = []
        self.missing: set[int] = set()
        self.refuses: InvalidSettings | None = None
        self.num_checks = 0
        self.process = ExitStack()
        self.follower = self.new_follower()

    def new_follower(self) -> SlotFollower:
        row = EngineReplica(
            name="vllm-1", policy="demo", url="", kind="vllm", region="local", status="starting", slots={"live": None},
            abilities=frozenset(), instance="", engine="vllm", dtype="float32", seen_at=0.0,
        )  # fmt: skip
        return SlotFollower(
            row, server=self, connect=self.connect, check=self.check, file_of=self.file_of, folder=self.folder,
            keep_swap=self.keep_swap, assigned=self.assigned,
        )  # fmt: skip

    def assign(self, version: int) -> None:
        self.assignment = Assignment("demo", "live", version, 1.0, version, root_of(weights_of(version)), "run")

    def step(self, now: float = 0.0) -> tuple[str, int | None]:
        """What the row says after a look."""
        self.follower.step(now)
        return self.follower.row.status, self.follower.row.slots["live"]

    # the server's process
    def start(self) -> None:
        self.num_starts += 1
        self.model = FakeModel()
        self.fake = FakeVllm(self.model)
        self.process = self.stack.enter_context(ExitStack())
        self.address = (self.process.enter_context(serve(self.fake.app())), str(self.num_starts))

    def renew(self) -> None: ...

    def end(self) -> None:
        self.num_ends += 1
        self.address = None

    def connect(self, url: str) -> VllmServer:
        return VllmServer(self.stack.enter_context(httpx.Client(base_url=url, timeout=5.0)))

    def check(self, facts: ServerFacts, url: str) -> None:
        assert self.address == (url, str(self.num_starts))
        assert facts.model
        self.num_checks += 1
        if self.refuses is not None:
            raise self.refuses

    # versions, swaps, assignments
    def file_of(self, version: int, root: str | None, run: str | None, folder: Path) -> VersionFile:
        assert run == "run"
        if version in self.missing:
            raise NotFound(f"version {version} is not in the store")
        return version_file(folder, version)._replace(root=str(root))

    def keep_swap(self, replica: str, arm: str, version: int, stage_seconds: float, pause_seconds: float) -> None:
        assert replica == "vllm-1"
        assert stage_seconds >= 0
        assert pause_seconds > 0
        self.swaps.append((arm, version))

    def assigned(self) -> Mapping[str, Assignment]:
        return {} if self.assignment is None else {"live": self.assignment}

    def computes(self, version: int) -> bool:
        wanted = torch.from_numpy(weights_of(version)["embed.weight"].data.copy()).view(torch.bfloat16).reshape(4, 8)
        return torch.equal(self.model.computes_with()["head"], wanted.float())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FollowerWorld]:
    with ExitStack() as stack:
        yield FollowerWorld(tmp_path, stack)


def test_it_starts_its_server_and_follows_the_assignment(world: FollowerWorld) -> None:
    assert world.step() == ("starting", None)
    assert world.follower.row.url.startswith("http://127.0.0.1:")
    for version in range(3):
        world.assign(version)
        assert world.step() == ("serving", version)
        assert world.computes(version)
    assert world.swaps == [("live", 1), ("live", 2)]
    world.assign(0)
    assert world.step() == ("serving", 0)
    assert world.num_starts == 1


def test_a_server_that_serves_what_it_should_is_not_disturbed(world: FollowerWorld) -> None:
    world.assign(1)
    world.step()
    world.step(1.0)  # sees that it holds what is assigned
    assert world.fake is not None
    world.fake.label = "v1-to-v9"  # somebody else began an update
    assert world.step(2.0) == ("serving", 1)
    assert world.fake.num_checks == 1
    world.step(20.0)
    assert world.fake.label == "v1", "it is asked again after a while, and healed"


def test_a_server_that_dies_is_started_again_and_gets_its_version(world: FollowerWorld) -> None:
    world.assign(2)
    world.step()
    instance = world.follower.row.instance
    world.address = None
    assert world.step() == ("serving", 2)
    assert world.computes(2)
    assert world.num_starts == 2
    assert world.follower.row.instance != instance


def test_a_new_follower_goes_on_with_the_server_it_finds(world: FollowerWorld) -> None:
    world.assign(1)
    world.step()
    assert world.fake is not None
    world.fake.is_paused = True  # the one before was killed in a swap, before it wrote
    world.fake.calls.clear()
    world.follower = world.new_follower()
    assert world.step() == ("serving", 1)
    assert world.fake.calls == ["/resume"]
    assert world.num_starts == 1


def test_a_new_follower_heals_what_was_left_in_the_middle(world: FollowerWorld) -> None:
    world.assign(0)
    world.step()
    assert world.fake is not None
    world.fake.fails_at = "/finish_weight_update"
    driver, file = world.connect(world.follower.row.url), world.file_of(1, root_of(weights_of(1)), "run", world.folder)
    driver.stage(file, root_of(weights_of(0)))
    with pytest.raises(Exception, match="stays paused"):
        driver.push(file, VersionFile(0, root_of(weights_of(0)), file.path))
    world.fake.fails_at = None
    world.follower = world.new_follower()
    world.assign(2)
    assert world.step() == ("serving", 2)
    assert world.computes(2)
    assert not world.fake.is_paused


def test_a_swap_that_fails_once_is_healed_at_once(world: FollowerWorld) -> None:
    world.assign(0)
    world.step()
    world.model.num_failures = 1
    world.assign(1)
    assert world.step() == ("serving", 1)
    assert world.computes(1)


def test_a_version_that_cannot_be_written_leaves_the_one_before(world: FollowerWorld) -> None:
    world.assign(0)
    world.step()
    assert world.fake is not None
    world.model.num_failures = 2  # the update, and the try to write it whole
    world.assign(1)
    assert world.step() == ("serving", 0)
    assert world.computes(0)
    assert not world.fake.is_paused
    assert world.step(0.1) == ("serving", 0), "it waits before it tries again"
    assert world.step(10.0) == ("serving", 1)


def test_a_server_that_takes_no_version_is_started_again(world: FollowerWorld) -> None:
    world.assign(0)
    world.step()
    world.model.num_failures = 99
    world.assign(1)
    assert world.step() == ("restarting", None)
    assert world.num_ends == 1
    assert world.step(10.0) == ("serving", 1)
    assert world.num_starts == 2


def test_a_version_that_is_not_there_is_tried_again_and_the_old_one_serves(world: FollowerWorld) -> None:
    world.assign(0)
    world.step()
    world.missing = {1}
    world.assign(1)
    assert world.step() == ("serving", 0)
    world.missing = set()
    assert world.step(0.1) == ("serving", 0)
    assert world.step(10.0) == ("serving", 1)


def test_a_server_that_is_another_models_is_refused_by_name_and_asked_again_later(world: FollowerWorld) -> None:
    world.refuses = InvalidSettings("it serves another model")
    world.assign(1)
    assert world.step() == ("failed", None)
    problem = world.follower.row.problems["live"]
    told = (problem["version"], problem["code"], problem["message"])
    assert told == (1, "invalid_settings", "it serves another model")
    world.refuses = None
    assert world.step(0.1) == ("failed", None)
    assert world.step(10.0) == ("serving", 1)
    assert {"logprobs", "spans", "seed"} <= world.follower.row.abilities
    assert world.follower.row.dtype == "float32"


def test_a_server_that_was_away_is_looked_at_again(world: FollowerWorld) -> None:
    """Somebody may have started another one at its address."""
    world.assign(1)
    world.step()
    world.step(1.0)
    world.num_checks = 0
    world.process.close()
    assert world.step(2.0)[0] == "restarting"
    world.address = None
    assert world.step(3.0) == ("serving", 1)
    assert world.num_checks == 1
