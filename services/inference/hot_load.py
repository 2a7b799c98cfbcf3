"""The hosted hot-load contract: a trainer says which version to serve, then polls until every replica serves it.

    POST /hot_load/v1/models/hot_load    {"identity": "v7", "incremental_snapshot_metadata": {...}}, answered at once
    GET  the same path                   {"identity": "v7", "replicas": [{"readiness": true, ...}]}

The shapes are those of Fireworks (docs.fireworks.ai/fine-tuning/rl-rollout-integration, "Hot-load API"). A replica has caught
up when `readiness` is true and `current_snapshot_identity` is the requested identity; its Python SDK also reads
`loading_state.stage`. `arc_v2` and `alder32` are spelled like this there.

In: an operator's request. Out: the arm `live`, moved; to a lower version that is a rollback, as by `millrace policy rollback`. Waits
for: the weight store's list and the database; never for the engine, which follows on its own, and verifies the bytes when it loads them.
So the formats named in a request change nothing; they are checked so that a request for another format fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from contracts import rollback
from contracts.assignments import LIVE, MOVED, read
from contracts.errors import Conflict, InvalidRequest, NotFound, Unavailable, Unsupported, field_error
from contracts.keys import Caller
from contracts.revocations import claimed_parents
from runtime.database import Database
from runtime.replicas import Bell
from services.inference.arms import Assignments
from services.inference.engine.pool import EnginePool
from services.inference.engine.state import Health
from services.inference.terms import NUMBER

COMPRESSIONS = ("millrace", "arc_v2")
CHECKSUMS = ("blake3", "alder32", "adler32")
_PREVIOUS = "incremental_snapshot_metadata.previous_snapshot_identity"


class IncrementalSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The version that this one is a delta of, and the formats of its files."""

    previous_snapshot_identity: str
    compression_format: str | None = None
    checksum_format: str | None = None


class HotLoadRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a POST. Our prompt cache never crosses versions, so any value of `reset_prompt_cache` is honoured."""

    identity: str
    incremental_snapshot_metadata: IncrementalSnapshot | None = None
    reset_prompt_cache: bool | Literal["all", "none", "new_session"] | None = None


HOT_LOAD_NOTES = {
    "identity": "The version, for example `v7`.",
    "incremental_snapshot_metadata": "The version that this one is a delta of; its formats are checked and change nothing.",
    "reset_prompt_cache": "Our prompt cache never crosses versions, so any value is honoured.",
}


@dataclass(frozen=True, kw_only=True)
class HotLoad:
    """Moves the arm `live`, and says how far the engines have followed."""

    policy: str
    database: Database
    list_versions: Callable[[], Collection[int]]
    """The durable versions of the policy; called on a thread."""
    read_parents: Callable[[Mapping[int, int]], Mapping[int, int]]
    """Adds the parents that manifests name to those that are known; called on a thread, and only for a rollback."""
    bell: Bell
    assignments: Assignments
    engine: EnginePool

    def point(self, signal: HotLoadRequest, caller: Caller) -> dict[str, Any]:
        """Point `live` at the requested version; nothing happens if it is live already. A lower version is rolled back to.

        Raises InvalidRequest, Unsupported: an identity or format of another form; NotFound: there is no such version, or nothing is live;
        Conflict: another version is live than the request names; and what `rollback.roll_back` and `rollback.promote` raise.
        """
        version, previous = version_of(signal.identity, "identity"), _previous_version(signal)
        versions = self.list_versions()
        if version not in versions:
            held = ", ".join(f"v{number}" for number in sorted(versions)) or "no versions"
            raise NotFound(f"policy {self.policy!r} has no v{version}; it has {held}", param="identity")
        with self.database.snapshot() as connection:
            arm, claimed = read(connection, self.policy).get(LIVE), claimed_parents(connection, self.policy)
        live = None if arm is None else arm.version
        if live is None:
            raise NotFound("nothing is live yet; start with: millrace up")
        told: dict[str, Any] = {"accepted": True, "identity": signal.identity, "already_current": live == version}
        if live == version:
            return told
        if previous not in (None, live):
            raise Conflict(f"v{live} is live, not v{previous}; see the live version with GET", param=_PREVIOUS)
        parents = self.read_parents(claimed) if version < live else {}
        move: dict[str, Any] = {"policy": self.policy, "to": version, "writer": caller.key_id, "reason": "hot_load"}
        with self.database.transaction() as connection:
            if version < live:
                plan = rollback.roll_back(connection, parents=parents, seen_live=live, **move)
                told["revoked"] = [identity_of(number) for number in plan.revoked]
            else:
                rollback.promote(connection, seen_live=live, **move)
        self.bell.ring(MOVED)
        return told

    async def state(self) -> dict[str, Any]:
        """The version that `live` is pointed at, and the state of each engine replica."""
        live = (await self.assignments.held()).get(LIVE)
        try:
            healths = await self.engine.healths()
            replicas = [describe(health, live.version if live else None) for health in healths]
        except Unavailable as error:
            replicas = [_replica(None, "pending", error.message, ready=False)]
        return {"identity": identity_of(live.version if live else None), "replicas": replicas}


def version_of(identity: str, param: str) -> int:
    """N of `vN`. Raises InvalidRequest: another form; the identity of a GET has to be equal to the one of the POST."""
    if found := re.fullmatch(f"v({NUMBER})", identity):
        return int(found[1])
    raise InvalidRequest(f'an identity is the name of a version, "v7", not {identity[:64]!r}', param=param)


def identity_of(version: int | None) -> str | None:
    """The name of a version."""
    return None if version is None else f"v{version}"


def describe(health: Health, wanted: int | None) -> dict[str, Any]:
    """An engine as a replica: `ready` if it holds the wanted version, `error` if it refused it and serves the old one."""
    held = health.versions.get(LIVE)
    if health.status != "serving":
        stage = "error" if health.status == "failed" else "loading"
        return _replica(held, stage, f"the engine is {health.status}", ready=False)
    if held == wanted:
        return _replica(held, "ready", None, ready=True)
    # The engine may not know of the last move yet: its problem with another version says nothing about this one.
    problems = [problem for problem in health.problems.values() if problem.version in (None, wanted)]
    stage = "error" if any(problem.code != Unavailable.code for problem in problems) else "loading"
    return _replica(held, stage, "; ".join(problem.message for problem in problems) or None, ready=True)


def _replica(held: int | None, stage: str, reason: str | None, *, ready: bool) -> dict[str, Any]:
    return {
        "readiness": ready,
        "readiness_reason": reason,
        "current_snapshot_identity": identity_of(held),
        "loading_state": {"stage": stage},
    }


def _previous_version(signal: HotLoadRequest) -> int | None:
    snapshot = signal.incremental_snapshot_metadata
    if snapshot is None:
        return None
    for name, known in (("compression_format", COMPRESSIONS), ("checksum_format", CHECKSUMS)):
        value = getattr(snapshot, name)
        if value is not None and value not in known:
            why = f"is one of {', '.join(known)}, not {value!r}"
            raise field_error(f"incremental_snapshot_metadata.{name}", why, Unsupported)
    return version_of(snapshot.previous_snapshot_identity, _PREVIOUS)
