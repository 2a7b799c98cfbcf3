"""What became of a completion: its signals, its reward and the parts of it, the version that learned it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import FastAPI, Response
from msgspec.structs import asdict

from contracts.errors import InvalidRecord
from contracts.ids import completion_id_of
from contracts.ledger import PENDING, AnswerRecord
from contracts.record_checks import is_completion_id
from contracts.records import Score, Signal, decode_shape
from runtime.database import Database
from services.http import AppHistoryCaller, reply
from services.inference.stored.queries import find_histories, unknown_completion
from services.limits import Limit

_TOLD = ("revision", "state", "reason", "version", "at")


def add_attribution_route(service: FastAPI, database: Database, requests: Limit) -> None:
    """Add the route. It counts against the caller's limit of requests."""

    def attributed(tenant: str, completion_id: str) -> list[AnswerRecord]:
        with database.snapshot() as connection:
            # A text that is not an id is in no table, and the database may refuse it in a query.
            return find_histories(connection, tenant, completion_id) if is_completion_id(completion_id) else []

    @service.get("/v1/completions/{completion_id}/attribution")
    async def show_attribution(completion_id: str, caller: AppHistoryCaller) -> Response:
        """What became of an answer: its signals, its reward and the parts of it, the version that learned it.

        Each choice has a `state` of the ledger; while that is `pending`, `waits_for` says for what: `signals`, `reward` or `training`.
        `scores` and `outcomes` have the newest 50 and 100, in order; `reward` is the newest. `valid` false: a rollback or restart of the
        trainer took this outcome back.
        """
        headers = await requests.check(caller)
        known_as = completion_id_of(completion_id)
        found = await asyncio.to_thread(attributed, caller.tenant, known_as)
        if not found:
            raise unknown_completion(completion_id)
        return reply(attribution_body(known_as, found, caller.tenant), headers=headers)


def attribution_body(completion_id: str, found: Sequence[AnswerRecord], tenant: str) -> dict[str, Any]:
    """The histories of a completion's choices, without anything that another tenant said."""
    choices = [_choice(answer, tenant) for answer in found]
    return {"id": completion_id, "object": "completion.attribution", "choices": choices}


def _choice(answer: AnswerRecord, tenant: str) -> dict[str, Any]:
    head, newest = answer.head, answer.scores[-1] if answer.scores else None
    provided = answer.record.provided if answer.record else None
    return {
        "index": head.choice,
        "task": head.task,
        "purpose": head.purpose,
        "arm": head.arm,
        "policy_version": None if provided else head.version,
        "provider": None if provided is None else {name: getattr(provided, name) for name in _PROVIDED},
        "created": head.created_at,
        "state": head.state,
        "reason": head.state_reason if head.state != PENDING else "",
        "waits_for": _awaited(answer) if head.state == PENDING else None,
        "learned_by": head.state_version if head.state == "trained" else None,
        "superseded_by": head.superseded_by or None,
        "reward": newest and newest.reward,
        "signals": [_signal(row) for row in answer.signals if row.tenant == tenant],
        "scores": [_score(row) for row in answer.scores],
        "outcomes": [{name: getattr(row, name) for name in _TOLD} | {"valid": row.is_valid} for row in answer.outcomes],
    }


_PROVIDED = ("origin", "model", "may_train", "import_id")


def _awaited(answer: AnswerRecord) -> str:
    """What a pending answer waits for. Without a revision its episode is open; without a score of the newest one, nobody has graded it."""
    if answer.head.revision == 0:
        return "signals"
    is_scored = any(row.revision >= answer.head.revision for row in answer.scores)
    return "training" if is_scored else "reward"


def _signal(row: Any) -> dict[str, Any]:
    shown = {name: getattr(row, name) for name in ("id", "name", "state", "reason", "revision", "at", "received_at")}
    try:
        record = decode_shape(Signal, row.record)
    except InvalidRecord:
        return shown | {"value": None, "correction": None, "submitter": {"id": row.submitter}}
    return shown | {"value": record.value, "correction": record.correction, "submitter": asdict(record.submitter)}


def _score(row: Any) -> dict[str, Any]:
    parts = [asdict(part) for part in msgspec.convert(row.components, list[Score])]
    shown = {name: getattr(row, name) for name in ("revision", "reward", "status", "fault", "at")}
    return shown | {"parts": parts}
