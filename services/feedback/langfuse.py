"""Langfuse's API, as far as its SDKs send scores: a score is a signal. Traces and observations are counted, and not kept.

The SDK's `public_key` may be any text; its `secret_key` is a key of this home with the scope feedback. `host` is this server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response

from contracts.errors import InvalidRequest, InvalidValue, MillraceError
from contracts.keys import Caller
from contracts.tasks import Task
from contracts.tasks.scores import of_langfuse, snake
from runtime.metrics import TELEMETRY_IGNORED
from services.feedback.intake import Acknowledgement, SignalIntake
from services.feedback.scores import MALFORMED, about, item_of
from services.http import FeedbackCaller, off_loop, read_json, reply
from services.limits import Limit
from services.openapi import takes

MAX_SCORES = 1000
_DONE, _CREATED, _ACCEPTED, _MULTIPLE = 200, 201, 202, 207
_SCORE = "score-create"
_EXAMPLE: dict[str, Any] = {"traceId": "0af7651916cd43dd8448eb211c80319c", "name": "accepted", "value": 1}

Result = Acknowledgement | MillraceError


class LangfuseScore(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A score, as Langfuse's SDKs send it. The SDK for Python sends a list of them. Other fields are ignored."""

    name: str
    """Of a signal that a task declares."""
    value: Any
    """A number, a label or a text, as the signal takes it. 1 and 0 are true and false."""
    id: str | None = None
    """Sending the same score again changes nothing; with another value it replaces what was said before."""
    trace_id: str | None = None
    """The id of a completion, or the `metadata.join_key` of its request."""
    observation_id: str | None = None
    """It may be the id of a completion."""
    session_id: str | None = None
    """The session, if there is no trace."""
    data_type: str | None = None
    """CORRECTION: `value` is the right answer, and the signal is the task's one for edits."""
    comment: str | None = None
    timestamp: str | None = None
    """When it happened; the default is now."""


class LangfuseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a batch. Those of other types than `score-create` are counted and not kept."""

    id: str
    type: str
    body: Any


class LangfuseBatch(msgspec.Struct, frozen=True):
    """Events, as Langfuse's SDKs before version 5 send them."""

    batch: list[LangfuseEvent]


def add_langfuse_routes(service: FastAPI, intake: SignalIntake, tasks: Mapping[str, Task], limit: Limit) -> None:
    """Add what Langfuse's SDKs call to an application."""

    async def submit(scores: list[Any], caller: Caller, body: bytes) -> list[Result]:
        if len(scores) > MAX_SCORES:
            await intake.reject(InvalidRequest.code, len(scores))
            raise InvalidRequest(f"a batch takes up to {MAX_SCORES} scores, not {len(scores)}")
        await limit.check(caller, max(1, len(scores)))  # reading other events is work too
        items = await off_loop(lambda _: [_item(score, tasks) for score in scores], body)
        return await intake.submit(items, caller, len(body))

    @service.post("/api/public/scores")
    @takes(LangfuseScore, example=_EXAMPLE)
    async def submit_scores(request: Request, caller: FeedbackCaller) -> Response:
        """Submit one score, or a list of up to 1,000.

        One is answered with its `id`; a list with 202, or with 207 and `accepted`, `rejected` and `errors`.
        """
        content, body = await _content(request, intake)
        if not isinstance(content, list):
            [result] = await submit([content], caller, body)
            if isinstance(result, MillraceError):
                raise result
            return reply({"id": content.get("id") or result.id}, _DONE)
        return _of_list(await submit(content, caller, body))

    @service.post("/api/public/ingestion")
    @takes(LangfuseBatch, example={"batch": [{"id": "e1", "type": _SCORE, "body": _EXAMPLE}]})
    async def submit_events(request: Request, caller: FeedbackCaller) -> Response:
        """Submit a batch of events. The answer, 207, has `successes` and `errors` by the ids of the events."""
        content, body = await _content(request, intake)
        events = content.get("batch") if isinstance(content, dict) else None
        if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
            raise InvalidRequest("`batch` must be a list of events", param="batch")
        scores = [event for event in events if event.get("type") == _SCORE]
        TELEMETRY_IGNORED.labels("langfuse").inc(len(events) - len(scores))
        results = await submit([_body(event) for event in scores], caller, body)
        return reply(_of_events(events, iter(results)), _MULTIPLE)

    @service.get("/api/public/projects")
    def show_project(caller: FeedbackCaller) -> Response:
        """The key's tenant, as a project. The SDK's `auth_check()` asks for it."""
        tenant = {"id": caller.tenant, "name": caller.tenant}
        return reply({"data": [{**tenant, "organization": tenant, "metadata": {}}]})


def _body(event: Mapping[str, Any]) -> Any:
    """Its score. SDKs may write time and id beside it; without an id, a batch that is sent again would count again."""
    body = event.get("body")
    if not isinstance(body, dict):
        return body
    return {"timestamp": event.get("timestamp"), **body, "id": body.get("id") or event.get("id")}


def _of_list(results: Sequence[Result]) -> Response:
    refused = ((at, error) for at, error in enumerate(results) if isinstance(error, MillraceError))
    errors = [{"message": f"{at}: {error.message}"} for at, error in refused]
    if not errors:
        return reply({"message": "Accepted"}, _ACCEPTED)
    counts = {"accepted": len(results) - len(errors), "rejected": len(errors)}
    return reply({**counts, "errors": errors}, _MULTIPLE)


def _of_events(events: Sequence[Mapping[str, Any]], results: Iterator[Result]) -> dict[str, list[dict[str, Any]]]:
    """`results`: of the scores among the events, in their order. What is not kept is a success: the SDK would send it again."""
    answers: dict[str, list[dict[str, Any]]] = {"successes": [], "errors": []}
    for event in events:
        result = next(results) if event.get("type") == _SCORE else None
        if isinstance(result, MillraceError):
            facts = {"status": result.status, "message": result.message, "error": result.code}
            answers["errors"].append({"id": event.get("id"), **facts})
        else:
            answers["successes"].append({"id": event.get("id"), "status": _CREATED})
    return answers


async def _content(request: Request, intake: SignalIntake) -> tuple[Any, bytes]:
    """What a body says, and the body. Raises InvalidRequest: it is not JSON; it counts as one refused item."""
    body = await request.body()
    try:
        return await off_loop(_read, body), body
    except InvalidRequest as error:
        await intake.reject(error.code)
        raise


def _read(body: bytes) -> Any:
    anything: type[Any] = Any
    return read_json(anything, body)


def _item(content: Any, tasks: Mapping[str, Task]) -> dict[str, Any] | MillraceError:
    try:
        it = snake(content)
        target = about((it.get("observation_id"), it.get("trace_id")), it.get("trace_id"), it.get("session_id"))
        return item_of(of_langfuse(it), target, tasks, "langfuse")
    except MillraceError as error:
        return error
    except MALFORMED:
        return InvalidValue("a score is an object with `name` and `value`")
