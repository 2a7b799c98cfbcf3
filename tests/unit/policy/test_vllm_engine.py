from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from contracts.errors import InvalidSettings, NotFound, Unavailable, Unsupported, WeightsRefused
from policy.vllm_engine import BACKEND, PLAIN, InitInfo, UpdateInfo, make_engine, make_loader, read_plain, register
from tests.unit.services.serving import serve
from tests.unit.weights.awkward_weights import MINUS_ZERO, NAN, bf16, make_checkpoint, same, tensor, version
from tests.unit.weights.fake_vllm import FakeVllm
from weights.codec.history import History
from weights.engines.vllm import VllmServer
from weights.publish import publish_version
from weights.stores.opening import open_store_at
from weights.tensors import Tensor, Tensors
from weights.versions.keys import TRUSTED_KEYS, write_public_key
from weights.versions.signing import Signer

FUSED = {"layer.0.query": 0, "layer.0.value": 32}


def fused_version(number: int) -> Tensors:
    """As `version`, with a tensor that the model below fuses with another."""
    return version(number) | {"layer.0.value": tensor("BF16", bf16(50, 32, 32) ^ np.uint16(number))}


class FakeModel(torch.nn.Module):
    """Loads weights as vLLM's models do: under the checkpoint's names, some into a part of a fused parameter."""

    def __init__(self, tensors: Tensors) -> None:
        super().__init__()
        self.embed = torch.nn.Parameter(torch.zeros(64, 32, dtype=torch.bfloat16))
        self.norm = torch.nn.Parameter(torch.zeros(32, dtype=torch.bfloat16))
        self.fused = torch.nn.Parameter(torch.zeros(64, 32, dtype=torch.bfloat16))
        self.fails_at: str | None = None
        with torch.no_grad():
            self.load_weights((name, as_torch(value)) for name, value in tensors.items())

    def load_weights(self, weights: Any) -> set[str]:
        loaded = set()
        for name, value in weights:
            if name == self.fails_at:
                raise RuntimeError("CUDA out of memory")
            self.destination(name).copy_(value)
            loaded.add(name)
        return loaded

    def destination(self, name: str) -> torch.Tensor:
        if name in FUSED:
            return self.fused.data[FUSED[name] : FUSED[name] + 32]
        return {"embed.weight": self.embed.data, "layer.0.norm": self.norm.data}[name]

    def bits(self) -> Tensors:
        return {
            name: Tensor("BF16", tuple(value.shape), value.contiguous().view(torch.uint8).reshape(-1).numpy().copy())
            for name, value in ((name, self.destination(name)) for name in fused_version(0))
        }


def as_torch(value: Tensor) -> torch.Tensor:
    return torch.from_numpy(value.data.view("<i2")).view(torch.bfloat16).reshape(value.shape)


class FakePatch(NamedTuple):
    """`CheckpointWeightPatch`."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    values: torch.Tensor
    indices: torch.Tensor | None = None


@torch.no_grad()
def fake_load_patches(model: FakeModel, patches: list[FakePatch]) -> set[str]:
    """`load_checkpoint_weight_patches`: all are checked, then each goes through the model's loader with NaN as "unchanged"."""
    for patch in patches:
        assert patch.indices is not None
        assert patch.values.ndim == patch.indices.ndim == 1
        assert patch.values.dtype == patch.dtype
        assert patch.indices.dtype in {torch.int32, torch.int64}
        if patch.values.isnan().any() or len(set(patch.indices.tolist())) != len(patch.values):
            raise ValueError("Sparse checkpoint patches contain NaN values or duplicate indices")
    loaded: set[str] = set()
    for patch in patches:
        staged = torch.full(patch.shape, float("nan"), dtype=patch.dtype)
        staged.view(-1)[patch.indices] = patch.values
        kept = model.destination(patch.name).clone()
        loaded |= model.load_weights([(patch.name, torch.where(staged.isnan(), kept, staged))])
    return loaded


class FakeAbstract(ABC):
    """`WeightTransferEngine`, as far as a subclass sees it."""

    init_info_cls: Any
    update_info_cls: Any
    supports_draft_weight_update = True

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: Any) -> None:
        self.config, self.vllm_config, self.device, self.model = config, vllm_config, device, model

    def update_weights(self, update_info: dict[str, Any]) -> None:
        try:
            typed = self.update_info_cls(**update_info)
        except TypeError as error:
            raise ValueError(f"Invalid update_info for {type(self).__name__}: {error}") from error
        self.receive_weights(typed)

    @abstractmethod
    def init_transfer_engine(self, init_info: Any) -> None: ...
    @abstractmethod
    def start_weight_update(self) -> None: ...
    @abstractmethod
    def finish_weight_update(self) -> None: ...
    @abstractmethod
    def receive_weights(self, update_info: Any) -> None: ...
    @abstractmethod
    def shutdown(self) -> None: ...


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "demo").mkdir()
    for number in range(3):
        make_checkpoint(tmp_path / "demo" / f"v{number:06d}", fused_version(number))
    return tmp_path


