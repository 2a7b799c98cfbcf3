from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from contracts.errors import Unavailable, WeightsRefused
from tests.unit.services.serving import serve
from tests.unit.weights.awkward_weights import MINUS_ZERO, NAN, bf16, make_checkpoint, same, tensor, version
from tests.unit.weights.fake_vllm import FakeVllm
from weights.engines.changes import changed_elements
from weights.engines.vllm import VllmServer
from weights.tensors import Tensors, read_safetensors


class Dying(httpx.HTTPTransport):
    """The server hears a request for `path`, and nobody hears from it again."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._is_dead = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self._is_dead:
            raise httpx.ConnectError("connection refused")
        response = super().handle_request(request)
        if request.url.path == self._path:
            self._is_dead = True
            raise httpx.ReadError("connection reset")
        return response


@contextmanager
def client_of(app: Any, transport: httpx.HTTPTransport | None = None) -> Iterator[httpx.Client]:
    with serve(app) as url, httpx.Client(base_url=url, transport=transport, timeout=5.0) as client:
        yield client


class TestChanges:
    def test_only_what_changed_and_its_new_bits(self) -> None:
        changes = {change.name: change for change in changed_elements(version(0), version(1))}
        assert sorted(changes) == ["embed.weight", "layer.0.query"]
        query = changes["layer.0.query"]
        assert (query.dtype, query.shape) == ("BF16", (32, 32))
        assert query.indices.tolist() == [0, 1, 2, 3]
        assert query.words[1] == MINUS_ZERO
        patched = version(0)["layer.0.query"].data.view("<u2").copy()
        patched[query.indices] = query.words
        assert np.array_equal(patched.view(np.uint8), version(1)["layer.0.query"].data)

    @pytest.mark.parametrize(
        ("dtype", "nan", "infinity"),
        [("BF16", 0xFF81, 0xFF80), ("F16", 0x7C01, 0x7C00), ("F32", 0x7F800001, 0x7F800000)],
    )
    def test_nan_is_refused_by_name_and_infinity_is_not(self, dtype: str, nan: int, infinity: int) -> None:
        kind = "<u4" if dtype == "F32" else "<u2"
        base = {"w": tensor(dtype, np.zeros(4, dtype=kind))}
        [change] = changed_elements(base, {"w": tensor(dtype, np.array([0, infinity, 0, 0], dtype=kind))})
        assert change.words.tolist() == [infinity]
        with pytest.raises(WeightsRefused, match="element 2 of w becomes NaN") as caught:
            list(changed_elements(base, {"w": tensor(dtype, np.array([0, infinity, nan, 0], dtype=kind))}))
        assert caught.value.code == "nan"

    def test_a_nan_that_was_there_before_is_no_change(self) -> None:
        base = {"w": tensor("BF16", np.array([NAN, 1], dtype="<u2"))}
        [change] = changed_elements(base, {"w": tensor("BF16", np.array([NAN, 2], dtype="<u2"))})
        assert change.indices.tolist() == [1]

    def test_only_floats_can_be_patched(self) -> None:
        base = {"w": tensor("I8", np.zeros(4, dtype=np.int8))}
        assert list(changed_elements(base, base)) == []
        with pytest.raises(WeightsRefused, match="w is I8") as caught:
            list(changed_elements(base, {"w": tensor("I8", np.ones(4, dtype=np.int8))}))
        assert caught.value.code == "unsupported_dtype"

    def test_another_set_of_tensors_is_refused(self) -> None:
        with pytest.raises(WeightsRefused) as caught:
            list(changed_elements(version(0), version(1) | {"head.weight": tensor("BF16", bf16(0, 2))}))
        assert caught.value.code == "unknown_tensor"


class Worker:
    """A transfer engine that patches numpy arrays from a folder of checkpoints, or dies after some tensors."""

    def __init__(self) -> None:
        self.weights: Tensors = version(0)
        self.dies_after: int | None = None
        self.num_inits = 0

    def init_transfer_engine(self, init_info: dict[str, Any]) -> None:
        assert init_info == {}
        self.num_inits += 1

    def start_weight_update(self) -> None:
        pass

    def update_weights(self, update_info: dict[str, Any]) -> None:
        base, target = (
            read_safetensors(Path(update_info["store"]) / update_info["policy"] / f"v{update_info[key]:06d}")
            for key in ("base_version", "version")
        )
        for number, change in enumerate(changed_elements(base, target)):
            if number == self.dies_after:
                raise RuntimeError("CUDA error: the device is gone")
            words = self.weights[change.name].data.view("<u2").copy()
            words[change.indices] = change.words
            self.weights[change.name] = self.weights[change.name]._replace(data=words.view(np.uint8))

    def finish_weight_update(self) -> None:
        pass


PUSHED_VLLM = [
    "/pause?mode=keep&clear_cache=true",
    "/start_weight_update",
    "/update_weight_version",
    "/update_weights",
    "/finish_weight_update",
    "/resume",
]


class TestVllm:
    @pytest.fixture
    def worker(self) -> Worker:
        return Worker()

    @pytest.fixture
    def fake(self, worker: Worker) -> FakeVllm:
        fake = FakeVllm(worker)
        fake.label = "v0"
        return fake

    @pytest.fixture
    def store(self, tmp_path: Path) -> Path:
        (tmp_path / "demo").mkdir()
        for number in range(3):
            make_checkpoint(tmp_path / "demo" / f"v{number:06d}", version(number))
        return tmp_path

    def driver(self, client: httpx.Client, store: Path) -> VllmServer:
        return VllmServer(client, policy="demo", store=str(store))

    def test_a_push_ends_with_every_bit_served(self, fake: FakeVllm, worker: Worker, store: Path) -> None:
        with client_of(fake.app()) as client:
            driver = self.driver(client, store)
            for number in (1, 2):
                driver.push(number, number - 1)
                assert same(worker.weights, version(number))
                assert driver.weight_version() == f"v{number}"
        assert fake.calls == ["/init_weight_transfer_engine", *PUSHED_VLLM, *PUSHED_VLLM]
        assert worker.num_inits == 1
        assert not fake.is_paused

    def test_several_versions_at_once(self, fake: FakeVllm, worker: Worker, store: Path) -> None:
        with client_of(fake.app()) as client:
            self.driver(client, store).push(2, 0)
        assert same(worker.weights, version(2))

    def test_a_wrong_base_is_refused_before_anything_is_asked(
        self, fake: FakeVllm, worker: Worker, store: Path
    ) -> None:
        with (
            client_of(fake.app()) as client,
            pytest.raises(WeightsRefused, match="holds v0, the change is for v1") as caught,
        ):
            self.driver(client, store).push(2, 1)
        assert caught.value.code == "wrong_base"
        assert fake.calls == []
        assert same(worker.weights, version(0))

    def test_a_server_just_started_is_told_what_it_holds(self, fake: FakeVllm, worker: Worker, store: Path) -> None:
        fake.label = "default"
        with client_of(fake.app()) as client:
            driver = self.driver(client, store)
            with pytest.raises(WeightsRefused, match="holds default"):
                driver.push(1, 0)
            driver.declare(0)
            driver.push(1, 0)
        assert same(worker.weights, version(1))

    def test_a_failure_in_the_middle_is_named_and_nothing_is_put_on_top(
        self, fake: FakeVllm, worker: Worker, store: Path
    ) -> None:
        worker.dies_after = 1
        with client_of(fake.app()) as client:
            driver = self.driver(client, store)
            with pytest.raises(
                Unavailable, match=r"device is gone.*mixture of v0 and v1.*load a full version"
            ) as caught:
                driver.push(1, 0)
            assert caught.value.facts["mixed"] is True
            assert fake.calls[-1] == "/resume"
            assert not fake.is_paused
            assert not same(worker.weights, version(0))
            assert not same(worker.weights, version(1))
            worker.dies_after = None
            for base in (0, 1):
                with pytest.raises(WeightsRefused, match="holds v0-to-v1"):
                    driver.push(2, base)
            worker.weights = version(1)  # reloaded in full
            driver.declare(1)
            driver.push(2, 1)
        assert same(worker.weights, version(2))

    def test_a_failure_before_the_update_leaves_the_weights_alone(
        self, fake: FakeVllm, worker: Worker, store: Path
    ) -> None:
        fake.fails_at = "/start_weight_update"
        with client_of(fake.app()) as client:
            driver = self.driver(client, store)
            with pytest.raises(Unavailable, match="/start_weight_update fails") as caught:
                driver.push(1, 0)
            assert "mixed" not in caught.value.facts
            assert not fake.is_paused
            assert driver.weight_version() == "v0"
            fake.fails_at = None
            driver.push(1, 0)
        assert same(worker.weights, version(1))

    def test_a_server_that_dies_under_the_update_is_named(self, fake: FakeVllm, store: Path) -> None:
        with (
            client_of(fake.app(), Dying("/update_weights")) as client,
            pytest.raises(Unavailable, match=r"reset.*mixture of v0 and v1.*may still be paused.*/resume") as caught,
        ):
            self.driver(client, store).push(1, 0)
        assert caught.value.facts["path"] == "/update_weights"
        assert fake.label == "v0-to-v1"

    def test_a_server_that_does_not_resume_is_named(self, fake: FakeVllm, store: Path) -> None:
        fake.fails_at = "/resume"
        with client_of(fake.app()) as client, pytest.raises(Unavailable, match="holds v1; it may still be paused"):
            self.driver(client, store).push(1, 0)
        assert fake.is_paused

    def test_the_fake_refuses_what_is_out_of_order(self, fake: FakeVllm) -> None:
        with client_of(fake.app()) as client:
            assert client.post("/update_weights", json={"update_info": {}}).status_code == 500
            assert client.post("/update_weights", json={}).status_code == 400
            assert client.post("/finish_weight_update", json={}).status_code == 500
            assert client.post("/start_weight_update").status_code == 200
            assert client.post("/start_weight_update").status_code == 500

    def test_no_server_is_unavailable(self, store: Path) -> None:
        with (
            httpx.Client(base_url="http://127.0.0.1:1") as client,
            pytest.raises(Unavailable, match="did not answer"),
        ):
            self.driver(client, store).push(1, 0)
