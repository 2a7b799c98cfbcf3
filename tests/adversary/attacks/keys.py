"""Who gets in with which key: across scopes, tenants, roles, and after a key's end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple, cast

import httpx
import msgspec
from sqlalchemy import func, select

from contracts.keys import SCOPES, NewKey, make_key, revoke_keys
from contracts.tables import api_key, outbox, received_signal
from services.http import scopes_of
from tests.adversary.attacks.attack import Attack
from tests.worlds.asgi import HOST, AsgiAnswer, ask
from tests.worlds.tenants import (
    NUM_ANSWERS,
    ORIGIN,
    PERSON,
    SIGNAL_ID,
    STRANGER,
    VICTIM,
    WORDS,
    Route,
    TenantsWorld,
    a_world,
    routes_of,
    target_of,
)

OPEN = frozenset((
    "GET /health", "GET /openapi.json", "GET /ready", "GET /", "POST /api/login", "POST /api/logout", "GET /static/{path}",
))  # fmt: skip
"""Routes without a right: health, and the sign-in form. `GET /` shows the form to a caller who is not signed in."""
LONGEST_SECONDS = 2.0
"""A key that was revoked is refused everywhere after this."""
PRIVILEGED = ("judge", "code", "operator")
_REFUSED = (401, 403)
_UNKNOWN, _FORBIDDEN, _NOT_FOUND = 401, 403, 404


class Holder(NamedTuple):
    """Who asks: with a key, and with a browser's session that was opened while the key was good. `scopes` None: nobody known."""

    name: str
    key: str | None
    session: Mapping[str, str]
    scopes: frozenset[str] | None


def attacks() -> list[Attack]:
    """See `attack.py`."""
    return [
        Attack(
            "every route, with every single scope, none, and expired, revoked and unknown keys",
            attempt(cross_scopes),
            12,
        ),
        Attack("another tenant's numbers and words, on every route that reads", attempt(read_of_others), 15),
        Attack("another tenant's signal, shown and taken back", attempt(take_back_of_others), 2),
        Attack("an app that speaks as judge, code or operator, alone and in a batch", attempt(speak_as_others), 6),
        Attack("an app that says its requests are no user's", attempt(other_purposes), 3),
        Attack("a revoked key, two seconds later: app, session and open stream", attempt(after_the_end), 4),
    ]


async def cross_scopes(world: TenantsWorld) -> list[str]:
    """Each route accepts callers that have its scope, and no others."""
    holders = await _holders(world)
    found = []
    for route in routes_of(world):
        if route.name in OPEN:
            continue
        rights = scopes_of(cast("Callable[..., Any]", route.endpoint)) if route.endpoint else []
        if not rights:
            found.append(f"{route.name} has no right in its signature, and is not in the list of open routes")
            continue
        for holder in holders:
            answer = await _as_holder(world, route, holder)
            expected = _expected(rights, holder)
            if (answer.status in _REFUSED and answer.status) != expected:
                found.append(f"{route.name} as {holder.name}: {answer.status}, not {expected or 'let in'}")
    return found


async def read_of_others(world: TenantsWorld) -> list[str]:
    """With a stranger's key nothing of the victim's comes back, neither to an app nor to an operator who may not look."""
    found = []
    for holder in (await _holder(world, world.key()), *await _blind_operators(world)):
        for route in routes_of(world):
            if route.method == "GET":
                answer = await _as_holder(world, route, holder)
                target = target_of(world, route)
                names = [name for name in (*world.answers, SIGNAL_ID) if name not in target]
                shown = [mark for mark in (WORDS, PERSON, VICTIM, *names) if mark.encode() in answer.body]
                found += [f"{route.name} shows {holder.name} {mark}" for mark in shown]
        found += await _wrong_numbers(world, holder, 0)
    own = await _holder(world, world.key(tenant=VICTIM))
    return found + await _wrong_numbers(world, own, NUM_ANSWERS)


