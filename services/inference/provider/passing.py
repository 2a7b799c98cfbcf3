"""Passes planned requests on to the provider, whole or streamed.

    routes.py ─▶ PassedCall ─▶ answer() or stream()
                                 │ asks
                                 ▼
          provider ──body or events──▶ Dialect.hear ─▶ Told ─▶ records.py ─▶ Recorder ─▶ log, durable
                                 └──▶ the same with our id ─▶ the client
                                      ▲ the last event waits for the log

In: calls. Out: what the provider said, with our id; a refusal of its own with its status, its body and when to retry. Waits for: the
provider, then the log. If the client leaves, the provider's connection is closed, and the answer so far is recorded as cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Literal

import httpx
import msgspec
import structlog
from fastapi import Request, Response

from contracts.errors import MillraceError, ProviderFailed
from contracts.records import FinishReason, Generation
from runtime.replicas import SessionStore
from services.http import CLIENT_LEFT, off_loop, reply, reply_error
from services.inference.endpoint import ClientPresence, CompletionStream, SentEvents
from services.inference.provider.dialect import DONE, Told
from services.inference.provider.records import PassedCall, records_of
from services.inference.provider.wire import ProviderClient, events_of, read_whole
from services.inference.recorder import Recorder
from services.inference.sessions.budgets import SessionBudgets
from services.provider import ProviderSettings

_RETRY_HEADERS = ("retry-after", "retry-after-ms", "x-should-retry")
_UNAUTHORIZED, _BAD_REQUEST, _TOO_MANY, _BROKEN = 401, 400, 429, 500
_DRAIN_SECONDS = 0.5
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Passing:
    """What all requests share; see the module. `kept`: where the provider's ids of responses are, by ours, for so many `seconds`."""

    provider: ProviderSettings
    client: ProviderClient
    recorder: Recorder
    budgets: SessionBudgets
    kept: SessionStore
    seconds: float

    async def respond(self, call: PassedCall, client: Request) -> Response:
        """The provider's answer, once it is durable; of a stream its beginning. Raises ProviderFailed, ProviderSilent, SessionOver."""
        await self.budgets.reserve(call.caller.session)
        answer = PassedAnswer(self, call)
        presence = ClientPresence(client)
        response: Response | None = None
        try:
            with presence:
                response = await answer.begin(presence)
            return response or Response(status_code=CLIENT_LEFT)
        except MillraceError as error:
            _log.warning("the provider failed", reason=_reason(error), completion=call.completion_id)
            answer.abandon("error")
            raise
        finally:
            if not isinstance(response, CompletionStream):
                presence.end()
                answer.abandon()

    async def body_of(self, call: PassedCall) -> bytes:
        """What the provider gets. A response that ours goes on from has another id there."""
        found = await self._previous(call)
        changed = {} if found is None else {"previous_response_id": found.decode()}
        return call.sent.body(self.provider.model, **changed)

    async def goes_on(self, call: PassedCall) -> bool:
        """Whether it goes on from a response of the provider's."""
        return await self._previous(call) is not None

    async def _previous(self, call: PassedCall) -> bytes | None:
        if call.sent.previous is None:
            return None
        [found] = await self.kept.read([_name(call, call.sent.previous)])
        return found

    async def keep(self, call: PassedCall, told: Told) -> None:
        """Remember the provider's own id of a response."""
        if call.dialect.spoken == "responses" and told.answer_id:
            ours = str(call.dialect.named({"object": "response"}, call.completion_id, {})["id"])
            await self.kept.write({_name(call, ours): told.answer_id.encode()}, self.seconds)


