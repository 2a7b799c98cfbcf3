"""Weights swapped in the middle of sessions, on the real engine: does any call fail, and does every call go on from the one before?

In: nothing. Out: counts, and problems by name. `hot_load` points `live` at one published version after the other, while sessions of many turns run.
Each swap waits until the engine serves the version. Each version moves one weight in a hundred by its last bit, as a step of training does.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from commands.home import prepare_home
from contracts.turns import count_rows
from runtime.settings import Settings
from services.inference.engine.http import HttpClient
from tests.worlds.gateway import OK, GatewayWorld, client_of, wait_for, web_of
from tests.worlds.paths import EXAMPLE, ROOT
from tests.worlds.processes import free_port, process
from tests.worlds.sessions.records import LoggedCall, calls_of, goes_on
from tests.worlds.sessions.users import Sent, SessionUsers, wide_base
from tests.worlds.sessions.varied_engine import END
from tests.worlds.versions import moved, publish_next
from weights.codec.history import History
from weights.stores.opening import open_weight_store
from weights.versions.keys import signer_of

POLICY = "gateway"
_DENSITY = 0.01
_HOT_LOAD = "/hot_load/v1/models/hot_load"
_GIVE_UP_SECONDS = 120.0
_ANSWERS_BETWEEN = 3
_EXPECTED = {"", "first", "answer_cut"}
"""Where a policy does not end its answer itself, it is cut at the task's `max_tokens`, and the next call says so."""
_OPTIONS = {"logit_bias": {str(END): 8}}
"""The demo's policy never met such conversations; so it nearly always ends its answers."""


@contextmanager
def served(folder: Path, versions: int) -> Iterator[tuple[GatewayWorld, str]]:
    """The real engine and the serving API on so many versions beside the base; also the operator's key."""
    base = wide_base(EXAMPLE / "base", folder / "base")
    settings = Settings(
        requests_per_minute=0,
        signals_per_minute=0,
        home=folder / "home",
        run="swaps",
        policy=POLICY,
        base=str(base),
        tasks=(Path(__file__).parent / "task.toml",),
        web_port=free_port(),
        engine_port=free_port(),
    )
    home = prepare_home(settings, {})
    store, signer, history = open_weight_store(settings, publishes=True), signer_of(settings), History()
    target = store.load(POLICY, 0)
    for version in range(1, versions + 1):
        parent, target = target, moved(target, _DENSITY, version)
        publish_next(
            store, POLICY, version, base=parent, target=target, run=settings.run, history=history, signer=signer
        )
    with ExitStack() as stack:
        stack.enter_context(process([str(ROOT / "millrace.py"), "engine", "--home", str(settings.home)]))
        web = stack.enter_context(process(web_of(settings.home)))
        world = GatewayWorld(
            settings.home, settings.web_url, settings.engine_url, home.app_key or "", psutil.Process(web.pid)
        )
        asyncio.run(wait_for(world))
        yield world, home.operator_key


async def swap_under(
    world: GatewayWorld, operator_key: str, way: Iterable[int], users: SessionUsers, at_once: int
) -> list[float]:
    """Point `live` at one version after the other while users talk; the seconds until each was served."""
    client, seconds = client_of(world.gateway, operator_key), list[float]()
    talking = asyncio.create_task(users.run(at_once))
    for version in way:
        await users.more(_ANSWERS_BETWEEN * at_once)
        began = time.monotonic()
        await _call(client, "POST", {"identity": f"v{version}"})
        while not _has_followed(await _call(client, "GET", None), version):
            if time.monotonic() > began + _GIVE_UP_SECONDS:
                raise TimeoutError(f"the engine does not serve v{version}")
            await asyncio.sleep(0.02)
        seconds.append(time.monotonic() - began)
    await users.end_of(at_once)
    users.stop()
    await talking
    client.close()
    return seconds


async def _call(client: HttpClient, method: str, content: Mapping[str, Any] | None) -> dict[str, Any]:
    exchange = await client.begin(method, _HOT_LOAD, json.dumps(content).encode() if content else b"")
    try:
        body = await exchange.read_all()
    finally:
        exchange.end()
    if exchange.status != OK:
        raise RuntimeError(f"hot load was refused: {exchange.status} {body!r}")
    found: dict[str, Any] = json.loads(body)
    return found


def _has_followed(state: Mapping[str, Any], version: int) -> bool:
    replicas = state["replicas"]
    return bool(replicas) and all(
        one["readiness"] and one["current_snapshot_identity"] == f"v{version}" for one in replicas
    )


def judge(sent: Sequence[Sent], logged: Sequence[LoggedCall]) -> dict[str, Any]:
    """Counts and problems. Pure."""
    by_key = {call.key: call for call in logged}
    parents = {call.key: by_key.get(call.turn.parent or "") for call in logged}
    counted = count_rows([call.counted for call in logged])
    problems = {
        "failed": [f"{one.ended} {one.session}" for one in sent if one.ended != "whole"],
        "wrong_prefix": [call.key for call in logged if not goes_on(call, by_key)],
        "unexplained": sorted({call.turn.branch for call in logged} - _EXPECTED),
        "acknowledged_and_not_logged": sorted(
            {one.attempt for one in sent if one.ended == "whole"} - {call.labels["attempt"] for call in logged}
        ),
    }
    return {
        "answers": len(sent),
        "sessions": len({one.session for one in sent}),
        "turns": dict(Counter(call.turn.branch or "extended" for call in logged)),
        "tokens_saved": counted.saved,
        "of_two_versions": sum(len(set(call.versions)) > 1 for call in logged),
        "gone_on_from_another_version": sum(
            before is not None and set(before.versions) != set(call.versions)
            for call in logged
            for before in [parents[call.key]]
        ),
        "problems": {name: found[:10] for name, found in problems.items() if found},
    }


def run(versions: int, swaps: int, at_once: int, turns: int) -> dict[str, Any]:
    """The content of the report."""
    with tempfile.TemporaryDirectory() as folder, served(Path(folder), versions) as (world, operator_key):
        users = SessionUsers(world, turns, _OPTIONS)
        forth_and_back = itertools.cycle([*range(1, versions + 1), *range(versions - 1, -1, -1)])
        way = itertools.islice(forth_and_back, swaps)
        seconds = asyncio.run(swap_under(world, operator_key, way, users, at_once))
        found = judge(users.sent, calls_of(world.home))
    return {
        "versions": versions,
        "swaps": len(seconds),
        "at_once": at_once,
        "turns_per_session": turns,
        "sessions_ended": users.num_ended,
        "swap_seconds": {"median": sorted(seconds)[len(seconds) // 2], "max": max(seconds)},
        **found,
        "good": not found["problems"] and found["gone_on_from_another_version"] > 0,
    }
