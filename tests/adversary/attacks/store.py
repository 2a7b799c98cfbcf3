"""Attacks on what is kept: traces of answers that nobody may keep, answers counted twice, signals about nothing.

And on those who keep it: numbers that no table holds, clients that leave.

In: requests to a real home over ASGI. Out: what got through. Waits for: the home's own work, a second or two each.
"""

from __future__ import annotations

import asyncio
import html
import json
import re
import uuid
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any
from urllib.parse import quote

import msgspec
from fastapi.routing import iter_route_contexts
from sqlalchemy import func, select
from starlette.types import Message, Scope

from contracts.ids import new_completion_id
from contracts.ledger import generation_counts, rejection_counts, signal_counts
from contracts.records import Generation, decode_shape
from contracts.tables import dead_letter, generation, signal
from tests.adversary.attacks.attack import Attack
from tests.worlds.asgi import HOST, ask
from tests.worlds.homes import ORIGIN, StoreHome, a_home
from tests.worlds.traces import traces

RETRY_COUNT = "x_stainless_retry_count"
_LATER = 3600.0
_LEFT, _SERVER_ERROR = 499, 500
WEIRD = (
    "9223372036854775808", "-9223372036854775809", "1" + "0" * 40, "-1", "NaN", "Infinity", "1e400", "0x10", "%00", "a%00b",
    "%ED%A0%80", "%F0%9F%98%80", "chatcmpl-" + "9" * 40, "v99999999999999999999", "9999-99-99T99:99", "0001-01-01T00:00",
    "1e308_chatcmpl-x_1", "nan_chatcmpl-019a0000-0000-7000-8000-000000000000_0",
    "1_chatcmpl-019a0000-0000-7000-8000-000000000000_99999999999999999999",
    "chatcmpl-019a0000-0000-7000-8000-000000000000_99999999999999999999", "", "'", "a" * 5000,
)  # fmt: skip
WEIRD_ITEMS: tuple[dict[str, Any], ...] = (
    {"choice": 2**63}, {"choice": -1}, {"choice": 2**200}, {"value": 2**63}, {"value": -(2**200)}, {"at": 2**70},
    {"at": -1}, {"at": "0001-01-01T00:00:00+23:59"}, {"at": "9999-12-31T23:59:59-23:59"}, {"at": "\0"}, {"id": "\0"},
    {"id": "x" * 10_000}, {"name": "\0"}, {"name": "x" * 10_000}, {"session_id": "\0", "completion_id": None},
    {"join_key": "\0", "completion_id": None}, {"submitter": {"id": "\0"}}, {"comment": "\0"}, {"metadata": {"\0": "\0"}},
    {"correction": "\0"}, {"metadata": {str(number): "" for number in range(100)}},
)  # fmt: skip
WEIRD_CHATS: tuple[dict[str, Any], ...] = (
    {"n": 2**70}, {"n": -1}, {"seed": 2**70}, {"seed": -(2**70)}, {"max_tokens": 2**70}, {"max_tokens": -1},
    {"temperature": 2**1023}, {"top_p": 10**400}, {"metadata": {"session_id": "\0"}}, {"metadata": {"join_key": "a\0b"}},
    {"metadata": {"task": "\0"}}, {"metadata": {"min_version": "9" * 17}}, {"metadata": {"exact_version": "9" * 40}},
    {"user": "\0"}, {"user": "x" * 10_000}, {"safety_identifier": "\0"}, {"model": "demo@v" + "9" * 17},
    {"model": "demo@v" + "9" * 40}, {"messages": [{"role": "user", "content": "\0"}]},
)  # fmt: skip
WEIRD_BODIES = (
    b'{"name": "accepted", "value": NaN}', b'{"name": "accepted", "value": Infinity}', b'{"name": "accepted", "value": 1e400}',
    b'{"name": "\\ud800", "value": true}', b'{"name": "accepted", "value": "\\udfff"}', b"[" * 100_000, b"\xff", b"null", b"[]",
)  # fmt: skip


def attacks() -> list[Attack]:
    """See the module."""
    return [
        Attack(
            "an answer with store=false leaves a trace", partial(_run, partial(unkept, fields={"store": False})), 12
        ),
        Attack(
            "an answer of a task that keeps nothing leaves a trace", partial(_run, partial(unkept, task="private")), 12
        ),
        Attack("a retry of the SDK is learned twice", partial(_run, retries), 6),
        Attack("a signal for a choice that does not exist waits without end", partial(_run, choices), 3),
        Attack("a feedback field that nobody knows is swallowed", partial(_run, unknown_fields), 4),
        Attack("a comment is accepted and lost", partial(_run, comments), 2),
        Attack("a number, id or time that no table holds is a 500", partial(_run, numbers), len(WEIRD)),
        Attack("a client that leaves while it sends is an error of ours", partial(_run, leaving), 6),
    ]


