"""An operator freezes the arms, pins a version, resumes, or sets the hold-out. Transactions begin and end here."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
from fastapi import APIRouter, Request, Response

from contracts import holdout, holds
from contracts.assignments import MOVED
from contracts.errors import InvalidValue
from services.dashboard.policies.bodies import InBody, Reason
from services.dashboard.signin.access import Body, OperatorWriter, Policy
from services.http import read_json, reply
from services.openapi import takes

router = APIRouter()
Seconds = Annotated[float, msgspec.Meta(gt=0, le=holds.LONGEST_SECONDS)]
Share = Annotated[float, msgspec.Meta(gt=0, le=holdout.MAX_SHARE)]


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


@router.post("/api/freeze")
@takes(FreezeRequest)
def freeze(request: Request, session: OperatorWriter, policy: Policy, body: Body) -> Response:
    """Keep every arm as it is, once a person has confirmed it."""
    wanted = read_json(FreezeRequest, body)
    now = time.time()
    until = None if wanted.seconds is None else now + wanted.seconds
    with request.app.state.database.transaction() as connection:
        hold = holds.freeze(connection, policy=policy, until=until, writer=session.name, reason=wanted.reason, now=now)
    return _told(request, hold)


@router.post("/api/pin")
@takes(PinRequest)
def pin(request: Request, session: OperatorWriter, policy: Policy, body: Body) -> Response:
    """Give everybody one version for a while, once a person has confirmed it."""
    wanted = read_json(PinRequest, body)
    request.app.state.store.manifest(policy, wanted.version)
    now = time.time()
    with request.app.state.database.transaction() as connection:
        hold = holds.pin(
            connection,
            policy=policy,
            version=wanted.version,
            until=now + wanted.seconds,
            writer=session.name,
            reason=wanted.reason,
            now=now,
            seen_live=wanted.live,
        )
    return _told(request, hold)


@router.post("/api/resume")
@takes(ResumeRequest)
def resume(request: Request, session: OperatorWriter, policy: Policy, body: Body) -> Response:
    """End the freeze or the pin; the arms move from where they are."""
    wanted = read_json(ResumeRequest, body)
    with request.app.state.database.transaction() as connection:
        ended = holds.resume(connection, policy=policy, writer=session.name, reason=wanted.reason)
    request.app.state.bell.ring(MOVED)
    return reply({"ended": ended.kind, "version": ended.version})


@router.post("/api/holdout")
@takes(HoldoutRequest)
def set_holdout(request: Request, session: OperatorWriter, policy: Policy, body: Body) -> Response:
    """Keep a share of the users on a version, or end that, once a person has confirmed it."""
    wanted = read_json(HoldoutRequest, body)
    if (wanted.version is None) != (wanted.share is None):
        raise InvalidValue("a hold-out has a version and a share; without both it ends", param="share")
    with request.app.state.database.transaction() as connection:
        if wanted.version is None or wanted.share is None:
            arm = holdout.end_holdout(connection, policy=policy, writer=session.name, reason=wanted.reason)
        else:
            request.app.state.store.manifest(policy, wanted.version)
            arm = holdout.set_holdout(
                connection,
                policy=policy,
                version=wanted.version,
                share=wanted.share,
                writer=session.name,
                reason=wanted.reason,
            )
    request.app.state.bell.ring(MOVED)
    return reply({"version": arm.version, "share": arm.share})


def _told(request: Request, hold: holds.Hold) -> Response:
    request.app.state.bell.ring(MOVED)
    return reply({"kind": hold.kind, "version": hold.version, "until": hold.until, "says": hold.words})
