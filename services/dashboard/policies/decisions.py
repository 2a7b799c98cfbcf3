"""An operator freezes, pins, resumes, sets the hold-out, withdraws the canary, or revokes a version. Transactions begin and end here."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeVar, get_args

import msgspec
from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import Connection

from contracts import holdout, holds, rejection
from contracts.assignments import MOVED
from contracts.errors import InvalidValue
from contracts.record_checks import MAX_INT32
from contracts.revocations import Treatment, claimed_parents
from contracts.rollback import RollbackPlan
from contracts.rollback_effects import describe, describe_treatment, read_effects
from contracts.version_history import BASE, stored_parents
from services.dashboard.signin.access import Body, OperatorReader, OperatorWriter, OwnPage, Policy
from services.dashboard.signin.repository import Session
from services.http import read_json, reply
from services.openapi import takes

router = APIRouter()
InBody = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT32)]
VersionInQuery = Annotated[int, Query(ge=0, le=MAX_INT32)]
Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=500, pattern=r"^[^\x00]*$")]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=holds.LONGEST_SECONDS)]
Share = Annotated[float, msgspec.Meta(gt=0, le=holdout.MAX_SHARE)]
_Done = TypeVar("_Done")


class FreezeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`seconds` None: until somebody resumes."""

    reason: Reason
    seconds: Seconds | None = None


class PinRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everybody gets `version` for so long; `live` is the version that the operator saw."""

    version: InBody
    live: InBody
    seconds: Seconds
    reason: Reason


class ResumeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ends the freeze or the pin."""

    reason: Reason


class HoldoutRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A share of the users stays on `version`; both None: nobody does any more."""

    reason: Reason
    version: InBody | None = None
    share: Share | None = None


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


@router.post("/api/freeze")
@takes(FreezeRequest)
def freeze(request: Request, session: OperatorWriter, policy: Policy, body: Body) -> Response:
    """Keep every arm as it is, once a person has confirmed it."""
    wanted, now = read_json(FreezeRequest, body), time.time()
    until = None if wanted.seconds is None else now + wanted.seconds
    who = by(session, policy, wanted.reason)
    return _held(decide(request, partial(holds.freeze, until=until, now=now, **who)))


@router.post("/api/pin")
@takes(PinRequest)
def pin(request: Request, session: OperatorWriter, policy: Policy, body: Body) -> Response:
    """Give everybody one version for a while, once a person has confirmed it."""
    wanted = read_json(PinRequest, body)
    request.app.state.store.manifest(policy, wanted.version)
    now = time.time()
    who, until = by(session, policy, wanted.reason), now + wanted.seconds
    act = partial(holds.pin, version=wanted.version, until=until, now=now, seen_live=wanted.live, **who)
    return _held(decide(request, act))


@router.post("/api/resume")
@takes(ResumeRequest)
def resume(request: Request, session: OperatorWriter, policy: Policy, body: Body) -> Response:
    """End the freeze or the pin; the arms move from where they are."""
    wanted = read_json(ResumeRequest, body)
    ended = decide(request, partial(holds.resume, **by(session, policy, wanted.reason)))
    return reply({"ended": ended.kind, "version": ended.version})


@router.post("/api/holdout")
@takes(HoldoutRequest)
def set_holdout(request: Request, session: OperatorWriter, policy: Policy, body: Body) -> Response:
    """Keep a share of the users on a version, or end that, once a person has confirmed it."""
    wanted = read_json(HoldoutRequest, body)
    if (wanted.version is None) != (wanted.share is None):
        raise InvalidValue("a hold-out has a version and a share; without both it ends", param="share")
    who = by(session, policy, wanted.reason)
    if wanted.version is None or wanted.share is None:
        arm = decide(request, partial(holdout.end_holdout, **who))
    else:
        request.app.state.store.manifest(policy, wanted.version)
        arm = decide(request, partial(holdout.set_holdout, version=wanted.version, share=wanted.share, **who))
    return reply({"version": arm.version, "share": arm.share})


@router.post("/api/withdraw")
@takes(WithdrawRequest)
def withdraw(request: Request, session: OperatorWriter, policy: Policy, body: Body) -> Response:
    """End the train of a version, once a person has confirmed it."""
    wanted = read_json(WithdrawRequest, body)
    left = decide(request, partial(rejection.withdraw, version=wanted.version, **by(session, policy, wanted.reason)))
    return reply({"withdrawn": wanted.version, "left": list(left)})


@router.get("/api/revoke")
def preview(
    request: Request, _session: OperatorReader, _origin: OwnPage, policy: Policy, version: VersionInQuery
) -> Response:
    """What a revocation would do, in words and numbers; nothing is changed."""
    plan, told = foresee(request, policy, partial(rejection.read_plan, policy=policy, version=version))
    return reply({"live": plan.live, "version": version, **told})


@router.post("/api/revoke")
@takes(RevokeRequest)
def revoke(request: Request, session: OperatorWriter, policy: Policy, body: Body) -> Response:
    """Revoke a version that is not live, once a person has confirmed it."""
    wanted = read_json(RevokeRequest, body)
    who = by(session, policy, wanted.reason) | {"treatment": wanted.treatment, "seen_live": wanted.live}
    plan, told = carry_out(request, policy, partial(rejection.revoke, version=wanted.version, **who))
    return reply({"live": plan.live, **told})


def by(session: Session, policy: str, reason: str) -> dict[str, Any]:
    """Who decides about which policy, and why, as the contracts name it."""
    return {"policy": policy, "writer": session.name, "reason": reason}


def decide(request: Request, act: Callable[[Connection], _Done]) -> _Done:
    """Act in one transaction, and tell every process that follows the arms."""
    with request.app.state.database.transaction() as connection:
        done = act(connection)
    request.app.state.bell.ring(MOVED)
    return done


def foresee(
    request: Request, policy: str, read_plan: Callable[..., RollbackPlan]
) -> tuple[RollbackPlan, dict[str, Any]]:
    """What `read_plan(connection, parents=...)` would do, in words and numbers."""
    with request.app.state.database.snapshot() as connection:
        parents = stored_parents(request.app.state.store, policy, BASE, claimed_parents(connection, policy))
        plan = read_plan(connection, parents=parents)
        effects = read_effects(connection, plan)
    told = {"revokes": list(plan.revoked), "effects": effects._asdict(), "says": describe(plan, effects)}
    return plan, told | {"treatments": {name: describe_treatment(name, effects) for name in get_args(Treatment)}}


def carry_out(request: Request, policy: str, act: Callable[..., RollbackPlan]) -> tuple[RollbackPlan, dict[str, Any]]:
    """Decide by `act(connection, parents=...)`, and say what was done."""
    database = request.app.state.database
    with database.snapshot() as connection:
        claimed = claimed_parents(connection, policy)
    plan = decide(request, partial(act, parents=stored_parents(request.app.state.store, policy, BASE, claimed)))
    with database.snapshot() as connection:
        effects = read_effects(connection, plan)
    return plan, {"revoked": list(plan.revoked), "says": describe(plan, effects)}


def _held(hold: holds.Hold) -> Response:
    return reply({"kind": hold.kind, "version": hold.version, "until": hold.until, "says": hold.words})
