"""What an operator decides: back to an accepted version, or on to a published one. The transaction ends here."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from contracts import assignments, rollback
from contracts.assignments import LIVE, MOVED
from contracts.errors import InvalidValue, NotFound, StaleWrite
from services.dashboard.access import Body, Operator, own_page
from services.http import read_json, reply

router = APIRouter(dependencies=[Depends(own_page)])

Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]


class RollbackRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`live` is what the operator saw: if it moved meanwhile, nothing is done. `to` None: the last accepted version."""

    live: int
    reason: Reason
    to: int | None = None


class PromoteRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`to` is above `live` and published; the gate's verdict on it is the operator's to overrule."""

    live: int
    reason: Reason
    to: int


@router.post("/api/rollback")
def roll_back(request: Request, session: Operator, body: Body) -> Response:
    """Go back to an accepted version, once a person has confirmed it."""
    wanted = read_json(RollbackRequest, body)
    policy = request.app.state.settings.policy
    with request.app.state.database.transaction() as connection:
        _check_live(assignments.read(connection, policy).get(LIVE), wanted.live)
        version = rollback.roll_back(connection, policy=policy, writer=session.name, reason=wanted.reason, to=wanted.to)
    request.app.state.bell.ring(MOVED)
    return reply({"live": version})


@router.post("/api/promote")
def promote(request: Request, session: Operator, body: Body) -> Response:
    """Serve a newer published version, once a person has confirmed it."""
    wanted = read_json(PromoteRequest, body)
    policy = request.app.state.settings.policy
    if wanted.to <= wanted.live:
        raise InvalidValue(f"v{wanted.to} is not above v{wanted.live}, which is live: roll back instead", param="to")
    request.app.state.store.manifest(policy, wanted.to)
    with request.app.state.database.transaction() as connection:
        live = assignments.read(connection, policy).get(LIVE)
        if live is None:
            raise NotFound("nothing is live yet; start with: millrace up")
        _check_live(live, wanted.live)
        assignments.move(
            connection,
            policy=policy,
            arm=LIVE,
            version=wanted.to,
            expected_epoch=live.epoch,
            writer=session.name,
            reason=wanted.reason,
            share=1.0,
        )
    request.app.state.bell.ring(MOVED)
    return reply({"live": wanted.to})


def _check_live(live: assignments.Assignment | None, seen: int) -> None:
    if live is not None and live.version != seen:
        raise StaleWrite(f"v{seen} is no longer live, v{live.version} is; look again", live=live.version)
