"""What the key of a session can reach: every route, with one's own session, another one, one that was ended, one that has expired."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal, cast

import msgspec

from contracts.ids import response_id_of
from services.http import scopes_of
from services.inference.sessions.routes import PREFIX
from tests.adversary.attacks.attack import Attack
from tests.adversary.attacks.keys import LONGEST_SECONDS, OPEN, attempt
from tests.worlds.asgi import AsgiAnswer, ask
from tests.worlds.tenants import (
    POLICY,
    STRANGER,
    VICTIM,
    WORDS,
    Route,
    TenantsWorld,
    routes_of,
    target_of,
)

Reach = Literal["asks", "own", "nothing"]
MAY: dict[str, Reach] = {
    "POST /v1/chat/completions": "asks",
    "POST /v1/completions": "asks",
    "POST /v1/messages": "asks",
    "POST /v1/messages/count_tokens": "asks",
    "POST /v1/responses": "asks",
    "POST /tokenize": "asks",
    "GET /v1/models": "asks",
    "GET /v1/models/{name}": "asks",
    "GET /v1/responses/{response_id}": "own",
    "GET /v1/responses/{response_id}/input_items": "own",
    "DELETE /v1/responses/{response_id}": "own",
    "GET /v1/chat/completions": "nothing",
    "GET /v1/chat/completions/{completion_id}": "nothing",
    "GET /v1/chat/completions/{completion_id}/messages": "nothing",
    "POST /v1/chat/completions/{completion_id}": "nothing",
    "DELETE /v1/chat/completions/{completion_id}": "nothing",
    "GET /v1/completions/{completion_id}/attribution": "nothing",
    "POST /v1/sessions": "nothing",
    "GET /v1/sessions/{session_id}": "nothing",
    "DELETE /v1/sessions/{session_id}": "nothing",
}
"""What a session's key may do at each route with the scope `inference`: use it, see what its own session asked for, or nothing.
At all other routes it may do nothing: it has no other scope."""
NEVER = "00000000-0000-7000-8000-000000000000"
"""Nothing was ever kept under this."""
_REFUSED, _NOT_FOUND, _FORBIDDEN = (401, 403), 404, 403
_ENDED = b'"session_over"'


def attacks() -> list[Attack]:
    """See `attack.py`."""
    return [
        Attack("every route, with the key or at the URL of a session, one that was ended, one that expired", attempt(every_route), 90),
        Attack("a response of another session, of an app, of another tenant: shown, deleted, gone on from", attempt(others_responses), 30),
        Attack("the key of a session, two seconds after its end", attempt(after_its_end)),
    ]  # fmt: skip


async def every_route(world: TenantsWorld) -> list[str]:
    """Each route has its reach in `MAY`, and keeps it."""
    found = []
    guarded = [route for route in routes_of(world) if route.name not in OPEN]
    for route in guarded:
        rights = scopes_of(cast("Callable[..., Any]", route.endpoint)) if route.endpoint else []
        reach = MAY.get(route.name, "nothing")
        if rights == [("inference",)] and route.name not in MAY:
            found.append(f"{route.name} does not say what a session's key may do: add it to MAY")
        if rights != [("inference",)] and reach != "nothing":
            found.append(f"{route.name} is in MAY, and needs {rights}")
        for name, (session, key) in world.sessions.items():
            for way, answer in await _ways(world, route, session, key):
                expected = 0 if name == "own" and reach != "nothing" else _FORBIDDEN
                if name == "other" and reach != "nothing":
                    expected = _NOT_FOUND if reach == "own" else 0
                found += _surprises(f"{route.name} {way} of the session {name}", answer, expected, reach, name)
    return found + [f"{name} is in MAY, and no route" for name in MAY if name not in {one.name for one in guarded}]


async def others_responses(world: TenantsWorld) -> list[str]:
    """What may not be read is not found, in the same words as what was never made."""
    of_app, of_own, of_other = world.answers
    mine = world.sessions["own"][1]
    holders = {
        "its session": (mine, {of_own}),
        "the other session": (world.sessions["other"][1], {of_other}),
        "an app of its tenant": (world.key(tenant=VICTIM), {of_app, of_own, of_other}),
        "a strange app": (world.key(tenant=STRANGER), set[str]()),
    }
    found = []
    for name, (key, readable) in holders.items():
        missing = await _reads(world, key, f"chatcmpl-{NEVER}")
        for completion_id in world.answers:
            for way, answer in (await _reads(world, key, completion_id)).items():
                if completion_id in readable:
                    if answer.status in {*_REFUSED, _NOT_FOUND}:
                        found.append(f"{way}: {answer.status} for {name}, who may read it")
                elif answer.status != _NOT_FOUND or WORDS.encode() in answer.body:
                    found.append(f"{way}: {answer.status} for {name}")
                elif _without_id(answer, completion_id) != _without_id(missing[way], f"chatcmpl-{NEVER}"):
                    found.append(f"{way}: {name} is told that there is something")
    return found


async def after_its_end(world: TenantsWorld) -> list[str]:
    """A key that was used a moment ago is refused two seconds after its session was ended."""
    maker, found = world.key(tenant=VICTIM), []
    made = msgspec.json.decode((await world.ask("POST", "/v1/sessions", maker, {})).body)
    key = made["key"]
    if (before := await world.ask("GET", "/v1/models", key)).status in _REFUSED:
        found.append(f"{before.status} before its end")
    await world.ask("DELETE", f"/v1/sessions/{made['id']}", maker)
    await asyncio.sleep(LONGEST_SECONDS + 0.05)
    after = await world.ask("GET", "/v1/models", key)
    if after.status != _FORBIDDEN or _ENDED not in after.body:
        found.append(f"{after.status} after its end")
    return found


async def _ways(world: TenantsWorld, route: Route, session: str, key: str) -> list[tuple[str, AsgiAnswer]]:
    """With the key at the plain URL; and, where sessions have URLs, with an app's key there."""
    target = target_of(world, route, response_id=response_id_of(world.answers[1]))
    body = b"{}" if route.method == "POST" else b""
    ways = [("with the key", target, key)]
    if route.name in MAY and "/sessions" not in route.path:
        ways.append(("at the URL", f"{PREFIX}{session}{target}", world.key(tenant=VICTIM)))
    return [
        (way, await ask(world.app, route.method, where, {"authorization": f"Bearer {held}"}, body))
        for way, where, held in ways
    ]