@pytest.fixture
def model() -> FakeModel:
    return FakeModel(fused_version(0))


@pytest.fixture
def engine(model: FakeModel) -> Any:
    kind = make_engine(FakeAbstract, load=read_plain, make_patch=FakePatch, apply_patches=fake_load_patches)
    return kind(None, None, torch.device("cpu"), model)


def update(store: Path, number: int, base: int) -> dict[str, Any]:
    return {"policy": "demo", "version": number, "base_version": base, "store": str(store)}


def test_every_bit_arrives_in_place(engine: Any, model: FakeModel, store: Path) -> None:
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    engine.init_transfer_engine(InitInfo())
    for number in (1, 2):
        engine.start_weight_update()
        engine.update_weights(update(store, number, number - 1))
        engine.finish_weight_update()
        assert same(model.bits(), fused_version(number))
        assert engine.resident == number
    assert model.bits()["layer.0.query"].data.view("<u2")[0] == MINUS_ZERO
    assert [parameter.data_ptr() for parameter in model.parameters()] == addresses
    assert engine.supports_draft_weight_update is False
    engine.shutdown()


def test_what_did_not_change_is_not_written(model: FakeModel, store: Path) -> None:
    given: list[FakePatch] = []
    kind = make_engine(
        FakeAbstract, load=read_plain, make_patch=FakePatch, apply_patches=lambda _, patches: given.extend(patches)
    )
    kind(None, None, torch.device("cpu"), model).update_weights(update(store, 1, 0))
    assert [patch.name for patch in given] == ["embed.weight", "layer.0.query", "layer.0.value"]
    assert given[1].values.numel() == 4
    assert given[1].shape == (32, 32)


def test_a_wrong_base_is_refused_before_a_weight_changes(engine: Any, model: FakeModel, store: Path) -> None:
    engine.update_weights(update(store, 1, 0))
    with pytest.raises(WeightsRefused, match="holds version 1, the change is for 0") as caught:
        engine.update_weights(update(store, 2, 0))
    assert caught.value.code == "wrong_base"
    assert same(model.bits(), fused_version(1))
    engine.start_weight_update()
    engine.update_weights(update(store, 2, 1))
    assert same(model.bits(), fused_version(2))


@pytest.mark.parametrize(
    ("code", "name", "value"),
    [
        ("nan", "layer.0.value", tensor("BF16", np.full((32, 32), NAN, dtype="<u2"))),
        ("wrong_shape", "layer.0.norm", tensor("BF16", bf16(0, 4, 8))),
        ("unknown_tensor", "head.weight", tensor("BF16", bf16(0, 4))),
    ],
)
def test_what_vllm_cannot_take_is_refused_before_a_weight_changes(
    model: FakeModel, code: str, name: str, value: Tensor
) -> None:
    versions = {0: fused_version(0), 1: fused_version(1) | {name: value}, 2: fused_version(1)}
    kind = make_engine(
        FakeAbstract,
        load=lambda _store, _policy, number: versions[number],
        make_patch=FakePatch,
        apply_patches=fake_load_patches,
    )
    engine = kind(None, None, torch.device("cpu"), model)
    with pytest.raises(WeightsRefused) as caught:
        engine.update_weights(update(Path("anywhere"), 1, 0))
    assert caught.value.code == code
    assert same(model.bits(), fused_version(0))
    engine.start_weight_update()
    engine.update_weights(update(Path("anywhere"), 2, 0))
    assert same(model.bits(), fused_version(1))


def test_a_version_that_is_not_there_is_refused_before_a_weight_changes(
    engine: Any, model: FakeModel, store: Path
) -> None:
    with pytest.raises(NotFound, match=r"version 9 is not in .*write it there first"):
        engine.update_weights(update(store, 9, 0))
    assert same(model.bits(), fused_version(0))


def test_after_a_failure_in_the_middle_the_worker_takes_nothing_more(
    engine: Any, model: FakeModel, store: Path
) -> None:
    model.fails_at = "layer.0.query"
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.update_weights(update(store, 1, 0))
    assert not same(model.bits(), fused_version(0))
    assert not same(model.bits(), fused_version(1))
    model.fails_at = None
    with pytest.raises(Unavailable, match="restart the server"):
        engine.start_weight_update()


