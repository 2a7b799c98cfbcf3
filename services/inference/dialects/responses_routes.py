"""The routes of OpenAI's Responses API: create, show, list what was answered; the refusal to delete."""

from __future__ import annotations

import asyncio
from functools import partial

from fastapi import FastAPI, Request, Response

from contracts.errors import NotFound, Unsupported
from contracts.ids import completion_id_of, is_stored, response_id_of
from contracts.keys import Caller
from services.http import InferenceCaller, off_loop, reply, with_caller
from services.inference.bounds import MAX_NAME
from services.inference.dialects.responses_fields import RESPONSES_EXAMPLE, ResponsesBody, responses_notes
from services.inference.dialects.responses_items import Item, needs_look_up, resolved, turn_of
from services.inference.dialects.responses_kept import KeptResponse, ResponseStore
from services.inference.dialects.responses_replies import ResponsesReplies
from services.inference.dialects.responses_requests import ResponsesRequest, in_its_words, parse_responses_request
from services.inference.responder import Asked, Responder
from services.inference.stored.routes import page_of, read_limit, read_order, refuse_parameters
from services.openapi import takes

_ONE = "/v1/responses/{response_id}"
_MANY_ITEMS = 256


def add_responses_routes(service: FastAPI, responder: Responder, store: ResponseStore) -> None:
    """Add the routes of the Responses API to an application."""
    limit = responder.admission.limit

    async def kept_of(caller: Caller, response_id: str) -> KeptResponse:
        found = await store.read(caller, [response_id])
        if response_id not in found:
            raise _missing(response_id, "response_id")
        return found[response_id]

    @with_caller
    @takes(ResponsesBody, notes=responses_notes(), example=RESPONSES_EXAMPLE)
    async def create_response(client: Request, caller: InferenceCaller) -> Response:
        """Answer a conversation, as OpenAI's Responses.

        It is answered, logged and limited like a chat. Feedback takes the response's id, or its `completion_id`.
        """

        async def read(body: bytes) -> Asked:
            request = await off_loop(parse_responses_request, body)
            earlier, items = await _conversation(request, caller, store)
            replies = partial(ResponsesReplies, request=request, earlier=earlier, items=items, store=store)
            whole = [*earlier, *items]
            is_long = len(whole) > _MANY_ITEMS
            lowered = await asyncio.to_thread(request.lowered, whole) if is_long else request.lowered(whole)
            return Asked([lowered], replies, whole if earlier or items is not request.items else None)

        with in_its_words():
            return await responder.respond(client, caller, read, "responses")

    service.add_route("/v1/responses", create_response, methods=["POST"])

    @service.get(_ONE)
    async def retrieve_response(request: Request, response_id: str, caller: InferenceCaller) -> Response:
        """One response that is kept."""
        headers = await limit.check(caller)
        refuse_parameters(request.query_params)
        return reply((await kept_of(caller, response_id)).shown(), headers=headers)

    @service.get(f"{_ONE}/input_items")
    async def list_input_items(request: Request, response_id: str, caller: InferenceCaller) -> Response:
        """What a response answers, newest first: the items of its request, and those of earlier responses before them."""
        headers = await limit.check(caller)
        refuse_parameters(request.query_params, "after", "limit", "order")
        asked = request.query_params
        num, is_newest_first = read_limit(asked.get("limit")), read_order(asked.get("order", "desc"))
        items = (await kept_of(caller, response_id)).input
        items = items[::-1] if is_newest_first else items
        return reply(page_of(items, asked.get("after"), num, "an item of this response"), headers=headers)

    @service.delete(_ONE)
    async def delete_response(response_id: str, caller: InferenceCaller) -> Response:
        """Refused: answers are deleted with their day."""
        await limit.check(caller)
        await kept_of(caller, response_id)
        raise Unsupported(
            "a single response cannot be deleted, because its answer is logged; answers are deleted with their day, see Retention "
            "in docs/operating.md, and requests with store=false are never kept",
            param="response_id",
        )


async def _conversation(
    request: ResponsesRequest, caller: Caller, store: ResponseStore
) -> tuple[list[Item], list[Item]]:
    """The items before those of a request, and its own, without references. Raises NotFound: one is not kept, or not the caller's to read."""
    previous, looked_up = request.previous_response_id, [item for item in request.items if needs_look_up(item)]
    wanted = {response_id_of(answer) for item in looked_up if (answer := turn_of(item)) is not None}
    if previous is None and not looked_up:
        return [], request.items
    kept = await store.read(caller, wanted | ({previous} if previous is not None else set()))
    if previous is not None and previous not in kept:
        raise _missing(previous, "previous_response_id")
    found = {item["id"]: item for response in kept.values() for item in response.output}
    earlier = [] if previous is None else kept[previous].input + kept[previous].output
    return earlier, resolved(request.items, found)


def _missing(response_id: str, param: str) -> NotFound:
    why = "its request had store=false, or its task keeps nothing without store=true"
    if is_stored(completion_id_of(response_id)):
        why = "it is of another tenant or session, was never made, or is not kept any more"
    missing = f"there is no response {response_id[:MAX_NAME]!r} here; {why}: send the conversation itself"
    return NotFound(missing, param=param)
