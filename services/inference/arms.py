"""Which arm answers: the assignments, read again every 0.2 seconds, and a draw that is sticky within a session."""

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

PINNED = "pinned"
_READ_SECONDS = 0.2
_log = structlog.get_logger(__name__)


class ChosenArm(NamedTuple):
    """Who answers one request, and with which probability it was chosen."""

    name: str
    probability: float
    model: str
    """What the engine is asked for: the policy (whatever is live by then) or one version of it."""


def pinned_version(model: str, policy: str) -> int | None:
    """The version that a request's `model` names: N for `POLICY@vN`, None for `POLICY`.

    Raises:
        UnknownModel: neither of the two.
    """
    if model == policy:
        return None
    if found := re.fullmatch(rf"{re.escape(policy)}@v(0|[1-9][0-9]{{0,17}})", model):
        return int(found[1])
    raise UnknownModel(
        f"the model {model!r} does not exist; ask for {policy!r} or one version of it, {policy + '@v3'!r}",
        param="model",
    )


def choose_arm(
    assignments: Mapping[str, Assignment], policy: str, version: int | None, draw: float, minimum: int | None = None
) -> ChosenArm:
    """The arm of a request: the one that holds its version, else drawn by share; `draw` lies in [0, 1).

    Who asks for a minimum takes no part in the draw: live, unless only the candidate is known to be new enough.
    """
    if version is not None:
        holders = [name for name, arm in assignments.items() if arm.version == version and name in (LIVE, CANDIDATE)]
        return ChosenArm(LIVE if LIVE in holders else holders[0] if holders else PINNED, 1.0, f"{policy}@v{version}")
    candidate = assignments.get(CANDIDATE)
    if minimum is not None:
        held = {name: arm.version for name, arm in assignments.items() if arm.version is not None}
        if held.get(LIVE, minimum) < minimum <= held.get(CANDIDATE, -1):
            return ChosenArm(CANDIDATE, 1.0, f"{policy}@v{held[CANDIDATE]}")
        return ChosenArm(LIVE, 1.0, policy)
    share = candidate.share if candidate and candidate.version is not None else 0.0
    if candidate and draw < share:
        return ChosenArm(CANDIDATE, share, f"{policy}@v{candidate.version}")
    return ChosenArm(LIVE, 1.0 - share, policy)


def draw_of(session_id: str | None) -> float:
    """Uniform in [0, 1): always the same for one session, else random."""
    if session_id is None:
        return random.random()  # noqa: S311 a share of traffic is no secret
    digest = hashlib.blake2b(session_id.encode(), digest_size=6, person=b"arm").digest()
    return int.from_bytes(digest) / 2**48


class Assignments:
    """The assignments of one policy, at most 0.2 seconds old while the database can be read."""

    def __init__(self, database: Database, policy: str) -> None:
        self._database = database
        self._policy = policy
        self._held: dict[str, Assignment] = {}
        self._read_at = float("-inf")

    async def held(self) -> Mapping[str, Assignment]:
        """All arms by name. While the database cannot be read, the last known ones: users do not wait for it."""
        if time.monotonic() - self._read_at > _READ_SECONDS:
            self._read_at = time.monotonic()
            try:
                self._held = await asyncio.to_thread(self._read)
            except Unavailable as error:
                _log.warning("assignments not read", reason=error.message)
        return self._held

    def look_again(self) -> None:
        """Somebody moved an arm: the next request reads. Callable from any thread."""
        self._read_at = float("-inf")

    def _read(self) -> dict[str, Assignment]:
        with self._database.snapshot() as connection:
            return read(connection, self._policy)
