"""The routes of stored completions, in OpenAI's shapes. They show what has arrived in the database, a moment after its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, Response

from contracts.errors import NotFound, Unsupported, field_error
from contracts.keys import Caller
from contracts.record_checks import is_completion_id
from contracts.records import unpack_ids
from runtime.database import Database
from services.http import AppCaller, reply
from services.inference.replies import fingerprint, message_of
from services.inference.stored.queries import StoredChoice, StoredSearch, find_choices, find_stored
from services.inference.terms import pinned_version
from services.limits import Limit

DEFAULT_LIMIT, MAX_LIMIT = 20, 100
_ORDERS = ("asc", "desc")
_SHOWN = 64
_LIST = "/v1/chat/completions"
_ONE = "/v1/chat/completions/{completion_id}"
_PARAMETERS = ("after", "limit", "model", "order", "metadata[KEY]")


@dataclass
class _PageParameters:
    after: str | None = None
    limit: str | None = None
    model: str | None = None
    order: str | None = None


def add_stored_routes(service: FastAPI, database: Database, policy: str, requests: Limit) -> None:
    """Add the routes that list and show completions of the caller's tenant. They count against its limit of requests."""

    def choices_of(tenant: str, completion_id: str) -> list[StoredChoice]:
        with database.snapshot() as connection:
            # A text that is not an id is in no table, and the database may refuse it in a query.
            found = find_choices(connection, tenant, completion_id) if is_completion_id(completion_id) else []
        if not found:
            raise unknown_completion(completion_id)
        return found

    def found_page(search: StoredSearch) -> dict[str, Any]:
        with database.snapshot() as connection:
            page = find_stored(connection, search)
        return listed([completion_body(choices) for choices in page.completions], has_more=page.has_more)

    async def refused(caller: Caller, completion_id: str, why: str, param: str) -> Unsupported:
        await requests.check(caller)
        await asyncio.to_thread(choices_of, caller.tenant, completion_id)
        return Unsupported(why, param=param)

    @service.get(_LIST)
    async def list_stored_completions(
        request: Request, caller: AppCaller, page: Annotated[_PageParameters, Depends()]
    ) -> Response:
        """List the tenant's stored completions, newest last.

        `metadata[KEY]=VALUE` keeps those with this pair. A completion appears a moment after its answer.
        """
        headers = await requests.check(caller)
        refuse_parameters(request.query_params, *_PARAMETERS)
        search = StoredSearch(
            tenant=caller.tenant,
            policy=policy,
            version=None if page.model is None else pinned_version(page.model, policy),
            metadata=read_pairs(request.query_params.multi_items()),
            after=_after(page.after),
            limit=read_limit(page.limit),
            newest_first=read_order(page.order),
        )
        return reply(await asyncio.to_thread(found_page, search), headers=headers)

    @service.get(_ONE)
    async def retrieve_stored_completion(completion_id: str, caller: AppCaller) -> Response:
        """One stored completion, with every choice."""
        headers = await requests.check(caller)
        found = await asyncio.to_thread(choices_of, caller.tenant, completion_id)
        return reply(completion_body(found), headers=headers)

    @service.get(f"{_ONE}/messages")
    async def list_stored_messages(
        completion_id: str,
        caller: AppCaller,
        after: str | None = None,
        limit: str | None = None,
        order: str | None = None,
    ) -> Response:
        """The messages of the request of a stored completion."""
        headers = await requests.check(caller)
        num, newest_first = read_limit(limit), read_order(order)
        choices = await asyncio.to_thread(choices_of, caller.tenant, completion_id)
        return reply(messages_body(choices, after, num, newest_first=newest_first), headers=headers)

    @service.post(_ONE)
    async def update_stored_completion(completion_id: str, caller: AppCaller) -> Response:
        """Refused: the metadata of a completion cannot be changed."""
        why = "the metadata of a completion cannot be changed, because it is logged with the answer; send it with the request"
        raise await refused(caller, completion_id, why, "metadata")

    @service.delete(_ONE)
    async def delete_stored_completion(completion_id: str, caller: AppCaller) -> Response:
        """Refused: completions are deleted with their day."""
        why = (
            "a single completion cannot be deleted; completions are deleted with their day, see Retention in docs/operating.md, and "
            "requests with store=false are never kept"
        )
        raise await refused(caller, completion_id, why, "completion_id")


def unknown_completion(completion_id: str) -> NotFound:
    """The refusal of an id that is no completion of the caller's tenant."""
    why = "it may not have arrived yet, its request may have had store=false, or its day was deleted"
    return NotFound(f"there is no completion {completion_id[:_SHOWN]!r} here; {why}", param="completion_id")


