"""More requests than an engine can take: a real engine on the demo's policy is paused, so that no request ends and all wait."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import httpx
import torch

from runtime.engine_key import authorization
from services.engine.app import make_app
from services.engine.engine import Engine
from services.engine.follower import Follower
from services.engine.settings import EngineSettings
from tests.worlds.engines.own import POLICY, open_engine_on
from tests.worlds.paths import BASE

KEY = "the-key-of-this-attack"
_PROMPT, _MAX_TOKENS = [5, 6, 7, 8], 4
_NUM_ASKED = 40
_LOOK_SECONDS = 0.005


class Flooded(NamedTuple):
    """What an engine did with `_NUM_ASKED` rollouts, then with as many requests of users."""

    rollouts: Counter[int]
    """By status; 0: it took the request."""
    users: Counter[int]
    unpolite: list[str]
    """Refusals that do not say what an SDK understands."""
    finished: Counter[int]
    """Of those that it took, by status, once it went on."""


def flood(settings: EngineSettings) -> Flooded:
    """Fill an engine that is paused, then let it go on."""
    with (
        tempfile.TemporaryDirectory() as folder,
        open_engine_on(Path(folder), BASE, "cpu", torch.float32, settings) as engine,
    ):
        engine.pause()
        return asyncio.run(_flood(engine))


async def _flood(engine: Engine) -> Flooded:
    app = make_app(engine, Follower(engine, dict, on_exit=lambda: None), KEY)
    transport = httpx.ASGITransport(app)
    unpolite: list[str] = []
    arm = engine.arms["live"]
    async with httpx.AsyncClient(
        transport=transport, base_url="http://engine", headers=authorization(KEY), timeout=60.0
    ) as client:

        async def ask(priority: int) -> httpx.Response:
            body = {
                "model": POLICY,
                "token_ids": _PROMPT,
                "sampling_params": {"max_tokens": _MAX_TOKENS, "ignore_eos": True},
                "priority": priority,
            }
            return await client.post("/inference/v1/generate", json=body)

        async def burst(priority: int) -> tuple[Counter[int], set[asyncio.Task[httpx.Response]]]:
            before = arm.num_in_flight
            asked = {asyncio.create_task(ask(priority)) for _ in range(_NUM_ASKED)}
            while sum(task.done() for task in asked) + arm.num_in_flight - before < _NUM_ASKED:  # noqa: ASYNC110 no event tells
                await asyncio.sleep(_LOOK_SECONDS)
            done = {task for task in asked if task.done()}
            waiting = asked - done
            unpolite.extend(why for task in done if (why := _unpolite(task.result())))
            return Counter([*(task.result().status_code for task in done), *(0 for _ in waiting)]), waiting

        rollouts, first = await burst(1)
        users, second = await burst(0)
        await asyncio.to_thread(engine.resume)
        finished = Counter([(await task).status_code for task in first | second])
    return Flooded(rollouts, users, unpolite, finished)


def _unpolite(answer: httpx.Response) -> str | None:
    error = answer.json().get("error", {})
    if answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
        is_told = answer.headers.get("retry-after", "").isdecimal() and error.get("code") == "engine_overloaded"
        return None if is_told and error.get("message") and "type" in error else f"429 says {answer.text}"
    return f"status {answer.status_code}"


def overflow() -> str | None:
    """What got into an engine beyond its bounds: the attack."""
    most = 10
    flooded = flood(EngineSettings(max_open_requests=most))
    problems = list(flooded.unpolite)
    if flooded.rollouts[0] + flooded.users[0] > most:
        problems.append(f"{flooded.rollouts[0] + flooded.users[0]} requests wait, and {most} may")
    if flooded.rollouts[0] > most // 2:
        problems.append(f"{flooded.rollouts[0]} rollouts left {flooded.users[0]} places for users")
    if flooded.users[0] < most // 2:
        problems.append(f"only {flooded.users[0]} users got in")
    if set(flooded.finished) != {200}:
        problems.append(f"those that were taken ended with {dict(flooded.finished)}")
    return "; ".join(problems) or None