def _surprises(what: str, answer: AsgiAnswer, expected: int, reach: Reach, name: str) -> list[str]:
    """`expected` 0: let in. Where a session may do nothing, a page may ask for a sign-in instead."""
    if expected == 0:
        closed = {*_REFUSED, _NOT_FOUND} if reach == "own" else {*_REFUSED}
        return [f"{what}: {answer.status}, not let in"] if answer.status in closed else []
    if expected == _FORBIDDEN and reach == "nothing":
        return [] if answer.status in _REFUSED else [f"{what}: {answer.status}, not refused"]
    if answer.status != expected:
        return [f"{what}: {answer.status}, not {expected}"]
    is_told = name not in ("ended", "expired") or _ENDED in answer.body
    return [] if is_told else [f"{what}: is not told that the session is over"]


async def _reads(world: TenantsWorld, key: str, completion_id: str) -> dict[str, AsgiAnswer]:
    """Every way to a response. The task of the requests does not exist, so that no engine is asked."""
    response_id, uuid = response_id_of(completion_id), completion_id.partition("-")[2]
    path = f"/v1/responses/{response_id}"
    asked: dict[str, Any] = {"model": POLICY, "metadata": {"task": "no such task"}}
    reference = {"type": "item_reference", "id": f"msg_{uuid}_0"}
    return {
        "GET": await world.ask("GET", path, key),
        "input_items": await world.ask("GET", f"{path}/input_items", key),
        "DELETE": await world.ask("DELETE", path, key),
        "previous_response_id": await world.ask(
            "POST", "/v1/responses", key, {**asked, "input": "hi", "previous_response_id": response_id}
        ),
        "item_reference": await world.ask("POST", "/v1/responses", key, {**asked, "input": [reference]}),
    }


def _without_id(answer: AsgiAnswer, completion_id: str) -> Any:
    uuid = completion_id.partition("-")[2]
    return msgspec.json.decode(answer.body.replace(uuid.encode(), b"ID"))
