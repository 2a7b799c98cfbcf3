"""Whether an engine serves: a check of the processes that need one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress

import httpx

from contracts.assignments import LIVE
from contracts.engines import EngineReplica
from contracts.errors import Unavailable
from engines.fitting import fitting
from engines.registry import OWN
from runtime.base_policy import fingerprint
from runtime.engine_key import authorization, engine_key
from runtime.engine_rows import read_engines
from runtime.operations import Check
from runtime.settings import Settings

_ENGINE_SECONDS = 5.0


def engine_check(settings: Settings) -> Check:
    """Unready while no engine that announces itself (without any, the one at `engine_url`) serves the arm live and takes our key.

    Where a provider answers there is no engine, and a look at the provider would cost money: users see its outages as it tells them.
    """
    if not settings.base:
        return lambda: None
    headers = authorization(engine_key(settings.home))
    database, base = settings.database(), fingerprint(settings.base)
    held: list[EngineReplica] = []

    def check() -> None:
        nonlocal held
        with suppress(Unavailable):  # while the database is away, the last known ones
            rows = [row for row in read_engines(database, settings.policy) if row.is_fresh(time.time()) and row.url]
            held = [fitting(row, settings.run, base) for row in rows]
        if not held:
            _ask(settings.engine_url, "/state", headers)
            return
        problems = []
        for row in held:
            if row.status != "serving" or not row.serves(LIVE):
                problems.append(f"the engine {row.name} is {row.status}")
                continue
            try:
                _ask(row.url, "/state" if row.kind == OWN else "/health", headers)
            except Unavailable as error:
                problems.append(error.message)
            else:
                return
        raise Unavailable("; ".join(problems))

    return check


def _ask(url: str, path: str, headers: Mapping[str, str]) -> None:
    """Raises Unavailable unless the engine says that it serves."""
    try:
        answer = httpx.get(f"{url}{path}", headers=headers, timeout=_ENGINE_SECONDS)
    except httpx.TransportError as error:
        raise Unavailable(f"no engine answers at {url} ({type(error).__name__}); see whether it runs") from error
    if not answer.is_success:
        raise Unavailable(f"the engine at {url} says {answer.status_code}: {_status_of(answer)}")


def _status_of(answer: httpx.Response) -> str:
    """`paused`, `starting` or the like, and nothing else of the response: `/ready` is open to everybody."""
    try:
        return str(answer.json()["status"])
    except (ValueError, KeyError, TypeError):
        is_refused = answer.status_code == httpx.codes.UNAUTHORIZED
        return "it refuses this process's key" if is_refused else "no readable status"