def _run(attack: Callable[[StoreHome], Awaitable[str | None]]) -> str | None:
    async def attacked() -> str | None:
        async with a_home() as world:
            return await attack(world)

    return asyncio.run(attacked())


async def unkept(world: StoreHome, fields: dict[str, Any] | None = None, task: str = "reservations") -> str | None:
    """Answers that may not be kept and feedback about them, by every field, then a search of every file of the home."""
    canary, control = f"canary-{uuid.uuid4().hex}", f"control-{uuid.uuid4().hex}"
    statuses = await speak(world, canary, task, fields or {})
    await speak(world, control, task, {"store": True})
    await asyncio.to_thread(world.work)
    await asyncio.to_thread(world.work, _LATER)
    places = await asyncio.to_thread(traces, world.settings.home, control)
    needed = {"log/generations.db", "log/signals.db", "millrace.db: generation.record", "millrace.db: signal.record"}
    if missing := {place for place in needed if not any(found.startswith(place) for found in places)}:
        raise RuntimeError(f"the search does not even find what was kept, in {sorted(missing)}; found: {places}")
    if found := await asyncio.to_thread(traces, world.settings.home, canary):
        return f"the canary stands in {', '.join(found)}"
    if wrong := sorted({status for status in statuses if status != "not_stored"}):
        return f"feedback about it was answered with {', '.join(wrong)} instead of not_stored"
    with world.opened() as (database, _), database.snapshot() as connection:
        counts, reasons = signal_counts(connection), rejection_counts(connection)
    if counts.unexplained or reasons.get("not_stored") != len(statuses):
        return f"the signals do not add up: {counts}, {reasons}"
    return None


async def speak(world: StoreHome, word: str, task: str, fields: dict[str, Any]) -> list[str]:
    """An answer with a word in every field, streamed and whole, cut and again; then all kinds of feedback; returns its codes."""
    metadata = {"task": task, "session_id": f"session {word}", "join_key": f"key {word}", "note": word}
    asked = {"metadata": metadata, "user": word, "n": 2, **fields}
    answer = await world.chat(f"a table for {word}", **asked)
    # Streams, repeats and retries pass through other caches.
    for headers in ({"idempotency_key": word}, {"idempotency_key": word}, {RETRY_COUNT: "0"}, {RETRY_COUNT: "1"}):
        await world.chat(f"again {word}", headers, **asked)
    body = {"model": "demo", "messages": [{"role": "user", "content": word}], "stream": True, **asked}
    await world.post("/v1/chat/completions", body)
    bad = {"model": "demo", "messages": [{"role": "user", "content": word}], "temperature": word, **asked}
    await world.post("/v1/chat/completions", bad)
    about = {"completion_id": answer, "submitter": {"id": word}, "comment": word, "metadata": {"note": word}}
    items = [
        {**about, "name": "accepted", "value": True, "id": f"id {word}"},
        {**about, "name": "edited", "value": word, "correction": word, "choice": 1},
        {**about, "name": "edited", "value": word, "at": word},
        {**about, "name": word, "value": word},
        {**about, "name": "edited", "value": word, word: word},
    ]
    codes = [_code((await world.post("/v1/feedback", item)).body) for item in items]
    batch = await world.post("/v1/feedback/batch", {"items": items})
    given = json.loads(batch.body)
    codes += [_code(json.dumps(error).encode()) for error in given["errors"]]
    return codes + ["accepted"] * len(given["successes"])


def _code(body: bytes) -> str:
    content = json.loads(body)
    return str(content["error"]["code"]) if "error" in content else str(content["state"])


async def retries(world: StoreHome) -> str | None:
    """The SDK's tries of one request, of which the last is read: whole, cut, with another user's equal one between."""
    found: list[str] = []
    for name, cut in (("whole", False), ("cut", True)):
        text = f"a table for {name}"
        first = await (_leave_early(world, text) if cut else world.chat(text, {RETRY_COUNT: "0"}))
        other = await world.chat(text, {RETRY_COUNT: "0"}) if cut else None
        last = await world.chat(text, {RETRY_COUNT: "1"})
        await asyncio.to_thread(world.work)
        states = _states(world)
        if cut:
            [first] = [key for key in states if key not in {*found, other, last} and states[key][2] == "cancelled"] or [
                ""
            ]
        expected = {str(first): ("filtered", "superseded"), last: ("pending", "")} | (
            {other: ("pending", "")} if other else {}
        )
        if wrong := {key: states.get(key) for key, state in expected.items() if states.get(key, ("", ""))[:2] != state}:
            return f"{name}: {wrong} instead of {expected}"
        found += list(states)
        page = await ask(world.app, "GET", f"/generations/{first}/0", await _signed_in(world))
        if last not in page.body.decode():
            return f"{name}: the page of the earlier try does not name the later one"
    with world.opened() as (database, _), database.snapshot() as connection:
        counts = generation_counts(connection)
    return f"{counts.unexplained} generations are unexplained" if counts.unexplained else None


