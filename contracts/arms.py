"""The arms of a policy that answer users, and the draw that gives each person one of them.

The draws are nested: hold-out, learning arm (both keep their people), canary (other people for each train), a provider in front, and
`live` for everybody else. While a provider has a share the learning arm gets nobody: what it holds is not proven, and the others would
have the provider's answers. So the probabilities of one unit add up to 1. The *unit* is a person if the app names one, else a session, else an
answer. A unit keeps its arm as long as the shares stay, and a growing share only adds units.

Clients choose the names of units. So the draw is keyed with a secret of the home, which a migration makes, once, in the database: every
gateway and release must draw alike. It is never logged, shown or sent: nobody computes beforehand which name gets which arm. Who tries
names still sees it in the answers: `pipelines/release/train/parties.py` bounds what that gains.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import NamedTuple

from sqlalchemy import Connection, select

from contracts.assignments import CANARY, HOLDOUT, LEARNING, LIVE, PROVIDER, Assignment
from contracts.draws import DrawnVersion, LoggedDraw, UnitKind, hash_of
from contracts.errors import InvalidSettings
from contracts.tables import home_secret

DRAWN = (HOLDOUT, LEARNING, CANARY, PROVIDER)
"""Arms with a share, in the order of their draws."""
_ROW = "arms"
_NUM_BYTES = 8


class Unit(NamedTuple):
    """What an arm is drawn for. `name` contains the tenant: equal names of two tenants are two units."""

    kind: UnitKind
    name: str


class Draw(NamedTuple):
    """An arm, and the probability with which the draw gives it to any unit."""

    arm: str
    probability: float


def unit_of(wanted: UnitKind, *, tenant: str, person: str | None, session_id: str | None, completion_id: str) -> Unit:
    """The unit of an answer: the wanted kind if the request has it, else the next smaller one."""
    if wanted == "user" and person is not None:
        return Unit("user", f"{tenant}/{person}")
    if wanted != "answer" and session_id is not None:
        return Unit("session", f"{tenant}/{session_id}")
    return Unit("answer", completion_id)


def draw_arm(arms: Mapping[str, Assignment], unit: str, secret: bytes, served: Collection[str] = DRAWN) -> Draw:
    """The arm of a unit. `secret`: of the home; `served`: arms that some engine has a slot for; nothing is drawn for the others."""
    rest = 1.0
    for name, arm in _with_share(arms, served).items():
        if position_of(unit, salt_of(arm), secret) < arm.share:
            return Draw(name, rest * arm.share)
        rest *= 1.0 - arm.share
    return Draw(LIVE, rest)


def logged_draw(
    arms: Mapping[str, Assignment], drawn: str, unit: Unit, served: Collection[str] = DRAWN, *, api_key: str = ""
) -> LoggedDraw | None:
    """What the log keeps of a draw whose arm was `drawn`; None if there was no version to draw. `api_key`: the id of the caller's."""
    drawable = _with_share(arms, served).items()
    found = {name: DrawnVersion(arm.version or 0, arm.share) for name, arm in drawable if name != PROVIDER}
    if not found:
        return None
    held = arms.get(drawn)
    version = -1 if held is None or held.version is None else held.version
    learning, live = found.get(LEARNING), arms.get(LIVE)
    if learning is not None and live is not None and learning.version == live.version:
        learning = None
    return LoggedDraw(
        hash_of(unit.name), unit.kind, version, found.get(CANARY), found.get(HOLDOUT), learning, api_key=api_key
    )


def _with_share(arms: Mapping[str, Assignment], served: Collection[str]) -> dict[str, Assignment]:
    found = {name: arms[name] for name in DRAWN if name in arms and name in served and has_share(arms[name])}
    if PROVIDER in found:
        found.pop(LEARNING, None)
    return found


def has_share(arm: Assignment) -> bool:
    """Whether a draw can give it."""
    return arm.share > 0.0 and (arm.version is not None or arm.arm == PROVIDER)


def shares_of(arms: Mapping[str, Assignment]) -> dict[str, float]:
    """The share of the users that each arm gets by the nested draws: `live` gets who is left."""
    rest, shares = 1.0, {}
    for name, arm in _with_share(arms, DRAWN).items():
        shares[name] = rest * arm.share
        rest -= shares[name]
    return shares | {LIVE: rest}


def salt_of(arm: Assignment) -> str:
    """Hold-out, learning arm and provider keep their people; each canary draws anew."""
    return f"canary v{arm.version}" if arm.arm == CANARY else arm.arm


def position_of(unit: str, salt: str, secret: bytes) -> float:
    """A number in [0, 1) that depends on all three, uniform over units and independent between salts. `secret`: 64 bytes at most."""
    digest = hashlib.blake2b(f"{salt}\0{unit}".encode(), digest_size=_NUM_BYTES, person=b"arm", key=secret).digest()
    # 53 bits fit a float exactly, so the number stays below 1.
    return (int.from_bytes(digest) >> 11) / 2.0**53


def is_control(unit: str, version: int, canary_share: float, ratio: float, secret: bytes) -> bool:
    """Whether a unit of `live` is compared with the canary: a sample with `ratio` times as many units. Answers never show it."""
    return position_of(unit, f"control v{version}", secret) < control_fraction(canary_share, ratio)


def control_fraction(canary_share: float, ratio: float) -> float:
    """The part of the units of `live` that are compared with the canary."""
    return min(1.0, ratio * canary_share / (1.0 - canary_share)) if canary_share < 1.0 else 1.0


def read_arm_secret(connection: Connection) -> bytes:
    """The secret of this home: 32 random bytes. Raises InvalidSettings: it was deleted, or is no number."""
    found = connection.execute(select(home_secret.c.value).where(home_secret.c.name == _ROW)).scalar_one_or_none()
    if found is None:
        raise InvalidSettings(
            f"the table home_secret has no row {_ROW!r}, so no arm can be drawn: restore it from a backup, or insert 64 random hex "
            "digits (`openssl rand -hex 32`), which draws every arm anew"
        )
    try:
        return bytes.fromhex(found)
    except ValueError as error:
        raise InvalidSettings(f"the row {_ROW!r} of the table home_secret is no 64 hex digits: write such") from error
