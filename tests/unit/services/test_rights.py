"""Every route of `web` with every kind of key; the matrix is made from the routers, so new routes are tested too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Annotated, Any

import pytest
from fastapi import Response, Security
from fastapi.routing import APIRoute

from benchmarks.gateway import bodies
from benchmarks.gateway import held as loop_held
from contracts.keys import SCOPES, Caller
from services.http import InferenceCaller, reply, scopes_of
from tests.adversary.attacks import keys as attacks
from tests.adversary.attacks import sessions
from tests.worlds.tenants import Route, TenantsWorld, a_world, routes_of

Tried = Callable[[TenantsWorld], Coroutine[Any, Any, list[str]]]


class Held:
    """One world for all tests, on a loop of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="world")
        self._thread.start()
        self._entered = a_world()
        self.world = self.run(self._entered.__aenter__())

    def run(self, awaited: Awaitable[Any]) -> Any:
        """On that loop."""

        async def waiting() -> Any:
            return await awaited

        return asyncio.run_coroutine_threadsafe(waiting(), self._loop).result(60)

    def close(self) -> None:
        """End it."""
        self.run(self._entered.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def held() -> Iterator[Held]:
    made = Held()
    yield made
    made.close()


@pytest.mark.parametrize(
    "tried",
    [
        attacks.cross_scopes,
        attacks.read_of_others,
        attacks.take_back_of_others,
        attacks.speak_as_others,
        attacks.other_purposes,
        attacks.after_the_end,
        sessions.every_route,
        sessions.others_responses,
        sessions.after_its_end,
    ],
)
@pytest.mark.slow
def test_an_attack_with_keys_is_refused(held: Held, tried: Tried) -> None:
    assert held.run(tried(held.world)) == []


def test_a_new_route_without_a_right_fails_by_name(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among a few that have theirs; that all have theirs is the attack above."""
    few = {"/v1/unguarded", "/v1/models", "/v1/feedback"}

    def some_routes(world: TenantsWorld) -> list[Route]:
        return [one for one in routes_of(world) if one.path in few]

    monkeypatch.setattr(attacks, "routes_of", some_routes)

    def show() -> Response:
        return reply({})

    child = held.world.children["/v1/"]
    child.add_api_route("/v1/unguarded", show)
    try:
        assert len(some_routes(held.world)) > 2
        found = held.run(attacks.cross_scopes(held.world))
    finally:
        child.router.routes[:] = [
            route
            for route in child.routes
            if not (isinstance(route, APIRoute) and route.path_format == "/v1/unguarded")
        ]
    assert found == ["GET /v1/unguarded has no right in its signature, and is not in the list of open routes"]


def test_a_new_route_that_does_not_say_what_a_session_may_do_fails_by_name(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(_caller: InferenceCaller) -> Response:
        return reply({})

    child = held.world.children["/v1/"]
    child.add_api_route("/v1/silent", show)
    few = {name: reach for name, reach in sessions.MAY.items() if name == "GET /v1/models"}
    known = {*few, "GET /v1/silent"}
    monkeypatch.setattr(sessions, "MAY", few)
    monkeypatch.setattr(
        sessions, "routes_of", lambda world: [route for route in routes_of(world) if route.name in known]
    )
    try:
        found = held.run(sessions.every_route(held.world))
    finally:
        child.router.routes[:] = [
            route for route in child.routes if not (isinstance(route, APIRoute) and route.path_format == "/v1/silent")
        ]
    assert found[0] == "GET /v1/silent does not say what a session's key may do: add it to MAY"
    assert any("not refused" in line for line in found)


def test_every_scope_opens_a_route_and_every_open_route_exists(held: Held) -> None:
    routes = routes_of(held.world)
    opened = {
        scope
        for route in routes
        if route.name not in attacks.OPEN and callable(route.endpoint)
        for right in scopes_of(route.endpoint)
        for scope in right
    }
    assert opened == set(SCOPES)
    assert {route.name for route in routes} >= attacks.OPEN


def test_rights_are_read_from_a_signature() -> None:
    def none(name: str) -> None: ...

    def one(caller: InferenceCaller, name: str) -> None: ...

    def known(caller: Annotated[Caller, Security()]) -> None: ...

    assert [scopes_of(handle) for handle in (none, one, known)] == [[], [("inference",)], [()]]


def test_every_route_has_its_largest_request_in_the_benchmark_of_the_loop(held: Held) -> None:
    kept = bodies.Kept(["resp_x"], "chatcmpl-x", "fb-x", "s")
    assert set(bodies.cases_of(kept)) == set(loop_held.routes_of(dict(held.world.children)))
