"""The HTTP API of the engine: the part of vLLM's dialect that we need, and what operators ask. `Guard` checks the key first."""

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
from services.engine.sampling import CompletionRequest
from services.http import CLIENT_LEFT, event, read_json, reply, wait_for_disconnect

_OK, _UNAVAILABLE = 200, 503


class _UpdateInfo(msgspec.Struct, frozen=True):
    arm: str
    version: int


class _UpdateWeights(msgspec.Struct, frozen=True):
    update_info: _UpdateInfo


def make_router(engine: Engine, follower: Follower) -> APIRouter:
    """All routes over one engine; /state includes the follower's problems."""
    router = APIRouter()
    _add_completions(router, engine)
    _add_weights(router, engine)

    @router.get("/health")
    async def health() -> Response:
        status, _ = engine.health()
        is_serving = status == "serving"  # open to everybody, so it tells nothing more
        return reply({"status": "serving" if is_serving else "not serving"}, _OK if is_serving else _UNAVAILABLE)

    @router.get("/state")
    async def state() -> Response:
        status, facts = engine.health()
        content = {"status": status, **facts, "problems": follower.problems()}
        return reply(content, _OK if status == "serving" else _UNAVAILABLE)

    @router.get("/version")
    async def version() -> Response:
        return reply({"version": ENGINE})

    @router.get("/v1/models")
    async def models() -> Response:
        names = [engine.policy, *(f"{engine.policy}@v{number}" for number in sorted(set(engine.versions().values())))]
        return reply({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})

    @router.get("/swaps")
    async def swaps() -> Response:
        return reply({"swaps": list(engine.swaps)})

    return router


def _add_completions(router: APIRouter, engine: Engine) -> None:
    @router.post("/v1/completions")
    async def completions(client: Request) -> Response:
        request = read_json(CompletionRequest, await client.body())
        arm = engine.resolve(request.model)
        active = arm.submit(request)
        if request.stream:
            events = _events(engine, arm, request, active)
            return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-store"})
        try:
            chunk = await _unless_disconnected(client, active)
        finally:
            arm.cancel(active)
        return Response(status_code=CLIENT_LEFT) if chunk is None else reply(_answer(engine, request, active, chunk))


def _add_weights(router: APIRouter, engine: Engine) -> None:
    @router.post("/pause")
    async def pause(mode: str = "keep") -> Response:
        if mode != "keep":
            raise InvalidRequest(
                f"pause mode {mode!r} would lose requests in flight; only keep is supported", param="mode"
            )
        await asyncio.to_thread(engine.pause)
        return reply({"status": "paused"})

    @router.post("/resume")
    async def resume() -> Response:
        await asyncio.to_thread(engine.resume)
        return reply({"status": "resumed"})

    @router.get("/is_paused")
    async def is_paused() -> Response:
        return reply({"is_paused": engine.is_paused})

    @router.post("/update_weights")
    async def update_weights(client: Request) -> Response:
        info = read_json(_UpdateWeights, await client.body()).update_info
        record = await asyncio.to_thread(engine.update, info.arm, info.version)
        return reply({"arm": info.arm, "version": info.version, "swap": record})


async def _unless_disconnected(client: Request, active: ActiveRequest) -> TokenChunk | None:
    """The whole answer, or None if the client left first."""
    answer = asyncio.ensure_future(anext(aiter(active.chunks())))
    left = asyncio.ensure_future(wait_for_disconnect(client))
    try:
        await asyncio.wait({answer, left}, return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else None
    finally:
        left.cancel()
        answer.cancel()


async def _events(
    engine: Engine, arm: EngineArm, request: CompletionRequest, active: ActiveRequest
) -> AsyncIterator[bytes]:
    try:
        async for chunk in active.chunks():
            yield event(_answer(engine, request, active, chunk))
        yield b"data: [DONE]\n\n"
    except EngineRestarted as error:  # the status line has been sent, so the last event reports it
        yield event({**error.as_openai(), "status": error.status})
    finally:
        arm.cancel(active)


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
