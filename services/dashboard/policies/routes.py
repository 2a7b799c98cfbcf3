"""The Policies pages. The transaction ends here."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query, Request, Response

from contracts.errors import InvalidValue, NotFound, WeightsRefused
from contracts.record_checks import MAX_INT32, is_sample_key
from services.dashboard.policies.gates import read_gates
from services.dashboard.policies.queries import Key, count_learned, list_learned, newest_details, read_facts
from services.dashboard.signin.access import OperatorReader, PageRoute, render
from weights.stores.store import WeightStore
from weights.versions.manifest import Manifest

MAX_ANCESTORS = 24
router = APIRouter(prefix="/policies", route_class=PageRoute)

Number = Annotated[int, Path(ge=0, le=2**31 - 1)]


@router.get("")
def tree(request: Request, session: OperatorReader) -> Response:
    """All versions; the page follows the loop."""
    settings = request.app.state.settings
    with request.app.state.database.snapshot() as connection:
        newest = newest_details(connection, settings.policy)
    return render(request, "policies.html", session, gates=read_gates(settings, newest))


@router.get("/{version}")
def show(
    request: Request, session: OperatorReader, version: Number, after: Annotated[str, Query(max_length=200)] = ""
) -> Response:
    """One version and what it learned."""
    policy, store = request.app.state.settings.policy, request.app.state.store
    with request.app.state.database.snapshot() as connection:
        facts = read_facts(connection, policy, version)
        learned = count_learned(connection, version)
        samples, rest = list_learned(connection, version, _key(after))
    manifest, problem = _manifest(store, policy, version)
    if manifest is None and facts.verdict is None and not facts.moves:
        raise NotFound(f"policy {policy!r} has no version {version}: the Policies page lists them")
    return render(
        request,
        "version.html",
        session,
        version=version,
        manifest=manifest,
        problem=problem,
        ancestors=_ancestors(store, manifest),
        facts=facts,
        learned=learned,
        samples=samples,
        older=f"?{urlencode({'after': f'{rest[0]}_{rest[1]}'})}" if rest else None,
        newest=f"/policies/{version}" if after else None,
    )


def _manifest(store: WeightStore, policy: str, version: int) -> tuple[Manifest | None, str]:
    try:
        return store.manifest(policy, version), ""
    except (NotFound, WeightsRefused) as error:
        return None, error.message


def _ancestors(store: WeightStore, manifest: Manifest | None) -> list[int]:
    """Parents up to the base, nearest first, or the first `MAX_ANCESTORS` of them."""
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
