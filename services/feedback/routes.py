"""The routes of feedback: submit one signal or a batch, look one up, retract one; make a receipt."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response

from contracts.errors import InvalidRequest, MillraceError
from services.feedback.intake import Acknowledgement, SignalIntake
from services.feedback.pages import PageFeedback
from services.feedback.receipts import ReceiptRequest
from services.feedback.requests import FeedbackItem
from services.http import FeedbackCaller, off_loop, read_json, reply, with_caller
from services.limits import Limit
from services.openapi import takes

MAX_ITEMS = 1000
_ACCEPTED, _MULTIPLE = 202, 207

RECEIPT_EXAMPLE = {"completion_id": "chatcmpl-019ad1c4-5e00-7abc-8def-0123456789ab", "signals": ["accepted", "edited"]}
ITEM_EXAMPLE: dict[str, Any] = {"name": "accepted", "value": True, "session_id": "visit-7"}


class _Batch(msgspec.Struct):
    items: list[msgspec.Raw]


class FeedbackBatch(msgspec.Struct):
    """The documented shape of a batch. The items are read one by one, so a bad item does not fail the others."""

    items: list[FeedbackItem]
    """Up to 1,000."""


def add_routes(service: FastAPI, intake: SignalIntake, limit: Limit, pages: PageFeedback) -> None:
    """Add the routes of signals to an application."""

    @takes(FeedbackItem, example=ITEM_EXAMPLE)
    async def submit(request: Request, caller: FeedbackCaller) -> Response:
        """Submit one signal. 202 means that it is durable.

        A page has no key: it sends `receipt` in place of target, choice, submitter, correction and `at`, and may say how many seconds `ago`
        it happened.
        """
        headers = await limit.check(caller)
        body = await request.body()
        try:
            item = read_json(dict[str, Any], body)
        except InvalidRequest:
            await intake.reject(InvalidRequest.code)
            raise
        [result] = await intake.submit([item], caller, len(body))
        if isinstance(result, MillraceError):
            raise result
        return reply(result, _ACCEPTED, headers)

    # Starlette's own route: it needs no injection, and FastAPI's would take half of the endpoint's time.
    service.add_route("/v1/feedback", pages.beside(with_caller(submit)), methods=["POST"])

    @service.post("/v1/feedback/batch")
    @takes(FeedbackBatch, example={"items": [ITEM_EXAMPLE]})
    async def submit_batch(request: Request, caller: FeedbackCaller) -> Response:
        """Submit up to 1,000 signals.

        The answer, 207, lists `successes` and `errors`, each with the `index` of its item and a status of its own.
        """
        body = await request.body()
        try:
            items, num = await off_loop(_items_of, body)
        except InvalidRequest:
            await intake.reject(InvalidRequest.code)
            raise
        if num > MAX_ITEMS:
            await intake.reject(InvalidRequest.code, num)
            raise InvalidRequest(f"a batch takes up to {MAX_ITEMS} items, not {num}", param="items")
        headers = await limit.check(caller, num)
        results = await intake.submit(items, caller, len(body))
        return reply(_answers(results), _MULTIPLE, headers)

    @service.get("/v1/feedback/{signal_id:path}")
    def show(signal_id: str, caller: FeedbackCaller) -> Response:
        """One signal, and what became of it."""
        return reply(intake.show(signal_id, caller.tenant))

    @service.delete("/v1/feedback/{signal_id:path}")
    async def retract(signal_id: str, caller: FeedbackCaller) -> Response:
        """Take a signal back."""
        return reply(await intake.retract(signal_id, caller.tenant), _ACCEPTED)


def add_receipt_route(service: FastAPI, pages: PageFeedback, limit: Limit) -> None:
    """Add the route at which apps get receipts for their pages."""

    @service.post("/v1/feedback/receipts")
    @takes(ReceiptRequest, example=RECEIPT_EXAMPLE)
    async def make_receipt(request: Request, caller: FeedbackCaller) -> Response:
        """Make a receipt, with which a page may send a few signals about one answer."""
        headers = await limit.check(caller)
        wanted = await off_loop(partial(read_json, ReceiptRequest), await request.body())
        return reply(await pages.make(wanted, caller.tenant), headers=headers)


def _items_of(body: bytes) -> tuple[list[msgspec.Raw], int]:
    """The items of a batch and their number; of too many the number alone."""
    items = read_json(_Batch, body).items
    return (items if len(items) <= MAX_ITEMS else []), len(items)


def _answers(results: list[Acknowledgement | MillraceError]) -> dict[str, list[dict[str, Any]]]:
    """Sort the results of a batch into successes and errors, each with its index in the batch."""
    answers: dict[str, list[dict[str, Any]]] = {"successes": [], "errors": []}
    for index, result in enumerate(results):
        if isinstance(result, MillraceError):
            answers["errors"].append({"index": index, "status": result.status, **result.as_openai()})
        else:
            answers["successes"].append({"index": index, "status": _ACCEPTED, **msgspec.structs.asdict(result)})
    return answers
