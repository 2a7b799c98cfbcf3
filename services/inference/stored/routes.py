"""The routes of stored completions. They show what has arrived in the database: a completion appears a moment after its answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, Response

from contracts.errors import NotFound, Unsupported
from contracts.keys import Caller
from contracts.record_checks import is_completion_id
from runtime.database import Database
from services.http import AppCaller, field_error, reply
from services.inference.stored import pages
from services.inference.stored.queries import StoredChoice, StoredSearch, find_choices, find_stored
from services.inference.terms import pinned_version
from services.limits import Limit

_LIST = "/v1/chat/completions"
_ONE = "/v1/chat/completions/{completion_id}"
_SHOWN = 64
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
            why = "it may not have arrived yet, its request may have had store=false, or its day was deleted"
            raise NotFound(f"there is no completion {completion_id[:_SHOWN]!r} here; {why}", param="completion_id")
        return found

    def page_of(search: StoredSearch) -> dict[str, Any]:
        with database.snapshot() as connection:
            page = find_stored(connection, search)
        return pages.listed([pages.completion_body(choices) for choices in page.completions], has_more=page.has_more)

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
        pages.refuse_parameters(request.query_params, *_PARAMETERS)
        search = StoredSearch(
            tenant=caller.tenant,
            policy=policy,
            version=None if page.model is None else pinned_version(page.model, policy),
            metadata=pages.read_pairs(request.query_params.multi_items()),
            after=_after(page.after),
            limit=pages.read_limit(page.limit),
            newest_first=pages.read_order(page.order),
        )
        return reply(await asyncio.to_thread(page_of, search), headers=headers)

    @service.get(_ONE)
    async def retrieve_stored_completion(completion_id: str, caller: AppCaller) -> Response:
        """One stored completion, with every choice."""
        headers = await requests.check(caller)
        found = await asyncio.to_thread(choices_of, caller.tenant, completion_id)
        return reply(pages.completion_body(found), headers=headers)

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
        num, newest_first = pages.read_limit(limit), pages.read_order(order)
        choices = await asyncio.to_thread(choices_of, caller.tenant, completion_id)
        return reply(pages.messages_body(choices, after, num, newest_first=newest_first), headers=headers)

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


def _after(text: str | None) -> str | None:
    if text is not None and not is_completion_id(text):
        raise field_error("after", f"is the id of a completion, not {text[:_SHOWN]!r}")
    return text