async def take_back_of_others(world: TenantsWorld) -> list[str]:
    """A signal of another tenant does not exist: 404, not 403."""
    found = []
    for role in ("app", "operator"):
        key = world.key(role)
        for method in ("GET", "DELETE"):
            answer = await world.ask(method, f"/v1/feedback/{SIGNAL_ID}", key)
            if answer.status != _NOT_FOUND:
                found.append(f"{method} as a strange {role}: {answer.status}")
    own = await world.ask("GET", f"/v1/feedback/{SIGNAL_ID}", world.key(tenant=VICTIM))
    if msgspec.json.decode(own.body).get("retracted_at") is not None:
        found.append("it was taken back")
    return found


async def speak_as_others(world: TenantsWorld) -> list[str]:
    """Refused by name, before anything is written; a batch keeps what is good."""
    key, found = world.key(tenant=VICTIM), []
    before = _num_written(world)
    for kind in PRIVILEGED:
        item = _item(world, kind)
        answer = await world.ask("POST", "/v1/feedback", key, item)
        if answer.status != _FORBIDDEN or b"submitter.kind" not in answer.body:
            found.append(f"{kind}: {answer.status}")
        answer = await world.ask("POST", "/v1/feedback/batch", key, {"items": [item, _item(world, kind)]})
        told = msgspec.json.decode(answer.body)
        if [error["status"] for error in told["errors"]] != [_FORBIDDEN] * 2:
            found.append(f"{kind} in a batch: {len(told['successes'])} of 2 accepted")
    if (num := _num_written(world) - before) != 0:
        found.append(f"{num} rows were written")
    mixed = {"items": [_item(world, "user"), _item(world, "judge")]}
    told = msgspec.json.decode((await world.ask("POST", "/v1/feedback/batch", key, mixed)).body)
    if [item["index"] for item in told["successes"]] != [0] or [item["index"] for item in told["errors"]] != [1]:
        found.append(f"of a mixed batch {len(told['successes'])} of 2 accepted")
    return found


async def other_purposes(world: TenantsWorld) -> list[str]:
    """Traffic that is no user's has other rules of sampling and consent."""
    body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
    headers = {"authorization": f"Bearer {world.key()}"}
    found = []
    for purpose in ("rollout", "sentinel", "shadow"):
        sent = headers | {"x-millrace-purpose": purpose}
        answer = await ask(world.app, "POST", "/v1/chat/completions", sent, msgspec.json.encode(body))
        if answer.status != _FORBIDDEN:
            found.append(f"{purpose}: {answer.status}")
    return found


async def after_the_end(world: TenantsWorld) -> list[str]:
    """Nothing that was opened with a key outlives it for long."""
    key = world.key("operator")
    holder = Holder("revoked", key, await world.sign_in(key), None)
    doors = {"GET /v1/models": holder, "GET /v1/feedback/{signal_id:path}": holder, "GET /api/state": holder}
    routes = {route.name: route for route in routes_of(world)}
    let_in = {name: await _as_holder(world, routes[name], who) for name, who in doors.items()}
    found = [f"{name} refused a good key" for name, answer in let_in.items() if answer.status in _REFUSED]
    stream = asyncio.create_task(_watch(world, holder))
    await asyncio.sleep(0.1)
    _revoke(world, key)
    await asyncio.sleep(LONGEST_SECONDS + 0.05)
    for name, who in doors.items():
        answer = await _as_holder(world, routes[name], who)
        if answer.status != _UNKNOWN:
            found.append(f"{name}: {answer.status}")
    if not stream.done():
        found.append("a stream of the state goes on")
    stream.cancel()
    await asyncio.gather(stream, return_exceptions=True)
    return found


def attempt(tried: Callable[[TenantsWorld], Coroutine[Any, Any, list[str]]]) -> Callable[[], str | None]:
    """Try it in a world of its own."""

    async def in_world() -> list[str]:
        async with a_world() as world:
            return await tried(world)

    return lambda: "; ".join(asyncio.run(in_world())) or None


