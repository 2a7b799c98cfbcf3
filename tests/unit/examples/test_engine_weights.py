"""What the demo says about the weights of vLLM servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from commands.home import Home
from contracts.engines import EngineReplica, announce
from examples.demo.engine_weights import compare_engines
from tests.unit.engines.vllm.fake_vllm import FakeModel, FakeVllm, as_floats, weights_of
from tests.unit.services.serving import serve
from weights.publish import publish_version
from weights.stores.opening import open_weight_store


def replica(url: str, status: str = "serving") -> EngineReplica:
    return EngineReplica(
        name="vllm-1", policy="booking", url=url, kind="vllm", region="local", status=status, slots={"live": 0},
        abilities=frozenset(), instance="1", engine="vllm", dtype="float32", seen_at=0.0,
    )  # fmt: skip


def tell(home: Home, row: EngineReplica) -> None:
    with home.settings.transaction() as connection:
        announce(connection, row)


@pytest.fixture
def model(home: Home) -> Iterator[FakeModel]:
    """Of a server that serves version 0."""
    publish_version(
        open_weight_store(home.settings), policy="booking", run="r", version=0, parent=None, base=None,
        target=weights_of(0), step=0, epoch=1, num_samples=1, created_at=0.0,
    )  # fmt: skip
    model = FakeModel()
    model.embed.weight.data.copy_(as_floats(weights_of(0), "embed.weight"))
    model.layer.weight.data.copy_(as_floats(weights_of(0), "layer.weight"))
    for layer in (model.embed, model.layer, model.head):
        layer.quant_method.process_weights_after_loading(layer)
    with serve(FakeVllm(model).app()) as url:
        tell(home, replica(url))
        yield model


def test_a_home_without_vllm_says_nothing(home: Home) -> None:
    assert compare_engines(home.settings) == {}


def test_each_server_is_compared_with_what_was_published(home: Home, model: FakeModel) -> None:
    assert compare_engines(home.settings)["weights_exact"] is True
    model.head.packed = torch.zeros(4, 8)
    found = compare_engines(home.settings)
    assert found["weights_exact"] is False
    assert found["weights"]["vllm-1"]["v0"]["different"] == ("head.weight",)


def test_a_server_that_does_not_serve_is_not_known_to_be_right(home: Home) -> None:
    tell(home, replica("http://127.0.0.1:1", "failed"))
    assert compare_engines(home.settings) == {"weights_exact": False, "weights": {}}
