"""The Policies pages, and two decisions of an operator: back to an accepted version, or on to a published one.

Transactions begin and end here.
"""

from __future__ import annotations

from typing import Annotated, Any, get_args
from urllib.parse import urlencode

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response

from contracts import rollback
from contracts.assignments import MOVED
from contracts.errors import InvalidValue, NotFound, WeightsRefused
from contracts.record_checks import MAX_INT32, is_sample_key
from contracts.revocations import Treatment, claimed_parents
from contracts.rollback_effects import describe, describe_treatment, read_effects
from contracts.version_history import BASE, stored_parents
from services.dashboard.live.acceptance import num_sentinels
from services.dashboard.policies import holds, rejecting
from services.dashboard.policies.bodies import InBody, Reason
from services.dashboard.policies.gates import read_gates
from services.dashboard.policies.queries import Key, count_learned, list_learned, newest_details, read_facts
from services.dashboard.signin.access import Body, OperatorReader, OperatorWriter, OwnPage, Policy
from services.dashboard.signin.pages import PageRoute, render
from services.http import read_json, reply
from services.openapi import takes
from weights.stores.store import WeightStore
from weights.versions.manifest import Manifest

MAX_ANCESTORS = 24
router = APIRouter()
pages = APIRouter(prefix="/policies", route_class=PageRoute)

InPath = Annotated[int, Path(ge=0, le=MAX_INT32)]
InQuery = Annotated[int | None, Query(ge=0, le=MAX_INT32)]


class RollbackRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`live` is the version that the operator saw: if it moved meanwhile, nothing is done. `to` None: the last accepted version.

    `revoke` None: all versions between. `treatment`: see `contracts/revocations.py`.
    """

    live: InBody
    reason: Reason
    to: InBody | None = None
    treatment: Treatment = "evidence"
    revoke: frozenset[InBody] | None = None


class PromoteRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`to` is published: above `live`, an operator may overrule the gate's verdict on it; below, this is a rollback."""

    live: InBody
    reason: Reason
    to: InBody


@pages.get("")
def tree(request: Request, session: OperatorReader, policy: Policy) -> Response:
    """All versions, as the stream of states reports them."""
    settings = request.app.state.settings
    with request.app.state.database.snapshot() as connection:
        newest = newest_details(connection, policy)
    return render(request, "policies.html", session, gates=read_gates(settings.tasks, settings.home, newest))


@pages.get("/{version}")
def show(
    request: Request,
    session: OperatorReader,
    policy: Policy,
    version: InPath,
    after: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """One version and the samples that it learned."""
    with request.app.state.database.snapshot() as connection:
        facts = read_facts(connection, policy, version)
        learned = count_learned(connection, version)
        samples, rest = list_learned(connection, version, _key(after))
    manifest, problem = _manifest(request.app.state.store, policy, version)
    if manifest is None and facts.verdict is None and not facts.moves:
        raise NotFound(f"policy {policy!r} has no version {version}: the Policies page lists them")
    return render(
        request,
        "version.html",
        session,
        version=version,
        manifest=manifest,
        problem=problem,
        ancestors=_ancestors(request.app.state.store, manifest),
        facts=facts,
        num_sentinels=num_sentinels(facts.verdict.details) if facts.verdict else 0,
        learned=learned,
        samples=samples,
        older=f"?{urlencode({'after': f'{rest[0]}_{rest[1]}'})}" if rest else None,
        newest=f"/policies/{version}" if after else None,
    )


@router.get("/api/rollback")
def preview(
    request: Request, _session: OperatorReader, _origin: OwnPage, policy: Policy, to: InQuery = None
) -> Response:
    """What a rollback would do, in words and numbers; nothing is changed."""
    with request.app.state.database.snapshot() as connection:
        parents = stored_parents(request.app.state.store, policy, BASE, claimed_parents(connection, policy))
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
def roll_back(request: Request, session: OperatorWriter, policy: Policy, body: Body) -> Response:
    """Go back to an accepted version, once a person has confirmed it."""
    wanted = read_json(RollbackRequest, body)
    return _roll_back(
        request,
        policy=policy,
        writer=session.name,
        reason=wanted.reason,
        to=wanted.to,
        treatment=wanted.treatment,
        revoke=wanted.revoke,
        seen_live=wanted.live,
    )


@router.post("/api/promote")
@takes(PromoteRequest)
def promote(request: Request, session: OperatorWriter, policy: Policy, body: Body) -> Response:
    """Serve a published version, once a person has confirmed it. A version below the live one is gone back to, as by a rollback."""
    wanted = read_json(PromoteRequest, body)
    request.app.state.store.manifest(policy, wanted.to)
    if wanted.to < wanted.live:
        return _roll_back(
            request, policy=policy, to=wanted.to, writer=session.name, reason=wanted.reason, seen_live=wanted.live
        )
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
    return reply({"live": wanted.to, "revoked": [], "says": [f"Users get v{wanted.to} instead of v{wanted.live}."]})


router.include_router(pages)
router.include_router(holds.router)
router.include_router(rejecting.router)


def _roll_back(request: Request, *, policy: str, **decision: Any) -> Response:
    """Roll back, and say what was done. `decision`: the other arguments of `rollback.roll_back`."""
    database, store = request.app.state.database, request.app.state.store
    with database.snapshot() as connection:
        claimed = claimed_parents(connection, policy)
    parents = stored_parents(store, policy, BASE, claimed)
    with database.transaction() as connection:
        plan = rollback.roll_back(connection, policy=policy, parents=parents, **decision)
    request.app.state.bell.ring(MOVED)
    with database.snapshot() as connection:
        effects = read_effects(connection, plan)
    return reply({"live": plan.target, "revoked": list(plan.revoked), "says": describe(plan, effects)})


def _manifest(store: WeightStore, policy: str, version: int) -> tuple[Manifest | None, str]:
    """The manifest, or None and the reason why it cannot be read."""
    try:
        return store.manifest(policy, version), ""
    except (NotFound, WeightsRefused) as error:
        return None, error.message


def _ancestors(store: WeightStore, manifest: Manifest | None) -> list[int]:
    """Parents up to the base, nearest first; at most `MAX_ANCESTORS`."""
    found: list[int] = []
    while manifest is not None and manifest.parent is not None and len(found) < MAX_ANCESTORS:
        found.append(manifest.parent)
        manifest, _ = _manifest(store, manifest.policy, manifest.parent)
    return found


def _key(text: str) -> Key | None:
    if not text:
        return None
    completion_id, _, choice = text.rpartition("_")
    if not (is_sample_key(f"{completion_id}:{choice}") and int(choice) <= MAX_INT32):
        raise InvalidValue("this page's address is damaged; begin with the newest samples", param="after")
    return completion_id, int(choice)
