"""An SGLang server, rebuilt from the wheel of 0.5.23: its routes, bodies, answers and the order of their effects. One worker.

Sources: `srt/entrypoints/http_server.py` (routes, status codes), `srt/managers/tokenizer_manager.py` (events; `/generate` waits while
paused), `srt/managers/scheduler.py` (a flush needs that nothing runs; the queue may be full in a pause; a retracted request goes back
to the queue), `srt/utils/weight_versions.py` (spans), `srt/model_executor/model_runner_components/weight_updater.py` (a failed load
reads the new folder again).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body, FastAPI
from fastapi.responses import JSONResponse, Response, StreamingResponse

from weights.tensors import read_safetensors, root_of

END = 2


class FakeSglang:
    """See the module.

    Attributes:
        incremental: `--incremental-streaming-output`.
        fails_at: a path that fails.
        steps: one item for each token that may be made, see `step`; None: all at once.
    """

    def __init__(self, base: Path) -> None:
        self.model_path, self.tokenizer_path = str(base), str(base)
        self.weight_version = "default"
        self.held_root: str | None = None
        self.incremental = True
        self.fails_at: str | None = None
        self.loads_mixed = False
        self.calls: list[str] = []
        self.requests: list[dict[str, Any]] = []
        self.tokens = [70, 71, 72, END]
        self.steps: asyncio.Queue[None] | None = None
        self.abort: dict[str, Any] | None = None
        self.num_running = self.num_flushes = 0
        self._is_retracted = False
        self._events: list[tuple[str, int]] = []
        self._num_made = 0
        self._unpaused = asyncio.Event()
        self._unpaused.set()

    @property
    def is_paused(self) -> bool:
        return not self._unpaused.is_set()

    def app(self) -> FastAPI:
        app = FastAPI()
        app.get("/health")(self.health)
        app.get("/model_info")(self.model_info)
        app.get("/server_info")(
            lambda: {"version": "0.5.23", "dtype": "bfloat16", "enable_deterministic_inference": False}
        )
        app.post("/generate")(self.generate)
        app.post("/step")(self.step)
        for path in (
            "/pause_generation",
            "/continue_generation",
            "/update_weight_version",
            "/update_weights_from_disk",
        ):
            self._serve(app, path)
        return app

    def _serve(self, app: FastAPI, path: str) -> None:
        @app.post(path)
        async def route(body: Annotated[dict[str, Any], Body()]) -> JSONResponse:
            self.calls.append(path)
            if path == self.fails_at and path != "/update_weights_from_disk":
                return JSONResponse({"success": False, "message": f"{path} fails"}, 400)
            answer: JSONResponse = getattr(self, path.removeprefix("/"))(body)
            return answer

    async def step(self) -> None:
        """Of the test: the running request may make one more token."""
        assert self.steps is not None
        self.steps.put_nowait(None)

    def health(self) -> None:
        """It answers."""

    def model_info(self) -> dict[str, Any]:
        return {
            "model_path": self.model_path, "tokenizer_path": self.tokenizer_path, "served_model_name": "demo",
            "is_generation": True, "weight_version": self.weight_version, "load_format": "auto",
        }  # fmt: skip

    def pause_generation(self, body: dict[str, Any]) -> JSONResponse:
        assert body["mode"] in {"abort", "retract", "in_place"}
        self._is_retracted = body["mode"] == "retract"
        self._unpaused.clear()
        return JSONResponse({"message": "Generation paused successfully.", "status": "ok"})

    def continue_generation(self, body: dict[str, Any]) -> JSONResponse:
        assert body["torch_empty_cache"] is False
        self._is_retracted = False
        self._unpaused.set()
        return JSONResponse({"message": "Generation continued successfully.", "status": "ok"})

    def update_weight_version(self, body: dict[str, Any]) -> JSONResponse:
        assert body["abort_all_requests"] is False, "requests in flight go on"
        self._name(body["new_version"])
        return JSONResponse({"success": True, "message": "", "new_version": body["new_version"]})

    def update_weights_from_disk(self, body: dict[str, Any]) -> JSONResponse:
        folder = Path(body["model_path"])
        assert (folder / "config.json").exists()
        files = list(folder.glob("*.safetensors"))
        assert len(files) == 1, "all of them would be read"
        if self.fails_at == "/update_weights_from_disk":
            self.held_root = None
            message = "Failed to update weights: out of memory.\nRolling back to original weights."
            return JSONResponse({"success": False, "message": message, "num_paused_requests": 0}, 400)
        self.held_root = root_of(read_safetensors(files[0]))
        self.model_path = str(folder)
        self._name(body["weight_version"])
        if body["flush_cache"] and self.num_running and not self._is_retracted:
            return JSONResponse(
                {"success": False, "message": "Weights were updated, but the cache was not flushed"}, 400
            )
        self.num_flushes += bool(body["flush_cache"])
        return JSONResponse(
            {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}
        )

    def _name(self, version: str) -> None:
        if version != self.weight_version and self._num_made:
            self._events.append((self.weight_version, self._num_made))
        self.weight_version = version

    def spans(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for version, end in [*self._events, (self.weight_version, self._num_made)]:
            if found and end <= found[-1]["end"]:
                continue
            if found and version == found[-1]["version"]:
                found[-1]["end"] = end
                continue
            found.append({"version": version, "start": found[-1]["end"] if found else 0, "end": end})
        return found

    async def generate(self, body: Annotated[dict[str, Any], Body()]) -> Response:
        self.requests.append(body)
        if body["sampling_params"]["repetition_penalty"] == 1.5:
            return JSONResponse({"error": {"message": "repetition_penalty of this server"}}, 400)
        await self._unpaused.wait()
        return StreamingResponse(self._stream(body), media_type="text/event-stream")

    async def _stream(self, body: dict[str, Any]) -> AsyncIterator[str]:
        made: list[int] = []
        self._events, self._num_made, self.num_running = [], 0, 1
        for token in self.tokens[: body["sampling_params"]["max_new_tokens"]]:
            if self.steps is not None:
                await self.steps.get()
            await self._unpaused.wait()
            made.append(token)
            self._num_made = len(made)
            ended: dict[str, Any] | None = {"type": "stop", "matched": END} if token == END else None
            if ended is None and len(made) == body["sampling_params"]["max_new_tokens"]:
                ended = {"type": "length", "length": len(made)}
            yield f"data: {json.dumps(self._event(body, made, self.abort or ended))}\n\n"
            if self.abort:
                break
        self.num_running = 0
        yield "data: [DONE]\n\n"

    def _event(self, body: dict[str, Any], made: list[int], finish: dict[str, Any] | None) -> dict[str, Any]:
        first = len(made) - 1 if self.incremental else 0
        logprobs = [[-0.5 - place, token, None] for place, token in enumerate(made)]
        num_top = body["top_logprobs_num"]
        tops = [[[-0.1 * (n + 1), 80 + n, None] for n in range(num_top)] for _ in made]
        meta: dict[str, Any] = {
            "id": body["rid"], "finish_reason": finish, "prompt_tokens": len(body["input_ids"]),
            "weight_version": self.weight_version, "completion_tokens": len(made), "cached_tokens": 0,
            "output_token_logprobs": logprobs[first:], "output_token_logprobs_length": len(made), "input_token_logprobs": [],
        }  # fmt: skip
        if num_top:
            meta["output_top_logprobs"] = tops[first:]
        if finish is not None:
            meta["weight_versions"] = self.spans()
            meta["weight_version"] = meta["weight_versions"][-1]["version"]
        return {"text": "x", "output_ids": made[first:], "meta_info": meta}