def _after(text: str | None) -> str | None:
    if text is not None and not is_completion_id(text):
        raise field_error("after", f"is the id of a completion, not {text[:_SHOWN]!r}")
    return text


def read_limit(text: str | None) -> int:
    """The parameter `limit`. Raises InvalidRequest if it is out of bounds."""
    if text is None:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_LIMIT)) and 1 <= int(text) <= MAX_LIMIT):
        raise field_error("limit", f"must lie in [1, {MAX_LIMIT}], not {text[:20]!r}")
    return int(text)


def read_order(text: str | None) -> bool:
    """The parameter `order`: True for newest first. Raises InvalidRequest if it has another value."""
    if text not in (None, *_ORDERS):
        raise field_error("order", f"is asc or desc, not {text[:20]!r}")
    return text == "desc"


def refuse_parameters(names: Iterable[str], *served: str) -> None:
    """Raises Unsupported if one of these parameters is not served. `metadata[KEY]` stands for any key."""
    for name in names:
        if name not in served and not (_is_pair(name) and "metadata[KEY]" in served):
            known = f"there are {', '.join(served)}" if served else "there is none"
            raise Unsupported(f"`{name[:_SHOWN]}` is not a parameter here; {known}", param=name[:_SHOWN])


def read_pairs(parameters: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The parameters `metadata[key]=value`."""
    return {name[len("metadata[") : -1]: value for name, value in parameters if _is_pair(name)}


def completion_body(choices: Sequence[StoredChoice]) -> dict[str, Any]:
    """A completion as it was answered, with the parameters that were used. How much of its prompt was cached is not stored."""
    record, body = choices[0]
    version = max((span.version for choice in choices for span in choice.record.spans), default=None)
    num_prompt, num_made = _num_ids(body.prompt_ids), sum(_num_ids(choice.body.completion_ids) for choice in choices)
    if record.provided is not None:
        num_prompt, num_made = record.provided.prompt_tokens or 0, record.provided.completion_tokens or 0
    return {
        "id": record.completion_id,
        "object": "chat.completion",
        "created": int(record.created_at),
        "model": record.provided.model if record.provided else record.policy,
        "system_fingerprint": fingerprint(record.policy, version),
        "policy_version": version,
        "choices": [_choice(choice) for choice in choices],
        "usage": {"prompt_tokens": num_prompt, "completion_tokens": num_made, "total_tokens": num_prompt + num_made},
        "metadata": body.metadata,
        "tools": body.tools or None,
        "tool_choice": body.tool_choice,
        "response_format": body.response_format,
        "sampling": record.sampling.in_full,
        "temperature": record.sampling.temperature,
        "top_p": record.sampling.top_p,
        "seed": record.sampling.seed,
        "frequency_penalty": record.sampling.frequency_penalty,
        "presence_penalty": record.sampling.presence_penalty,
    }


def messages_body(
    choices: Sequence[StoredChoice], after: str | None, limit: int, *, newest_first: bool
) -> dict[str, Any]:
    """A page of the messages that a completion answered. Raises InvalidRequest: `after` is not the id of one of them."""
    record, body = choices[0]
    empty = {"content": None, "refusal": None, "content_parts": None}
    shown = [{"id": f"{record.completion_id}-{num}", **empty, **message} for num, message in enumerate(body.messages)]
    return page_of(shown[::-1] if newest_first else shown, after, limit, "a message of this completion")


def page_of(items: list[dict[str, Any]], after: str | None, limit: int, what: str) -> dict[str, Any]:
    """The page of things with ids behind the one with the id `after`. Raises InvalidRequest if that is not the id of `what`."""
    start = 0
    if after is not None:
        start = next((place + 1 for place, item in enumerate(items) if item["id"] == after), -1)
        if start < 0:
            raise field_error("after", f"is the id of {what}")
    return listed(items[start : start + limit], has_more=start + limit < len(items))


def listed(data: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """A page of things with ids."""
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more}


def _choice(choice: StoredChoice) -> dict[str, Any]:
    record, body = choice
    reason = "tool_calls" if body.tool_calls and record.finish_reason == "stop" else record.finish_reason
    message = message_of(body.text, body.reasoning, body.tool_calls)
    return {"index": record.choice, "message": message, "logprobs": None, "finish_reason": reason}


def _is_pair(name: str) -> bool:
    return name.startswith("metadata[") and name.endswith("]")


def _num_ids(packed: bytes) -> int:
    return len(unpack_ids(packed))