async def _holders(world: TenantsWorld) -> list[Holder]:
    wanted = {f"an operator with {scope} only": NewKey("operator", scopes=frozenset((scope,))) for scope in SCOPES}
    wanted |= {
        f"an app with {scope} only": NewKey("app", scopes=frozenset((scope,))) for scope in ("inference", "feedback")
    }
    wanted |= {"an app": NewKey("app"), "an operator": NewKey("operator")}
    wanted |= {"an expired operator": NewKey("operator"), "a revoked operator": NewKey("operator")}
    database, holders = world.database, []
    for name, new in wanted.items():
        with database.transaction() as connection:
            key = make_key(connection, new)
        known = frozenset[str](new.scopes or SCOPES if new.role == "operator" else new.scopes or SCOPES[:2])
        session = await world.sign_in(key)
        with database.transaction() as connection:
            if "revoked" in name:
                revoke_keys(connection, [key.split("-")[2]], time.time())
            if "expired" in name:
                mine = api_key.c.id == key.split("-")[2]
                connection.execute(api_key.update().where(mine).values(expires_at=time.time() - 1))
        is_over = "revoked" in name or "expired" in name
        holders.append(Holder(name, key, session, None if is_over else known))
    database.close()
    forged = f"{world.key('operator')[:-1]}-"
    unknown = [Holder("nobody", None, {}, None), Holder("a forger", forged, {"cookie": "millrace_session=x"}, None)]
    return holders + unknown


def _expected(rights: list[tuple[str, ...]], holder: Holder) -> int | bool:
    """The status of the refusal, or False."""
    if holder.scopes is None:
        return _UNKNOWN
    needed = {scope for right in rights for scope in right}
    return False if needed <= holder.scopes else _FORBIDDEN


async def _as_holder(world: TenantsWorld, route: Route, holder: Holder) -> AsgiAnswer:
    headers = {**ORIGIN, **holder.session} | ({} if holder.key is None else {"authorization": f"Bearer {holder.key}"})
    return await ask(
        world.app, route.method, target_of(world, route), headers, b"{}" if route.method == "POST" else b""
    )


async def _holder(world: TenantsWorld, key: str, name: str = "a stranger") -> Holder:
    return Holder(name, key, await world.sign_in(key), frozenset())


async def _blind_operators(world: TenantsWorld) -> list[Holder]:
    database = world.database
    with database.transaction() as connection:
        key = make_key(connection, NewKey("operator", STRANGER, frozenset(("inference", "feedback", "operator:write"))))
    database.close()
    return [await _holder(world, key, "an operator who may not look")]


async def _wrong_numbers(world: TenantsWorld, holder: Holder, num: int) -> list[str]:
    shown = {
        "GET /api/state": _state(await _read(world, "GET /api/state", holder)),
        "GET /events": _first_state(await _read(world, "GET /events", holder)),
    }
    return [f"{name} shows {holder.name} {seen} answers, not {num}" for name, seen in shown.items() if seen != num]


async def _read(world: TenantsWorld, name: str, holder: Holder) -> bytes:
    [route] = [route for route in routes_of(world) if route.name == name]
    return (await _as_holder(world, route, holder)).body


def _state(body: bytes) -> int:
    return int(msgspec.json.decode(body)["generations"]["total"])


def _first_state(body: bytes) -> int:
    return _state(body.split(b"data: ", 1)[1].split(b"\n", 1)[0])


def _revoke(world: TenantsWorld, key: str) -> None:
    database = world.database
    with database.transaction() as connection:
        revoke_keys(connection, [key.split("-")[2]], time.time())
    database.close()


async def _watch(world: TenantsWorld, holder: Holder) -> None:
    """Read the stream of the state until the server ends it: httpx gathers an answer of ASGI before it gives it."""
    transport = httpx.ASGITransport(world.app)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
        await client.get("/events", headers=dict(holder.session))


def _item(world: TenantsWorld, kind: str) -> dict[str, Any]:
    who = {"id": "somebody", "kind": kind}
    return {"completion_id": world.answers[0], "name": "accepted", "value": False, "submitter": who}


def _num_written(world: TenantsWorld) -> int:
    database = world.database
    with database.snapshot() as connection:
        counts = [
            connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in (outbox, received_signal)
        ]
    database.close()
    return sum(counts)
