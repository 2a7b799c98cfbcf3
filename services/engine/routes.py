"""The HTTP surface: the part of vLLM's dialect that we need, and what operators ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from contracts.errors import EngineRestarted, InvalidRequest
from services.engine.active_requests import ActiveRequest, TokenChunk
from services.engine.arm import EngineArm
from services.engine.engine import ENGINE, Engine
from services.engine.follower import Follower
from services.engine.sampling import CompletionRequest, parse_request

_CLIENT_CLOSED_REQUEST = 499  # nobody reads it; nginx's name for it in access logs
_OK, _UNAVAILABLE = 200, 503


class _UpdateInfo(msgspec.Struct, frozen=True):
    arm: str
    version: int


class _UpdateWeights(msgspec.Struct, frozen=True):
    update_info: _UpdateInfo


def make_router(engine: Engine, follower: Follower) -> APIRouter:
    """All routes over one engine; the follower adds its problems to /state."""
    router = APIRouter()
    _add_completions(router, engine)
    _add_weights(router, engine)

    @router.get("/health")
    async def health() -> Response:
        status, _ = engine.health()  # anybody may ask, so nobody is told more
        is_serving = status == "serving"
        return _json({"status": "serving" if is_serving else "not serving"}, status_code=_code(is_serving=is_serving))

    @router.get("/state")
    async def state() -> Response:
        status, facts = engine.health()
        content = {"status": status, **facts, "problems": follower.problems()}
        return _json(content, status_code=_code(is_serving=status == "serving"))

    @router.get("/version")
    async def version() -> Response:
        return _json({"version": ENGINE})

    @router.get("/v1/models")
    async def models() -> Response:
        names = [engine.policy, *(f"{engine.policy}@v{number}" for number in sorted(set(engine.versions().values())))]
        return _json({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})

    @router.get("/swaps")
    async def swaps() -> Response:
        return _json({"swaps": list(engine.swaps)})

    return router


def _add_completions(router: APIRouter, engine: Engine) -> None:
    @router.post("/v1/completions")
    async def completions(http_request: Request) -> Response:
        request = parse_request(await http_request.body())
        arm = engine.resolve(request.model)
        active = arm.submit(request)
        if request.stream:
            events = _events(engine, arm, request, active)
            return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-store"})
        try:
            chunk = await _unless_disconnected(http_request, active)
        finally:
            arm.cancel(active)
        return (
            Response(status_code=_CLIENT_CLOSED_REQUEST)
            if chunk is None
            else _json(_answer(engine, request, active, chunk))
        )


def _add_weights(router: APIRouter, engine: Engine) -> None:
    @router.post("/pause")
    async def pause(mode: str = "keep") -> Response:
        if mode != "keep":
            raise InvalidRequest(
                f"pause mode {mode!r} would lose requests in flight; only keep is served", param="mode"
            )
        await asyncio.to_thread(engine.pause)
        return _json({"status": "paused"})

    @router.post("/resume")
    async def resume() -> Response:
        await asyncio.to_thread(engine.resume)
        return _json({"status": "resumed"})

    @router.get("/is_paused")
    async def is_paused() -> Response:
        return _json({"is_paused": engine.is_paused})

    @router.post("/update_weights")
    async def update_weights(http_request: Request) -> Response:
        try:
            info = msgspec.json.decode(await http_request.body(), type=_UpdateWeights).update_info
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"not an update: {error}", param="update_info") from error
        record = await asyncio.to_thread(engine.update, info.arm, info.version)
        return _json({"arm": info.arm, "version": info.version, "swap": record})


async def _unless_disconnected(http_request: Request, active: ActiveRequest) -> TokenChunk | None:
    """The whole answer, or None if the client left first."""
    answer = asyncio.ensure_future(anext(aiter(active.chunks())))
    left = asyncio.ensure_future(_disconnected(http_request))
    try:
        await asyncio.wait({answer, left}, return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else None
    finally:
        left.cancel()
        answer.cancel()


async def _disconnected(http_request: Request) -> None:
    while (await http_request.receive())["type"] != "http.disconnect":
        pass


async def _events(
    engine: Engine, arm: EngineArm, request: CompletionRequest, active: ActiveRequest
) -> AsyncIterator[bytes]:
    try:
        async for chunk in active.chunks():
            yield _event(_answer(engine, request, active, chunk))
        yield b"data: [DONE]\n\n"
    except EngineRestarted as error:  # the status line is gone; the last event says it
        yield _event({**error.as_openai(), "status": error.status})
    finally:
        arm.cancel(active)


def _event(content: object) -> bytes:
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


def _answer(engine: Engine, request: CompletionRequest, active: ActiveRequest, chunk: TokenChunk) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "id": request.request_id or active.request_id,
        "object": "text_completion",
        "model": request.model,
        "choices": [
            {
                "index": 0,
                "token_ids": chunk.token_ids,
                "logprobs": {"token_logprobs": chunk.logprobs},
                "finish_reason": chunk.finish_reason,
            }
        ],
        "spans": chunk.spans,
    }
    if chunk.finish_reason is not None:
        num_prompt, num_made = active.num_prompt, len(active.token_times)
        answer["usage"] = {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_made,
            "total_tokens": num_prompt + num_made,
        }
        answer["timings"] = active.timings()
        answer["system"] = engine.system()
    return answer


def _code(*, is_serving: bool) -> int:
    return _OK if is_serving else _UNAVAILABLE


def _json(content: object, status_code: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status_code=status_code, media_type="application/json")