class PassedAnswer:
    """One answer, while it is passed on. Recorded once, whatever happens. `told`: what the provider has said so far."""

    def __init__(self, passing: Passing, call: PassedCall) -> None:
        self._passing, self._call = passing, call
        self.told = Told()
        self._open = AsyncExitStack()
        self._is_recorded = False

    async def begin(self, presence: ClientPresence) -> Response:
        """A whole answer, the beginning of a stream, or the provider's refusal."""
        call, passing = self._call, self._passing
        body = await passing.body_of(call)
        sent = await self._open.enter_async_context(passing.client.sent(call.dialect, body, call.headers))
        if sent.status_code >= _BAD_REQUEST:
            is_its_fault = sent.status_code in {_UNAUTHORIZED, _TOO_MANY} or sent.status_code >= _BROKEN
            failed = self._records("error") if is_its_fault else []
            self._is_recorded = True
            await passing.recorder.record(failed)
            return await self._refusal(sent)
        if call.sent.request.stream:
            return CompletionStream(call.completion_id, self.abandon, self._events(sent), presence)
        return await self._whole(await read_whole(sent))

    def abandon(self, reason: Literal["cancelled", "error"] = "cancelled") -> None:
        """Close the connection, and record and count what was told and is not recorded yet."""
        if not self._is_recorded and self._call.caller.session is not None:
            self._passing.budgets.spend_later(self._call.caller.session, self.told.num_spent)
        self._passing.recorder.record_later(self._left(self._records(reason)))

    async def _left(self, records: list[Generation]) -> list[Generation]:
        await self._open.aclose()
        return records

    def _records(self, reason: FinishReason) -> list[Generation]:
        """The records, the first time that they are asked for. `reason`: of choices that had not ended."""
        if self._is_recorded:
            return []
        self._is_recorded = True
        if self._call.is_compared and not self.told.choices:
            self.told.choice()  # an arm that was drawn and said nothing has failed
        self.told.end(reason)
        return records_of(self._call, self.told, self._passing.provider, time.time())

    async def record(self, reason: FinishReason = "stop") -> bool:
        """Make what was told durable, count it, and keep what the next call needs. False if the log could not take it."""
        call, told, passing = self._call, self.told, self._passing
        spending = passing.budgets.spend(call.caller.session, told.num_spent)
        keeping = passing.keep(call, told) if call.terms.logged else asyncio.sleep(0)
        recording = passing.recorder.record(self._records(reason))
        # The records are made once. A client that leaves now ends the wait for them, and not the work.
        return (await asyncio.shield(asyncio.gather(recording, spending, keeping)))[0]

    async def _whole(self, body: bytes) -> Response:
        call, told = self._call, self.told
        content = await off_loop(_object, body)
        call.dialect.hear(content, told)
        if not told.choices:
            raise ProviderFailed("the provider's answer has no choice")
        logged = await self.record()
        lost = {} if logged else {"x-millrace-logged": "false"}
        shown = call.dialect.named(content, call.completion_id, call.beside)
        return reply(shown, headers={"x-request-id": call.completion_id, **lost})

    async def _events(self, sent: httpx.Response) -> AsyncIterator[SentEvents]:
        """The events as the provider sends them. The last one is sent when the answer is durable."""
        call, told = self._call, self.told
        held, last = b"", dict[str, Any]()
        try:
            events = events_of(sent)
            async for event in events:
                if event.data is None:
                    yield SentEvents(event.comment)
                    continue
                if event.data == DONE:
                    held = b"data: [DONE]\n\n"
                    break
                content = await off_loop(_object, event.data)
                is_last = call.dialect.hear(content, told)
                shown = self._shown(content)
                if is_last:
                    last, held = shown, call.dialect.event(shown)
                    break
                if shown:
                    yield SentEvents(call.dialect.event(shown))
            if not told.has_ended:
                raise ProviderFailed("the provider's stream ended before its answer")
        except MillraceError as error:
            _log.warning("a stream of the provider failed", reason=_reason(error), completion=call.completion_id)
            await self.record("error")
            its_own = error.facts.get("sent")
            content = its_own if isinstance(its_own, dict) else call.dialect.failure(error)
            yield SentEvents(call.dialect.event(content), last=True)
            return
        logged, _ = await asyncio.gather(self.record(), _drained(events))
        if not logged:
            mark = {"millrace": {"logged": False}}
            chunk = {"id": call.completion_id, "object": "chat.completion.chunk", "choices": [], **mark}
            held = call.dialect.event({**last, **mark}) if last else call.dialect.event(chunk) + held
        yield SentEvents(held, last=True, whole=True)

    def _shown(self, content: dict[str, Any]) -> dict[str, Any]:
        """An event for the client; empty: it did not ask for it."""
        call = self._call
        if call.sent.hides_usage:
            if content.get("usage") and not content.get("choices"):
                return {}
            content.pop("usage", None)
        return call.dialect.named(content, call.completion_id, call.beside)

    async def _refusal(self, sent: httpx.Response) -> Response:
        """A status of the provider's that is no answer, as it sent it. Our key is not the caller's business."""
        body, status = await read_whole(sent), sent.status_code
        headers = {name: sent.headers[name] for name in _RETRY_HEADERS if name in sent.headers}
        try:
            content = _object(body)
        except ProviderFailed:
            content = {}
        kind = _kind_of(content)
        _log.warning("the provider refused", status=status, kind=kind, completion=self._call.completion_id)
        if status == _UNAUTHORIZED:
            named = self._passing.provider.key_from
            raise ProviderFailed(f"the provider does not take the key of {named}; its operator has to set another one")
        if "error" in content:
            return Response(body, status, headers, media_type="application/json")
        error = ProviderFailed(f"the provider says {status}: {body[:300].decode(errors='replace')}")
        error.headers = headers
        return reply_error(error, self._call.dialect.failure(error), status)


def _name(call: PassedCall, response_id: str) -> str:
    return f"provided:{call.caller.tenant}\0{response_id}"


def _object(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProviderFailed(f"the provider's answer is not a JSON object: {error}") from error


def _kind_of(content: dict[str, Any]) -> str:
    """The type and code of an error, for logs: its message may quote a prompt or the key."""
    error = content.get("error")
    return " ".join(str(error.get(name))[:64] for name in ("type", "code")) if isinstance(error, dict) else ""


def _reason(error: MillraceError) -> str:
    sent = error.facts.get("sent")
    return f"it sent an error: {_kind_of(sent)}" if isinstance(sent, dict) else error.message


async def _drained(events: AsyncIterator[Any]) -> None:
    """Read what follows the last event, so that the connection can carry another request."""
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in events:
                pass
    except (TimeoutError, httpx.TransportError, MillraceError):
        pass
