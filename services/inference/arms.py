"""Which arm answers a request: assignments, read again every 0.2 seconds, and a random draw that is fixed for a session."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import time
from collections.abc import Mapping
from typing import NamedTuple

import structlog

from contracts.assignments import CANDIDATE, LIVE, Assignment, read
from contracts.errors import Unavailable, UnknownModel
from runtime.database import Database
from services.inference.versions import NUMBER

PINNED = "pinned"
_READ_SECONDS = 0.2
_log = structlog.get_logger(__name__)


class ChosenArm(NamedTuple):
    """The arm that answers one request, and the probability with which it was chosen."""

    name: str
    probability: float
    model: str
    """The model of the request to the engine: the policy (its live version by then) or one version of it."""


def pinned_version(model: str, policy: str) -> int | None:
    """The version that a request's `model` names: N for `POLICY@vN`, None for `POLICY`.

    Raises:
        UnknownModel: it has neither form.
    """
    if model == policy:
        return None
    if found := re.fullmatch(f"{re.escape(policy)}@v({NUMBER})", model):
        return int(found[1])
    raise UnknownModel(
        f"the model {model!r} does not exist; ask for {policy!r} or one version of it, {policy + '@v3'!r}",
        param="model",
    )


def choose_arm(
    assignments: Mapping[str, Assignment],
    policy: str,
    version: int | None,
    draw: float,
    minimum: int | None = None,
    *,
    has_candidate: bool = True,
) -> ChosenArm:
    """The arm of a request: the one that holds its version, else drawn by share; `draw` lies in [0, 1).

    A request with a minimum version is not drawn: it goes to live, unless only the candidate is known to be new enough. Nothing is
    drawn for a candidate that no engine has a slot for (`has_candidate` False).
    """
    if version is not None:
        holders = [name for name, arm in assignments.items() if arm.version == version and name in (LIVE, CANDIDATE)]
        return ChosenArm(LIVE if LIVE in holders else holders[0] if holders else PINNED, 1.0, f"{policy}@v{version}")
    candidate = assignments.get(CANDIDATE) if has_candidate else None
    if minimum is not None:
        held = {name: arm.version for name, arm in assignments.items() if arm.version is not None}
        if has_candidate and held.get(LIVE, minimum) < minimum <= held.get(CANDIDATE, -1):
            return ChosenArm(CANDIDATE, 1.0, f"{policy}@v{held[CANDIDATE]}")
        return ChosenArm(LIVE, 1.0, policy)
    share = candidate.share if candidate and candidate.version is not None else 0.0
    if candidate and draw < share:
        return ChosenArm(CANDIDATE, share, f"{policy}@v{candidate.version}")
    return ChosenArm(LIVE, 1.0 - share, policy)


def draw_of(session_id: str | None) -> float:
    """A number in [0, 1): the same for all requests of a session, random without a session."""
    if session_id is None:
        return random.random()  # noqa: S311 shares of traffic need no secret
    digest = hashlib.blake2b(session_id.encode(), digest_size=6, person=b"arm").digest()
    return int.from_bytes(digest) / 2**48


class Assignments:
    """The assignments of one policy, at most 0.2 seconds old while the database is reachable."""

    def __init__(self, database: Database, policy: str) -> None:
        self._database = database
        self._policy = policy
        self._held: dict[str, Assignment] = {}
        self._read_at = float("-inf")

    async def held(self) -> Mapping[str, Assignment]:
        """All arms by name. While the database is unreachable, the last known ones: users do not wait for it."""
        if time.monotonic() - self._read_at > _READ_SECONDS:
            self._read_at = time.monotonic()
            try:
                self._held = await asyncio.to_thread(self._read)
            except Unavailable as error:
                _log.warning("assignments not read", reason=error.message)
        return self._held

    def look_again(self) -> None:
        """An arm was moved: the next request reads again. Callable from any thread."""
        self._read_at = float("-inf")

    def _read(self) -> dict[str, Assignment]:
        with self._database.snapshot() as connection:
            return read(connection, self._policy)
