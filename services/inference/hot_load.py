"""The hosted hot-load contract: a trainer says which version to serve, then asks until every replica does.

    POST /hot_load/v1/models/hot_load    {"identity": "v7", "incremental_snapshot_metadata": {...}}, answered at once
    GET  the same path                   {"identity": "v7", "replicas": [{"readiness": true, ...}]}

The shapes are those of Fireworks (docs.fireworks.ai/fine-tuning/rl-rollout-integration, "Hot-load API"): a replica has caught
up when `readiness` is true and `current_snapshot_identity` is the identity that was signalled; `loading_state.stage` is what
its Python SDK reads beside them. `arc_v2` and `alder32` are spelled as there.

Flows in: an operator's signal. Flows out: the arm `live`, moved. Waits for: the weight store's list and the database; never
for the engine, which follows. The bytes are in the weight store before the signal and are verified by whoever loads them, so
the formats named here change nothing: they are checked so that nobody expects us to read another. The trainer of this
home takes no notice: going back in training too is `millrace policy rollback`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, Literal

import msgspec

from contracts.assignments import LIVE, MOVED, move, read
from contracts.errors import Conflict, InvalidRequest, NotFound, Unavailable, Unsupported
from contracts.keys import Caller
from runtime.database import Database
from runtime.replicas import Bell
from services.inference.arms import Assignments
from services.inference.engine.client import EngineClient
from services.inference.engine.wire import Health

COMPRESSIONS = ("millrace", "arc_v2")
CHECKSUMS = ("blake3", "alder32", "adler32")
_PREVIOUS = "incremental_snapshot_metadata.previous_snapshot_identity"


class IncrementalSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the version is a change of, and how its files are written."""

    previous_snapshot_identity: str
    compression_format: str | None = None
    checksum_format: str | None = None


class HotLoadRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a POST. The prompt cache never crosses versions here, so every policy of resetting it is kept to."""

    identity: str
    incremental_snapshot_metadata: IncrementalSnapshot | None = None
    reset_prompt_cache: bool | Literal["all", "none", "new_session"] | None = None


class HotLoad:
    """Moves `live`, and says how far the engine has followed.

    Args:
        list_versions: the durable versions of the policy; called on a thread.
    """

    def __init__(
        self,
        *,
        policy: str,
        database: Database,
        list_versions: Callable[[], Collection[int]],
        bell: Bell,
        assignments: Assignments,
        engine: EngineClient,
    ) -> None:
        self._policy = policy
        self._database = database
        self._list_versions = list_versions
        self._bell = bell
        self._assignments = assignments
        self._engine = engine

    def point(self, signal: HotLoadRequest, caller: Caller) -> dict[str, Any]:
        """Point `live` at the version signalled; to one that is live already, nothing is done.

        Raises:
            InvalidRequest: an identity that is not `vN`.
            Unsupported: a format that is not ours.
            NotFound: no such version, or nothing is live yet.
            Conflict: what is live is not the previous version named.
            StaleWrite: somebody else moved it in this moment.
        """
        version, previous = version_of(signal.identity, "identity"), _previous_version(signal)
        versions = self._list_versions()
        if version not in versions:
            held = ", ".join(f"v{number}" for number in sorted(versions))
            raise NotFound(f"policy {self._policy!r} has no v{version}; it has {held or 'none'}", param="identity")
        with self._database.transaction() as connection:
            live = read(connection, self._policy).get(LIVE)
            if live is None or live.version is None:
                raise NotFound("nothing is live yet; start with: millrace up")
            if live.version != version:
                if previous not in (None, live.version):
                    raise Conflict(f"v{live.version} is live, not v{previous}; look again with GET", param=_PREVIOUS)
                move(
                    connection,
                    policy=self._policy,
                    arm=LIVE,
                    version=version,
                    expected_epoch=live.epoch,
                    writer=caller.key_id,
                    reason="hot_load",
                    share=1.0,
                )
        self._bell.ring(MOVED)
        return {"accepted": True, "identity": signal.identity, "already_current": live.version == version}

    async def state(self) -> dict[str, Any]:
        """What `live` is pointed at, and the one engine that this process reaches."""
        live = (await self._assignments.held()).get(LIVE)
        try:
            replica = describe(await self._engine.health(), live.version if live else None)
        except Unavailable as error:
            replica = _replica(None, "pending", error.message, ready=False)
        return {"identity": identity_of(live.version if live else None), "replicas": [replica]}


def version_of(identity: str, param: str) -> int:
    """N of `vN`.

    Raises:
        InvalidRequest: anything else; what is answered by GET has to be equal to what was signalled.
    """
    if found := re.fullmatch("v(0|[1-9][0-9]{0,17})", identity):
        return int(found[1])
    raise InvalidRequest(f'an identity is the name of a version, "v7", not {identity!r}', param=param)


def identity_of(version: int | None) -> str | None:
    """The name of a version."""
    return None if version is None else f"v{version}"


def describe(health: Health, wanted: int | None) -> dict[str, Any]:
    """An engine as a replica: `ready` once it holds what is wanted, `error` if it was refused; the old version serves on."""
    held = health.versions.get(LIVE)
    if health.status != "serving":
        stage = "error" if health.status == "failed" else "loading"
        return _replica(held, stage, f"the engine is {health.status}", ready=False)
    if held == wanted:
        return _replica(held, "ready", None, ready=True)
    # The engine may not have heard of the last move yet: its trouble with another version is none with this one.
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
            param = f"incremental_snapshot_metadata.{name}"
            raise Unsupported(f"{param} is one of {', '.join(known)}, not {value!r}", param=param)
    return version_of(snapshot.previous_snapshot_identity, _PREVIOUS)
