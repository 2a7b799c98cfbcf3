"""An operator withdraws the canary, or revokes a version that is not live. Transactions begin and end here."""

from __future__ import annotations

from typing import Annotated, get_args

import msgspec
from fastapi import APIRouter, Query, Request, Response

from contracts import rejection
from contracts.assignments import MOVED
from contracts.record_checks import MAX_INT32
from contracts.revocations import Treatment, claimed_parents
from contracts.rollback_effects import describe, describe_treatment, read_effects
from contracts.version_history import BASE, stored_parents
from services.dashboard.policies.bodies import InBody, Reason
from services.dashboard.signin.access import Body, OperatorReader, OperatorWriter, OwnPage, Policy
from services.http import read_json, reply
from services.openapi import takes

router = APIRouter()
VersionInQuery = Annotated[int, Query(ge=0, le=MAX_INT32)]


class WithdrawRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The train of `version` ends; it is not revoked."""

    version: InBody
    reason: Reason


class RevokeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`live` is the version that the operator saw. `treatment`: see `contracts/revocations.py`."""

    version: InBody
    live: InBody
    reason: Reason
    treatment: Treatment = "evidence"


@router.post("/api/withdraw")
@takes(WithdrawRequest)
def withdraw(request: Request, session: OperatorWriter, policy: Policy, body: Body) -> Response:
    """End the train of a version, once a person has confirmed it."""
    wanted = read_json(WithdrawRequest, body)
    with request.app.state.database.transaction() as connection:
        left = rejection.withdraw(
            connection, policy=policy, version=wanted.version, writer=session.name, reason=wanted.reason
        )
    request.app.state.bell.ring(MOVED)
    return reply({"withdrawn": wanted.version, "left": list(left)})


@router.get("/api/revoke")
def preview(
    request: Request, _session: OperatorReader, _origin: OwnPage, policy: Policy, version: VersionInQuery
) -> Response:
    """What a revocation would do, in words and numbers; nothing is changed."""
    with request.app.state.database.snapshot() as connection:
        parents = stored_parents(request.app.state.store, policy, BASE, claimed_parents(connection, policy))
        plan = rejection.read_plan(connection, policy, version, parents=parents)
        effects = read_effects(connection, plan)
    return reply(
        {
            "live": plan.live,
            "version": version,
            "revokes": list(plan.revoked),
            "effects": effects._asdict(),
            "says": describe(plan, effects),
            "treatments": {name: describe_treatment(name, effects) for name in get_args(Treatment)},
        }
    )


@router.post("/api/revoke")
@takes(RevokeRequest)
def revoke(request: Request, session: OperatorWriter, policy: Policy, body: Body) -> Response:
    """Revoke a version that is not live, once a person has confirmed it."""
    wanted = read_json(RevokeRequest, body)
    database = request.app.state.database
    with database.snapshot() as connection:
        claimed = claimed_parents(connection, policy)
    parents = stored_parents(request.app.state.store, policy, BASE, claimed)
    with database.transaction() as connection:
        plan = rejection.revoke(
            connection,
            policy=policy,
            version=wanted.version,
            writer=session.name,
            reason=wanted.reason,
            treatment=wanted.treatment,
            parents=parents,
            seen_live=wanted.live,
        )
    request.app.state.bell.ring(MOVED)
    with database.snapshot() as connection:
        effects = read_effects(connection, plan)
    return reply({"live": plan.live, "revoked": list(plan.revoked), "says": describe(plan, effects)})