async def _leave_early(world: StoreHome, text: str) -> None:
    """A client whose patience ends after the first token."""
    world.engine.hold = 1
    body = {"model": "demo", "messages": [{"role": "user", "content": text}]}
    headers = {"authorization": f"Bearer {world.key}", "x-stainless-retry-count": "0"}
    await _leave(world, "POST", "/v1/chat/completions", headers, msgspec.json.encode(body), after_seconds=0.5)


def _states(world: StoreHome) -> dict[str, tuple[str, str, str]]:
    with world.opened() as (database, _), database.snapshot() as connection:
        rows = connection.execute(select(generation.c.completion_id, generation.c.state, generation.c.state_reason,
                                         generation.c.record)).all()  # fmt: skip
    finishes = ((row, decode_shape(Generation, row.record).finish_reason) for row in rows)
    return {row.completion_id: (row.state, row.state_reason, finish) for row, finish in finishes}


async def choices(world: StoreHome) -> str | None:
    """Before its answer was joined, after it, and in a batch."""
    answer = await world.chat("a table for two", n=2)
    item = {"completion_id": answer, "name": "accepted", "value": True, "choice": 2, "submitter": {"id": "u"}}
    await world.post("/v1/feedback", item | {"id": "early"})
    await asyncio.to_thread(world.work)
    with world.opened() as (database, _), database.snapshot() as connection:
        early = connection.execute(select(signal.c.state, signal.c.reason).where(signal.c.id == "early")).one()
    if tuple(early) != ("rejected", "no_such_choice"):
        return f"an early signal about it is {tuple(early)}"
    late = await world.post("/v1/feedback", item | {"id": "late"})
    batch = json.loads((await world.post("/v1/feedback/batch", {"items": [item, item | {"choice": 1}]})).body)
    codes = [_code(late.body), *(error["error"]["code"] for error in batch["errors"])]
    if codes != ["no_such_choice"] * 2 or len(batch["successes"]) != 1:
        return f"feedback about it says {codes}, {batch}"
    return None


async def unknown_fields(world: StoreHome) -> str | None:
    """Misspelt fields, at the top, in a batch and in the submitter."""
    item = {"completion_id": new_completion_id(), "name": "accepted", "value": True}
    for wrong, meant in (({"coment": "x"}, "comment"), ({"submiter": {"id": "x"}}, "submitter"),
                         ({"submitter": {"id": "x", "kinds": "user"}}, "submitter.kind")):  # fmt: skip
        answer = await world.post("/v1/feedback", item | wrong)
        if answer.status != 400 or meant not in answer.body.decode():
            return f"{wrong} is answered with {answer.status} {answer.body.decode()}"
    batch = json.loads((await world.post("/v1/feedback/batch", {"items": [item | {"valeu": 1}]})).body)
    return None if batch["errors"] else f"a batch takes it: {batch}"


async def comments(world: StoreHome) -> str | None:
    """What an app says beside the value is there when it looks again, and when an operator looks at the answer."""
    answer = await world.chat("a table with candles")
    said = {"comment": "it forgot the candles", "metadata": {"screen": "receipt"}}
    item = {"completion_id": answer, "name": "accepted", "value": False, "id": "said", **said}
    await world.post("/v1/feedback", item)
    shown = await ask(world.app, "GET", "/v1/feedback/said", {"authorization": f"Bearer {world.key}"})
    content = json.loads(shown.body)
    lost = [name for name, value in said.items() if content.get(name) != value]
    await asyncio.to_thread(world.work)
    page = await ask(world.app, "GET", f"/generations/{answer}/0", await _signed_in(world))
    lost += [f"{word} on the page" for word in ("the candles", "receipt") if word not in page.body.decode()]
    return f"lost: {', '.join(lost)}" if lost else None


