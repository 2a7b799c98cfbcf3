"""The HTTP API of the engine: vLLM's token-in-token-out route, and what operators ask. `Guard` checks the key first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from contracts.errors import InvalidRequest, MillraceError
from services.engine.active_requests import ActiveRequest
from services.engine.answers import GeneratedAnswer
from services.engine.arm import EngineArm
from services.engine.engine import ENGINE, Engine
from services.engine.follower import Follower
from services.engine.sampling import GenerateRequest
from services.http import CLIENT_LEFT, event, read_json, reply, wait_for_disconnect

_OK, _UNAVAILABLE = 200, 503
ResultType = TypeVar("ResultType")


class _UpdateInfo(msgspec.Struct, frozen=True):
    arm: str
    version: int


class _UpdateWeights(msgspec.Struct, frozen=True):
    update_info: _UpdateInfo


def make_router(engine: Engine, follower: Follower) -> APIRouter:
    """All routes over one engine; /state includes the follower's problems."""
    router = APIRouter()
    _add_generate(router, engine)
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


def _add_generate(router: APIRouter, engine: Engine) -> None:
    @router.post("/inference/v1/generate")
    async def generate(client: Request) -> Response:
        request = read_json(GenerateRequest, await client.body())
        arm = engine.resolve(request.model, request.arm)
        active = await _unless_disconnected(client, arm.open(request))
        if active is None:
            return Response(status_code=CLIENT_LEFT)
        answer = GeneratedAnswer(engine, request, active)
        if request.stream:
            events = _events(arm, answer, active)
            return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-store"})
        try:
            chunk = await _unless_disconnected(client, anext(aiter(active.chunks())))
        finally:
            arm.cancel(active)
        return Response(status_code=CLIENT_LEFT) if chunk is None else reply(answer.part(chunk))


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


async def _unless_disconnected(client: Request, wanted: Awaitable[ResultType]) -> ResultType | None:
    """What is wanted, or None if the client left first: then it is cancelled."""
    result = asyncio.ensure_future(wanted)
    left = asyncio.ensure_future(wait_for_disconnect(client))
    try:
        await asyncio.wait({result, left}, return_when=asyncio.FIRST_COMPLETED)
        return result.result() if result.done() else None
    finally:
        left.cancel()
        result.cancel()


async def _events(arm: EngineArm, answer: GeneratedAnswer, active: ActiveRequest) -> AsyncIterator[bytes]:
    try:
        async for chunk in active.chunks():
            yield event(answer.part(chunk))
        yield b"data: [DONE]\n\n"
    except MillraceError as error:  # the status line has been sent, so the last event reports it
        yield event({**error.as_openai(), "status": error.status})
    finally:
        arm.cancel(active)