def test_driver_and_plug_in_meet_over_http(engine: Any, model: FakeModel, store: Path) -> None:
    fake = FakeVllm(engine)
    with serve(fake.app()) as url, httpx.Client(base_url=url, timeout=5.0) as client:
        driver = VllmServer(client, policy="demo", store=str(store))
        driver.declare(0)
        driver.push(1, 0)
        assert same(model.bits(), fused_version(1))
        model.fails_at = "layer.0.query"
        with pytest.raises(Unavailable, match=r"out of memory.*load a full version"):
            driver.push(2, 1)
        with pytest.raises(WeightsRefused, match="holds v1-to-v2"):
            driver.push(2, 1)
        assert not fake.is_paused


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Versions 0 to 2 as a trainer publishes them, and the environment of a worker that trusts it."""
    signer = Signer(Ed25519PrivateKey.generate())
    write_public_key(tmp_path / "trusted", signer.public_key)
    monkeypatch.setenv(TRUSTED_KEYS, str(tmp_path / "trusted"))
    for number in range(3):
        publish(tmp_path / "weights", number, signer)
    return tmp_path / "weights"


def publish(folder: Path, number: int, signer: Signer) -> None:
    publish_version(
        open_store_at(folder), policy="demo", run="run-1", version=number, parent=number - 1 if number else None,
        base=fused_version(number - 1) if number else None, target=fused_version(number), step=number, epoch=0,
        num_samples=1, created_at=0.0, history=History(), signer=signer,
    )  # fmt: skip


def test_a_published_version_is_given_to_it_over_http(model: FakeModel, published: Path) -> None:
    kind = make_engine(FakeAbstract, load=make_loader(), make_patch=FakePatch, apply_patches=fake_load_patches)
    fake = FakeVllm(kind(None, None, torch.device("cpu"), model))
    with serve(fake.app()) as url, httpx.Client(base_url=url, timeout=5.0) as client:
        driver = VllmServer(client, policy="demo", store=str(published))
        driver.declare(0)
        driver.push(1, 0)
        assert same(model.bits(), fused_version(1))
        for chunk in full_chunks(published):
            chunk.unlink()
        driver.push(2, 1)  # only what is new is read
        assert same(model.bits(), fused_version(2))


def full_chunks(published: Path) -> list[Path]:
    (full,) = open_store_at(published).edges("demo", 0)
    return [published / "demo" / "chunks" / chunk.blake3 for chunk in full.chunks]


def test_a_version_of_somebody_else_is_refused_before_a_weight_changes(model: FakeModel, published: Path) -> None:
    kind = make_engine(FakeAbstract, load=make_loader(), make_patch=FakePatch, apply_patches=fake_load_patches)
    engine = kind(None, None, torch.device("cpu"), model)
    publish(published, 3, Signer(Ed25519PrivateKey.generate()))
    with pytest.raises(WeightsRefused) as caught:
        engine.update_weights(update(published, 3, 0))
    assert caught.value.code == "unknown_key"
    assert same(model.bits(), fused_version(0))


def test_without_trusted_keys_nothing_is_taken(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TRUSTED_KEYS)
    with pytest.raises(InvalidSettings, match=f"set {TRUSTED_KEYS}"):
        make_loader()(str(published), "demo", 0)


class FakeFactory:
    """`WeightTransferEngineFactory`."""

    def __init__(self) -> None:
        self.registered: dict[str, type] = {}

    def register_engine(self, name: str, kind: type) -> None:
        if name in self.registered:
            raise ValueError(f"Weight transfer engine '{name}' is already registered.")
        self.registered[name] = kind


@pytest.fixture
def factory(monkeypatch: pytest.MonkeyPatch) -> FakeFactory:
    """A vLLM that can be imported, as far as registering goes."""
    modules = {
        name: ModuleType(name)
        for name in (
            "vllm",
            "vllm.distributed",
            "vllm.distributed.weight_transfer",
            "vllm.distributed.weight_transfer.base",
            "vllm.distributed.weight_transfer.factory",
            "vllm.model_executor",
            "vllm.model_executor.model_loader",
            "vllm.model_executor.model_loader.checkpoint_weight_patch",
        )
    }
    factory = FakeFactory()
    base, patch = modules["vllm.distributed.weight_transfer.base"], list(modules.values())[-1]
    base.__dict__["WeightTransferEngine"] = FakeAbstract
    modules["vllm.distributed.weight_transfer.factory"].__dict__["WeightTransferEngineFactory"] = factory
    patch.__dict__["CheckpointWeightPatch"] = FakePatch
    patch.__dict__["load_checkpoint_weight_patches"] = fake_load_patches
    for name, module in modules.items():
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    return factory


def test_it_registers_with_vllm(factory: FakeFactory, model: FakeModel, store: Path) -> None:
    assert register() is True
    engine = factory.registered[BACKEND](None, None, torch.device("cpu"), model)
    assert isinstance(engine, FakeAbstract)
    engine.update_weights(update(store, 1, 0) | {"store": f"{PLAIN}{store}"})
    assert same(model.bits(), fused_version(1))
    with pytest.raises(ValueError, match="already registered"):
        register()


def test_a_vllm_that_is_too_old_is_named(factory: FakeFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "vllm.model_executor.model_loader.checkpoint_weight_patch")
    with pytest.raises(Unsupported, match="newer is needed"):
        register()
    assert factory.registered == {}


def test_without_vllm_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    assert register() is False


def test_an_update_names_four_things() -> None:
    assert set(UpdateInfo.__dataclass_fields__) == {"policy", "version", "base_version", "store"}