async def numbers(world: StoreHome) -> str | None:
    """Every route of the port, each of its parameters with every weird text; feedback's bodies with every weird field."""
    found: list[str] = []
    cookies = await _signed_in(world)
    for method, target in targets(world):
        headers = {"authorization": f"Bearer {world.key if target.startswith('/v1') else world.operator}", **cookies}
        answer = await ask(world.app, method, target, headers, b"{}" if method == "POST" else b"")
        if answer.status >= _SERVER_ERROR:
            found.append(f"{method} {target[:80]}: {answer.status}")
    item = {"completion_id": new_completion_id(), "name": "accepted", "value": True}
    bodies = chain(
        ((json.dumps(item | weird).encode(), "/v1/feedback") for weird in WEIRD_ITEMS),
        ((json.dumps({"items": [item | weird]}).encode(), "/v1/feedback/batch") for weird in WEIRD_ITEMS),
        (
            (body, path)
            for body in WEIRD_BODIES
            for path in ("/v1/feedback", "/v1/feedback/batch", "/v1/chat/completions")
        ),
    )
    chat = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
    chats = ((json.dumps(chat | weird).encode(), "/v1/chat/completions") for weird in WEIRD_CHATS)
    for body, path in chain(bodies, chats):
        answer = await ask(world.app, "POST", path, {"authorization": f"Bearer {world.key}"}, body)
        if answer.status >= _SERVER_ERROR or (path.endswith("batch") and b'"status": 5' in answer.body):
            found.append(f"POST {path} with {body[:80]!r}: {answer.status}")
    await asyncio.to_thread(world.work)
    with world.opened() as (database, _), database.snapshot() as connection:
        num_buried = connection.execute(select(func.count()).select_from(dead_letter)).scalar_one()
    found += [f"{num_buried} accepted records are dead letters"] if num_buried else []
    return "; ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "") if found else None


def targets(world: StoreHome) -> Iterator[tuple[str, str]]:
    """Every route that takes a parameter, with each weird text in each of them."""
    for child in dict.fromkeys(world.children.values()):
        for context in iter_route_contexts(child.routes):
            dependant = getattr(context, "dependant", None)
            if dependant is None or not context.methods:
                continue
            path = str(context.path)
            queries = [name.alias for name in dependant.query_params]
            queries += ["completion", "state", "task", "version", "text", "before", "after"] if queries else []
            for method in sorted(context.methods - {"HEAD", "OPTIONS"}):
                for weird in WEIRD:
                    filled = _filled(path, weird)
                    if filled != path:
                        yield method, filled
                    yield from ((method, f"{_filled(path, '1')}?{name}={_quoted(weird)}") for name in queries)


def _filled(path: str, text: str) -> str:
    parts = (_quoted(text) if part.startswith("{") else part for part in path.split("/"))
    return "/".join(parts)


def _quoted(text: str) -> str:
    return quote(text, safe="%")


async def _signed_in(world: StoreHome) -> dict[str, str]:
    answer = await ask(world.app, "POST", "/api/login", ORIGIN, f"key={world.operator}".encode())
    cookies = {"cookie": "; ".join(f"{name}={value}" for name, value in answer.cookies.items())}
    page = await ask(world.app, "GET", "/", cookies)
    csrf = re.search(r'data-csrf="([^"]+)"', page.body.decode())
    return cookies | ORIGIN | {"x-csrf-token": html.unescape(csrf[1]) if csrf else ""}


async def leaving(world: StoreHome) -> str | None:
    """Half of a body, then nothing: every route that reads one, of every service."""
    cookies = await _signed_in(world)
    found = []
    for path in ("/v1/chat/completions", "/v1/feedback", "/v1/feedback/batch", "/hot_load/v1/models/hot_load", "/api/login",
                 "/api/rollback"):  # fmt: skip
        key = world.key if path.startswith("/v1") else world.operator
        status = await _leave(
            world, "POST", path, {"authorization": f"Bearer {key}", **cookies}, b'{"half', whole=False
        )
        if status != _LEFT:
            found.append(f"{path}: {status}")
    return ", ".join(found) or None


async def _leave(
    world: StoreHome,
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes,
    *,
    whole: bool = True,
    after_seconds: float = 0.0,
) -> int | str:
    """Send a body, or the beginning of one, and leave. Returns the status that was counted, or what was raised."""
    scope: Scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http", "path": path,
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": ("127.0.0.1", 50_000),
        "server": (HOST, 80), "state": {},
        "headers": [(name.lower().encode(), value.encode()) for name, value in ({"host": HOST} | headers).items()],
    }  # fmt: skip
    statuses: list[int] = []
    is_sent = False

    async def receive() -> Message:
        nonlocal is_sent
        if not is_sent:
            is_sent = True
            return {"type": "http.request", "body": body, "more_body": not whole}
        await asyncio.sleep(after_seconds)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    try:
        await world.app(scope, receive, send)
    except Exception as error:  # noqa: BLE001 a server would print its traceback
        return f"{type(error).__name__}"
    return statuses[0] if statuses else 0
