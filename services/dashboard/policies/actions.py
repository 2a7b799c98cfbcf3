"""What an operator decides: back to an accepted version, or on to a published one. The transaction ends here."""

from __future__ import annotations

from typing import Annotated, get_args

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from contracts import rollback
from contracts.assignments import MOVED
from contracts.errors import InvalidValue
from contracts.record_checks import MAX_INT32
from contracts.revocations import Treatment, claimed_parents
from contracts.rollback_effects import describe, describe_treatment, read_effects
from contracts.version_parents import BASE, stored_parents
from services.dashboard.signin.access import Body, OperatorReader, OperatorWriter, own_page
from services.http import read_json, reply
from services.openapi import takes

router = APIRouter(dependencies=[Depends(own_page)])

Version = Annotated[int | None, Query(ge=0, le=2**31 - 1)]
Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT32)]
Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=500, pattern=r"^[^\x00]*$")]


class RollbackRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`live` is what the operator saw: if it moved meanwhile, nothing is done. `to` None: the last accepted version.

    `revoke` None: everything between. `treatment`: see `contracts/revocations.py`.
    """

    live: Number
    reason: Reason
    to: Number | None = None
    treatment: Treatment = "evidence"
    revoke: frozenset[Number] | None = None


class PromoteRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`to` is above `live` and published; the gate's verdict on it is the operator's to overrule."""

    live: Number
    reason: Reason
    to: Number


@router.get("/api/rollback")
def preview(request: Request, _session: OperatorReader, to: Version = None) -> Response:
    """What a rollback would do, in words and numbers; nothing is changed."""
    policy, store = request.app.state.settings.policy, request.app.state.store
    with request.app.state.database.snapshot() as connection:
        parents = stored_parents(store, policy, BASE, claimed_parents(connection, policy))
        plan = rollback.read_plan(connection, policy, to=to, parents=parents)
        effects = read_effects(connection, plan)
    return reply(
        {
            "live": plan.live,
            "to": plan.target,
            "revokes": list(plan.revoked),
            "effects": effects._asdict(),
            "says": describe(plan, effects),
            "treatments": {name: describe_treatment(name, effects) for name in get_args(Treatment)},
        }
    )


@router.post("/api/rollback")
@takes(RollbackRequest)
def roll_back(request: Request, session: OperatorWriter, body: Body) -> Response:
    """Go back to an accepted version, once a person has confirmed it."""
    wanted = read_json(RollbackRequest, body)
    policy, store = request.app.state.settings.policy, request.app.state.store
    with request.app.state.database.snapshot() as connection:
        claimed = claimed_parents(connection, policy)
    parents = stored_parents(store, policy, BASE, claimed)
    with request.app.state.database.transaction() as connection:
        plan = rollback.roll_back(
            connection,
            policy=policy,
            writer=session.name,
            reason=wanted.reason,
            to=wanted.to,
            treatment=wanted.treatment,
            revoke=wanted.revoke,
            parents=parents,
            seen_live=wanted.live,
        )
    request.app.state.bell.ring(MOVED)
    return reply({"live": plan.target, "revoked": list(plan.revoked)})


@router.post("/api/promote")
@takes(PromoteRequest)
def promote(request: Request, session: OperatorWriter, body: Body) -> Response:
    """Serve a newer published version, once a person has confirmed it."""
    wanted = read_json(PromoteRequest, body)
    policy = request.app.state.settings.policy
    if wanted.to <= wanted.live:
        raise InvalidValue(f"v{wanted.to} is not above v{wanted.live}, which is live: roll back instead", param="to")
    request.app.state.store.manifest(policy, wanted.to)
    with request.app.state.database.transaction() as connection:
        rollback.promote(
            connection,
            policy=policy,
            to=wanted.to,
            writer=session.name,
            reason=wanted.reason,
            seen_live=wanted.live,
        )
    request.app.state.bell.ring(MOVED)
    return reply({"live": wanted.to})
