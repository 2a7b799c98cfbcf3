"""The HTTP API of the engine: vLLM's token-in-token-out route, and what operators ask. `Guard` checks the key first."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from contracts.errors import InvalidRequest, MillraceError
from contracts.sampling import Span
from runtime.heartbeat import end_heartbeats
from services.engine.active_requests import ActiveRequest, TokenChunk
from services.engine.announcing import EngineAnnouncer
from services.engine.arm import EngineArm
from services.engine.engine import ENGINE, Engine
from services.engine.follower import Follower
from services.engine.guard import Guard
from services.engine.sampling import GenerateRequest
from services.http import CLIENT_LEFT, event, make_service, read_json, reply, wait_for_disconnect

_OK, _UNAVAILABLE = 200, 503
_MOST_BODY_BYTES = 2**24
"""A prompt of two million ids. Only our gateways ask here, and they bound what apps send."""
ResultType = TypeVar("ResultType")


class _UpdateInfo(msgspec.Struct, frozen=True):
    arm: str
    version: int


class _UpdateWeights(msgspec.Struct, frozen=True):
    update_info: _UpdateInfo


class GeneratedAnswer:
    """Turns the chunks of one request into the bodies of a response, in order: vLLM's, with the version of each token.

    `weight_versions` stands in every chunk that begins a span, which names only the new ones, and in the last one, which names all.
    `timings` and `system` are ours; the last chunk has them. `usage` stands in the first chunk too, with the `cached_tokens` of the prompt.
    """

    def __init__(self, engine: Engine, active: ActiveRequest) -> None:
        self._engine = engine
        self._active = active
        self._spans: list[Span] = []
        self._num_made = 0
        self._num_cached = 0

    def part(self, chunk: TokenChunk) -> dict[str, Any]:
        """The body of one chunk."""
        self._num_made += len(chunk.token_ids)
        self._num_cached = self._num_cached if chunk.num_cached is None else chunk.num_cached
        self._spans += chunk.spans
        is_last = chunk.finish_reason is not None
        told = self._spans if is_last else chunk.spans
        choice: dict[str, Any] = {
            "index": 0,
            "token_ids": chunk.token_ids,
            "logprobs": {"content": _content(chunk)},
            "finish_reason": chunk.finish_reason,
        }
        if told:
            # In vLLM's shape: tokens [start, end) of the answer; the last span ends with what is made so far.
            ends = [*(span.start for _, span in pairwise(told)), self._num_made]
            choice["weight_versions"] = [
                {"version": f"v{span.version}", "start": span.start, "end": end}
                for span, end in zip(told, ends, strict=True)
            ]
        if chunk.routed_experts:
            choice["routed_experts"] = base64.b64encode(chunk.routed_experts).decode()
        body: dict[str, Any] = {
            "request_id": self._active.request.request_id or self._active.request_id,
            "model": self._active.request.model,
            "choices": [choice],
        }
        if is_last or chunk.num_cached is not None:
            num_prompt = self._active.num_prompt
            body["usage"] = {
                "prompt_tokens": num_prompt,
                "completion_tokens": self._num_made,
                "total_tokens": num_prompt + self._num_made,
                "prompt_tokens_details": {"cached_tokens": self._num_cached},
            }
        if is_last:
            body["timings"] = self._active.timings()
            body["system"] = self._engine.system()
        return body


def _content(chunk: TokenChunk) -> list[dict[str, Any]]:
    top = chunk.top_logprobs or [[]] * len(chunk.token_ids)
    return [
        {
            "token_id": token_id,
            "logprob": logprob,
            "top_logprobs": [{"token_id": other, "logprob": value} for other, value in others],
        }
        for token_id, logprob, others in zip(chunk.token_ids, chunk.logprobs, top, strict=True)
    ]


def make_app(engine: Engine, follower: Follower, key: str, announcer: EngineAnnouncer | None = None) -> FastAPI:
    """The application over an engine; `key`: the secret that every caller must send. /state includes the follower's problems."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        follower.start()
        if announcer is not None:
            announcer.start()
        yield
        stops = [follower.stop, engine.close, end_heartbeats]
        for stop in stops if announcer is None else [announcer.stop, *stops]:
            await asyncio.to_thread(stop)

    app = make_service("Millrace engine", lifespan, most_body_bytes=_MOST_BODY_BYTES)
    app.add_middleware(Guard, key=key)  # the middleware that is added last runs first
    _add_generate(app, engine)
    _add_weights(app, engine)

    @app.get("/health")
    async def health() -> Response:
        status, _ = engine.health()
        is_serving = status == "serving"  # open to everybody, so it tells nothing more
        return reply({"status": "serving" if is_serving else "not serving"}, _OK if is_serving else _UNAVAILABLE)

    @app.get("/state")
    async def state() -> Response:
        status, facts = engine.health()
        content = {"status": status, **facts, "problems": follower.problems()}
        return reply(content, _OK if status == "serving" else _UNAVAILABLE)

    @app.get("/version")
    async def version() -> Response:
        return reply({"version": ENGINE})

    @app.get("/v1/models")
    async def models() -> Response:
        names = [engine.policy, *(f"{engine.policy}@v{number}" for number in sorted(set(engine.versions().values())))]
        return reply({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})

    @app.get("/swaps")
    async def swaps() -> Response:
        return reply({"swaps": list(engine.swaps)})

    return app


def _add_generate(app: FastAPI, engine: Engine) -> None:
    @app.post("/inference/v1/generate")
    async def generate(client: Request) -> Response:
        request = read_json(GenerateRequest, await client.body())
        arm = engine.resolve(request.model, request.arm)
        active = await _unless_disconnected(client, arm.open(request))
        if active is None:
            return Response(status_code=CLIENT_LEFT)
        answer = GeneratedAnswer(engine, active)
        if request.stream:
            events = _events(arm, answer, active)
            return StreamingResponse(events, media_type="text/event-stream", headers={"cache-control": "no-store"})
        try:
            chunk = await _unless_disconnected(client, anext(aiter(active.chunks())))
        finally:
            arm.cancel(active)
        return Response(status_code=CLIENT_LEFT) if chunk is None else reply(answer.part(chunk))


def _add_weights(app: FastAPI, engine: Engine) -> None:
    @app.post("/pause")
    async def pause(mode: str = "keep") -> Response:
        if mode != "keep":
            raise InvalidRequest(
                f"pause mode {mode!r} would lose requests in flight; only keep is supported", param="mode"
            )
        await asyncio.to_thread(engine.pause)
        return reply({"status": "paused"})

    @app.post("/resume")
    async def resume() -> Response:
        await asyncio.to_thread(engine.resume)
        return reply({"status": "resumed"})

    @app.get("/is_paused")
    async def is_paused() -> Response:
        return reply({"is_paused": engine.is_paused})

    @app.post("/update_weights")
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
