"""Idempotency keys: a request that is sent again under the same `Idempotency-Key` gets the first request's answer.

In: a request's key and identity (path, body, labels, purpose), and how to run it. Out: its response, or the stored one with
`x-millrace-replayed`. Waits for: a first request that is still running, some seconds. Only complete answers with status 200 are stored,
streamed ones as their events. Any other request runs again, also if the stored answer was lost.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable
from types import MappingProxyType

import msgspec
from fastapi import Response
from starlette.types import Message, Receive, Scope, Send

from contracts.errors import Conflict, StillRunning
from runtime.replicas import LEASE_SECONDS, IdempotencyStore, RequestClaim

REPLAYED = "x-millrace-replayed"
MAX_ANSWER_BYTES = 2**20
PATIENCE_SECONDS = 10.0
_LOOK_SECONDS = 0.2
_CLOSE_SECONDS = 1.0
_OK = 200
_KEPT_HEADERS = ("content-type", "cache-control", "x-request-id", "x-millrace-logged")


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    headers: dict[str, str]
    body: bytes


class IdempotentRequests:
    """See the module. Belongs to one event loop. `lease_seconds`: how long the store holds a claim without renewal."""

    def __init__(
        self, store: IdempotencyStore, patience_seconds: float = PATIENCE_SECONDS, lease_seconds: float = LEASE_SECONDS
    ) -> None:
        self._store = store
        self._lease, self._patience = lease_seconds, patience_seconds
        self._running: set[asyncio.Task[None]] = set()

    async def once(self, key: str | None, scope: str, asked: bytes, run: Callable[[], Awaitable[Response]]) -> Response:
        """The response to a request; without a key it always runs. Raises Conflict: the key was used with another request; StillRunning.

        `scope`, `asked`: see `identity_of`.
        """
        if not key:
            return await run()
        name = hashlib.blake2b(f"{scope}\0{key}".encode(), digest_size=16).hexdigest()
        claim = RequestClaim(hashlib.blake2b(asked, digest_size=16).digest(), secrets.token_bytes(8))
        held = await self._claim(name, claim)
        if held.digest != claim.digest:
            error = Conflict(
                "this idempotency key was used with another body, path, label or purpose; use a new key for a new request"
            )
            error.headers = MappingProxyType({"x-should-retry": "false"})
            raise error
        if held.answer is not None:
            kept = msgspec.msgpack.decode(held.answer, type=_Answer)
            return Response(kept.body, headers=kept.headers | {REPLAYED: "true"})
        hold = _Hold(self._store, name, claim, self._lease)
        self._running.add(hold.task)
        hold.task.add_done_callback(self._running.discard)
        try:
            return _Kept(await run(), hold)
        except BaseException:
            hold.end(None)
            raise

    async def close(self) -> None:
        """Wait up to a second for answers that are being stored."""
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=_CLOSE_SECONDS)
            for task in late:
                task.cancel()

    async def _claim(self, name: str, claim: RequestClaim) -> RequestClaim:
        deadline = time.monotonic() + self._patience
        while True:
            held = await self._store.claim(name, claim)
            if held == claim or held.digest != claim.digest or held.answer is not None:
                return held
            if time.monotonic() >= deadline:
                raise StillRunning("the first request under this idempotency key is still running; try again later")
            await asyncio.sleep(_LOOK_SECONDS)


class _Hold:
    """Holds a key by a lease while its request runs; if this replica dies, the lease expires after `LEASE_SECONDS`."""

    def __init__(self, store: IdempotencyStore, name: str, claim: RequestClaim, lease_seconds: float) -> None:
        self._store, self._lease = store, lease_seconds
        self._name, self._claimed = name, claim
        self._ended: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._run())

    def end(self, answer: bytes | None) -> None:
        """Store this answer and release the key; None: only release it."""
        if not self._ended.done():
            self._ended.set_result(answer)

    async def _run(self) -> None:
        while not (await asyncio.wait({self._ended}, timeout=self._lease / 3))[0]:
            await self._store.renew(self._name, self._claimed)
        answer = self._ended.result()
        if answer is None:
            await self._store.release(self._name, self._claimed)
        else:
            await self._store.finish(self._name, self._claimed, answer)


class _Kept(Response):
    """Sends a response and stores what was sent."""

    def __init__(self, response: Response, hold: _Hold) -> None:
        super().__init__(status_code=response.status_code)
        self.raw_headers = response.raw_headers  # the same list, so headers that are added later are sent
        self._response, self._hold = response, hold

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        body = bytearray()
        is_whole = False

        async def pass_on(message: Message) -> None:
            nonlocal is_whole
            await send(message)
            if message["type"] == "http.response.body":
                if len(body) <= MAX_ANSWER_BYTES:
                    body.extend(message.get("body", b""))
                is_whole = not message.get("more_body", False)

        try:
            await self._response(scope, receive, pass_on)
        finally:
            self._hold.end(self._answer(bytes(body)) if is_whole else None)

    def _answer(self, body: bytes) -> bytes | None:
        is_whole = getattr(self._response, "is_whole", True)  # of a stream: it may have ended in an error
        if self._response.status_code != _OK or len(body) > MAX_ANSWER_BYTES or not is_whole:
            return None
        headers = {name: self.headers[name] for name in _KEPT_HEADERS if name in self.headers}
        return msgspec.msgpack.encode(_Answer(headers, body))
