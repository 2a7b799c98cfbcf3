"""vLLM's control endpoints in development mode, rebuilt from what its source does: one worker, no GPU.

Sources: vllm-project/vllm `vllm/entrypoints/serve/dev/rlhf/api_router.py` (routes, bodies, answers), `vllm/v1/worker/gpu_worker.py`
(a session is begun by start, ended by finish and by a failed update; anything else is out of order), the exception
handler (an exception of a worker is a 500 with an OpenAI error).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Protocol

from fastapi import Body, FastAPI, Request
from fastapi.responses import JSONResponse


class TransferEngine(Protocol):
    """What a worker calls on its weight transfer engine, as far as these tests go."""

    def init_transfer_engine(self, init_info: Any) -> None: ...
    def start_weight_update(self) -> None: ...
    def update_weights(self, update_info: dict[str, Any]) -> None: ...
    def finish_weight_update(self) -> None: ...


class FakeVllm:
    """Attributes:
    calls: paths with their queries, in the order they were asked for.
    fails_at: a path that answers 500 instead of doing its work.
    """

    def __init__(self, engine: TransferEngine) -> None:
        self.calls: list[str] = []
        self.fails_at: str | None = None
        self.label = "default"
        self.is_paused = False
        self._engine = engine
        self._is_active = False

    def app(self) -> FastAPI:
        app = FastAPI()

        self._serve_generation(app)
        self._serve_weights(app)
        return app

    def _serve_generation(self, app: FastAPI) -> None:
        @app.post("/pause")
        def pause(request: Request, mode: str = "abort") -> JSONResponse:
            if mode not in {"abort", "wait", "keep"}:
                return JSONResponse({"error": mode}, 400)
            return self._answer(request, lambda: setattr(self, "is_paused", True), {"status": "paused"})

        @app.post("/resume")
        def resume(request: Request) -> JSONResponse:
            return self._answer(request, lambda: setattr(self, "is_paused", False), {"status": "resumed"})

    def _serve_weights(self, app: FastAPI) -> None:
        @app.post("/init_weight_transfer_engine")
        def init(request: Request, body: Annotated[dict[str, Any], Body()]) -> JSONResponse:
            if body.get("init_info") is None:
                return JSONResponse({"error": {"message": "Missing 'init_info' in request body", "code": 400}}, 400)
            return self._answer(request, lambda: self._engine.init_transfer_engine(body["init_info"]), {})

        @app.post("/start_weight_update")
        def start(request: Request) -> JSONResponse:
            return self._answer(request, self._start, {"message": "Weight update started"})

        @app.post("/update_weights")
        def update(request: Request, body: Annotated[dict[str, Any], Body()]) -> JSONResponse:
            if body.get("update_info") is None:
                return JSONResponse({"error": {"message": "Missing 'update_info' in request body", "code": 400}}, 400)
            return self._answer(request, lambda: self._update(body["update_info"]), {"message": "Weights updated"})

        @app.post("/finish_weight_update")
        def finish(request: Request, weight_version: Annotated[str | None, Body(embed=True)] = None) -> JSONResponse:
            return self._answer(request, lambda: self._finish(weight_version), {"message": "Weight update finished"})

        @app.post("/update_weight_version")
        def update_weight_version(request: Request, new_version: Annotated[str, Body(embed=True)]) -> JSONResponse:
            answer = {"success": True, "new_version": new_version}
            return self._answer(request, lambda: setattr(self, "label", new_version), answer)

        @app.get("/weight_info")
        def weight_info() -> JSONResponse:
            return JSONResponse({"weight_version": self.label})

    def _answer(self, request: Request, do: Callable[[], None], answer: dict[str, Any]) -> JSONResponse:
        self.calls.append(str(request.url).removeprefix(str(request.base_url).rstrip("/")))
        try:
            self._fail_if_told(request.url.path)
            do()
        except Exception as error:  # noqa: BLE001 as the server does: whatever a worker raises is a 500
            return JSONResponse({"error": {"message": str(error), "type": "InternalServerError", "code": 500}}, 500)
        return JSONResponse(answer)

    def _fail_if_told(self, path: str) -> None:
        if path == self.fails_at:
            raise RuntimeError(f"{path} fails")

    def _start(self) -> None:
        if self._is_active:
            raise RuntimeError("start_weight_update called while a weight update is already active.")
        self._engine.start_weight_update()
        self._is_active = True

    def _update(self, update_info: dict[str, Any]) -> None:
        if not self._is_active:
            raise RuntimeError("start_weight_update must be called before update_weights.")
        try:
            self._engine.update_weights(update_info)
        except BaseException:
            self._is_active = False
            raise

    def _finish(self, weight_version: str | None) -> None:
        if not self._is_active:
            raise RuntimeError("finish_weight_update called without a matching start_weight_update.")
        self._engine.finish_weight_update()
        self._is_active = False
        self.label = weight_version or self.label
