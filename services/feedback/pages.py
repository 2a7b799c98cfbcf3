"""Feedback from pages: the app's server asks for a receipt, the page sends signals with it and without a key.

In: requests for receipts, with a key; signals with a receipt. Out: receipts; the result of each signal. Waits for: the writer's commit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any

import msgspec
from fastapi import Request, Response

from contracts.errors import InvalidRequest, MillraceError, Unauthorized
from contracts.ids import time_of
from contracts.keys import Caller
from contracts.tasks import Task
from runtime.database import Database
from runtime.replicas import RateLimiter
from services.feedback import repository
from services.feedback.intake import Acknowledgement, SignalIntake
from services.feedback.receipts import Receipt, ReceiptRequest, read_receipt, receipt_for, write_receipt
from services.feedback.requests import refuse_unknown
from services.http import BodyTooLarge, authorization_of, read_json, reply
from services.limits import Limit

MOST_BYTES = 2**18
"""Of a body without a key; a page also keeps no more."""
SIGNALS_PER_MINUTE = 60
"""With receipts of one answer and person, repeats included."""
_ACCEPTED = 202
_FIELDS = ("receipt", "name", "value", "id", "comment", "metadata", "ago")
"""No correction: beside any signal it would teach a text, which only a receipt for edits may."""

Handle = Callable[[Request], Awaitable[Response]]


class _Envelope(msgspec.Struct):
    receipt: str | None = None


class PageFeedback:
    """See the module. `limit`: of the signals of one caller; here of all pages of a tenant together."""

    def __init__(
        self,
        *,
        database: Database,
        tasks: Mapping[str, Task],
        intake: SignalIntake,
        limiter: RateLimiter,
        limit: Limit,
        origins: tuple[str, ...],
    ) -> None:
        self._database, self._tasks, self._intake, self._origins = database, tasks, intake, origins
        self._limits = (Limit(limiter, "signals", SIGNALS_PER_MINUTE), limit)
        self._secret: bytes | None = None

    async def make(self, wanted: ReceiptRequest, tenant: str) -> dict[str, Any]:
        """A receipt, and when it expires. Raises what `receipt_for` raises."""
        made = receipt_for(wanted, self._tasks, tenant, time.time())
        return {"receipt": write_receipt(made, await self._own_secret()), "expires_at": made.expires_at}

    def beside(self, with_key: Handle) -> Handle:
        """The route of one signal, for callers with a key and for pages."""

        @wraps(with_key)
        async def submit(request: Request) -> Response:
            if authorization_of(request.headers):
                return await with_key(request)
            return reply(await self.submit(request), _ACCEPTED)

        return submit

    async def submit(self, request: Request) -> Acknowledgement:
        """Take a signal in. What a genuine receipt is refused for is counted. Raises Unauthorized: there is no such receipt; MillraceError."""
        body = await _short_body(request)
        text = read_json(_Envelope, body).receipt
        if text is None:
            raise Unauthorized(
                "send your Millrace key as `Authorization: Bearer mr-...`, or a `receipt` if you are a page"
            )
        receipt = read_receipt(text, await self._own_secret())
        for limit, name in zip(self._limits, (receipt.digest, receipt.tenant), strict=True):
            caller = Caller(f"receipt-{name}", "app", receipt.tenant, frozenset(("feedback",)))
            await limit.check(caller)
        now = time.time()
        try:
            content = read_json(dict[str, Any], body)
            receipt.check(content.get("name"), request.headers.get("origin"), self._origins, now)
            item, at = _completed(content, receipt, now)
        except MillraceError as error:
            await self._intake.reject(error.code)
            raise
        result = await self._intake.submit_within(item, caller, len(body), receipt.ids, at)
        if isinstance(result, MillraceError):
            raise result
        return result

    async def _own_secret(self) -> bytes:
        if self._secret is None:
            self._secret = await asyncio.to_thread(repository.own_receipt_secret, self._database)
        return self._secret


async def _short_body(request: Request) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BYTES:
            raise BodyTooLarge(f"without a key a body may have up to {MOST_BYTES // 2**10} KiB; send less")
    return bytes(body)


def _completed(content: dict[str, Any], receipt: Receipt, now: float) -> tuple[dict[str, Any], float]:
    """An item with what the receipt decides, and when it happened. Clocks of browsers are wrong, so pages say how long ago."""
    refuse_unknown(content, _FIELDS)
    ago = content.get("ago", 0.0)
    if isinstance(ago, bool) or not isinstance(ago, int | float):
        raise InvalidRequest("ago is a number of seconds", param="ago")
    item = {name: value for name, value in content.items() if name not in {"receipt", "ago"}}
    item |= {"completion_id": receipt.completion_id, "choice": receipt.choice, "submitter": {"id": receipt.submitter}}
    ago = min(max(ago, 0), now)  # an integer of JSON may have any length
    return item, min(now, max(time_of(receipt.completion_id), now - ago))
