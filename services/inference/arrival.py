"""A request as it came: who sent it, what its headers say, which attempt it is, what tells it from others; and how it is admitted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import msgspec
from fastapi import Request, Response

from contracts.errors import InvalidRequest
from contracts.keys import Caller
from contracts.records import Attempt
from services.http import SESSION_HEADER, authorization_of
from services.inference.bounds import check_metadata
from services.inference.idempotency import IdempotentRequests
from services.inference.requests import ChatRequest
from services.inference.terms import Terms
from services.limits import Limit
from services.provider import Spoken

LABELS = {
    "x-millrace-task": "task",
    SESSION_HEADER: "session_id",
    "x-millrace-session-group": "session_group",
    "x-millrace-join-key": "join_key",
}
"""Headers that say what a key of the metadata says, for clients that cannot send metadata."""
PURPOSE_HEADER = "x-millrace-purpose"
RETRY_COUNT = "x-stainless-retry-count"
_MAX_DIGITS = 3
_as_json = msgspec.json.Encoder().encode


class Arrival(NamedTuple):
    """A request as it came. `spoken`: its dialect, if providers may speak it; `attempt`: see `attempt_of`."""

    client: Request
    caller: Caller
    body: bytes
    spoken: Spoken | None
    attempt: Attempt | None


class AnswerPath(NamedTuple):
    """On which terms a request is answered, and what begins its answer."""

    terms: Terms
    begin: Callable[[], Awaitable[Response]]


@dataclass(frozen=True)
class Admission:
    """What every request passes, whoever answers it: limits before, repeats behind."""

    repeats: IdempotentRequests
    limit: Limit

    async def respond(
        self,
        client: Request,
        caller: Caller,
        spoken: Spoken | None,
        path_of: Callable[[Arrival], Awaitable[AnswerPath]],
    ) -> Response:
        """Answer a request; it counts against the caller's limit before its body is read. `spoken`: its dialect, if providers may speak it."""
        headers, body = await self.limit.check(caller), await client.body()
        scope, asked = identity_of(client, caller, body)
        path = await path_of(Arrival(client, caller, body, spoken, attempt_of(client.headers, asked)))
        # An answer that may not be logged is not kept for repeats either.
        key = client.headers.get("idempotency-key") if path.terms.logged else None
        response = await self.repeats.once(key, scope, asked, path.begin)
        response.headers.update(headers)
        return response


def identity_of(client: Request, caller: Caller, body: bytes) -> tuple[str, bytes]:
    """In which scope idempotency keys are one's own, and a digest of all that tells a request from others.

    That is its path, its body and what its headers say: labels and purpose. The sessions of a group ask the same, each at its own URL:
    these are different requests. A request of a session's key or URL repeats no request of an app, even if that names the session.
    """
    headers = client.headers
    session = caller.session or headers.get(SESSION_HEADER)
    said = [headers.get(header) for header in LABELS if header != SESSION_HEADER]
    purpose = headers.get(PURPOSE_HEADER, "user")
    who = [caller.tenant, caller.session, session]
    asked = [client.scope["path"], said, purpose, *who, blake2b(body, digest_size=32).hexdigest()]
    return _as_json(who).decode(), blake2b(_as_json(asked), digest_size=32).digest()


def attempt_of(headers: Mapping[str, str], asked: bytes) -> Attempt | None:
    """Which attempt of a request this is; None if the client counts none, or sends an `Idempotency-Key`.

    The SDKs of OpenAI and Anthropic count their attempts, and by default send no `Idempotency-Key`. All attempts have one identity
    (`asked`, see `identity_of`), so a hash of it names the request. The join marks answers that a later attempt replaced.
    """
    count = headers.get(RETRY_COUNT, "")
    if headers.get("idempotency-key") or len(count) > _MAX_DIGITS or not (count.isascii() and count.isdecimal()):
        return None
    # Keyed with the caller's secret: the hash is stored in clear, and must not confirm a guessed body.
    secret = blake2b(authorization_of(headers).encode()).digest()
    return Attempt(blake2b(asked, digest_size=16, key=secret).hexdigest(), int(count))


def with_labels(request: ChatRequest, headers: Mapping[str, str], caller: Caller) -> ChatRequest:
    """The request with what its headers, and its session's key or URL, say of task, session and join key. Raises InvalidRequest: they differ, or a header is not valid."""
    labels = request.labels
    given = {key: headers[header] for header, key in LABELS.items() if header in headers}
    decided = {"session_id": caller.session, "task": caller.task, "session_group": caller.group}
    for source, said in (("a header", given), ("this session", decided)):
        for key, value in said.items():
            if value is not None and labels.get(key, value) != value:
                where = f"metadata.{key}"
                raise InvalidRequest(f"{source} and {where} say different things; send one of them", param=where)
        labels = labels | {key: value for key, value in said.items() if value is not None}
    if labels == request.labels:
        return request
    # The body's own pairs were checked when it was read, and only they are counted.
    check_metadata({key: value for key, value in labels.items() if key not in request.labels})
    return msgspec.structs.replace(request, metadata=labels)
