"""The engine replicas of a home, as `doctor` reports them. In: their rows, and what each answers. Out: findings by replica."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping

import httpx

from commands.findings import Finding
from contracts import assignments
from contracts.assignments import CANARY, HOLDOUT, LEARNING
from contracts.engines import EngineReplica, read_replicas
from contracts.errors import InvalidSettings, Unavailable
from engines.fitting import misfit
from engines.registry import OWN, why_gone
from runtime.base_policy import fingerprint
from runtime.engine_key import ENGINE_KEY, authorization, engine_key
from runtime.settings import Settings, load_section
from runtime.train_settings import TrainSettings

_ENGINE_SECONDS = 2.0
_REMEDIES = {
    "another_run": "it belongs to another run, so it gets no requests: end it, or give its home this run",
    "another_base": "its config.json or tokenizer.json is another's, so it gets no requests: start it with this home's base",
    "unknown_kind": "this release has no such engine, so it gets no requests: end the process that announces it",
}


def engine_findings(settings: Settings) -> Iterator[Finding]:
    """One finding for each replica that announced itself; without any, one for the engine at this home's address."""
    try:
        headers = authorization(engine_key(settings.home))
        rows, has_proved = _rows(settings)
    except (InvalidSettings, Unavailable) as error:
        yield Finding("engine", False, isinstance(error, InvalidSettings), error.message)
        return
    if not rows:
        yield _key_taken(f"the engine at {settings.engine_url}", settings.engine_url, headers)
    base, now = fingerprint(settings.base), time.time()
    for row in rows:
        yield _finding(row, settings.run, base, now, headers)
    fresh = [row for row in rows if row.is_fresh(now) and misfit(row, settings.run, base) is None]
    if fresh:
        try:
            is_enabled = load_section(settings.home, "train", TrainSettings).enabled
        except InvalidSettings as error:
            yield Finding("release train", False, True, error.message)
            return
        yield train_finding({slot for row in fresh for slot in row.slots}, is_enabled=is_enabled, has_proved=has_proved)


def train_finding(slots: Collection[str], *, is_enabled: bool, has_proved: bool = False) -> Finding:
    """How far the slots of all engines carry a release train.

    `is_enabled`: whether the settings want one. `has_proved`: whether there was one, so that versions wait for a slot that is missing.
    """
    without = {
        CANARY: "a version that passed the gate goes live at once, without proof on a few users",
        LEARNING: "no share of the users gets the newest gated version for the trainer",
        HOLDOUT: "no lift over a frozen version is measured",
    }
    name = "release train"
    if not is_enabled:
        return Finding(name, True, False, f"off ([train] enabled = false): {without[CANARY]}")
    if has_proved and CANARY not in slots:
        without[CANARY] = (
            "versions that passed the gate wait for one; if it was removed for good, write [train] enabled = false and restart release"
        )
    missing = [f"no engine has a slot for {arm}: {why}" for arm, why in without.items() if arm not in slots]
    if not missing:
        return Finding(name, True, False, f"engines have slots for {', '.join(without)}")
    good = not has_proved or CANARY in slots
    return Finding(name, good, False, "; ".join(missing) + "; add slots with [engine] slots or --slots")


def _finding(row: EngineReplica, run: str, base: str, now: float, headers: Mapping[str, str]) -> Finding:
    held = ", ".join(f"{arm} {'empty' if version is None else f'v{version}'}" for arm, version in row.slots.items())
    who = f"{row.name} ({row.kind}, region {row.region}, {row.url})"
    if not row.is_fresh(now):
        return Finding("engine", False, False, f"{who}: no sign of life for {now - row.seen_at:.0f} s; last {held}")
    why = misfit(row, run, base)
    if why is not None:
        return Finding("engine", False, True, f"{who}: {why}: {_REMEDIES[why]}{why_gone(row.kind)}")
    problems = "; ".join(
        f"cannot load v{problem['version']} as {arm}: {problem['code']}: {problem['message']}"
        for arm, problem in row.problems.items()
    )
    says = f"{who}: {row.status}, {held}" + (f"; {problems}" if problems else "")
    if row.kind != OWN:  # such servers are bound to loopback; their follower speaks for them
        return Finding("engine", row.status == "serving" and not problems, False, says)
    answered = _key_taken(says, row.url, headers)
    return answered._replace(good=answered.good and row.status == "serving" and not problems)


def _key_taken(who: str, url: str, headers: Mapping[str, str]) -> Finding:
    """Whether the engine, if one runs, accepts the key that this home's processes send."""
    try:
        answer = httpx.get(f"{url}/state", headers=headers, timeout=_ENGINE_SECONDS)
    except httpx.TransportError as error:
        return Finding("engine", True, False, f"{who}: no engine answers from here ({type(error).__name__})")
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        says = f"{who}: it refuses this home's key: restart it, or give both the same {ENGINE_KEY}"
        return Finding("engine", False, True, says)
    return Finding("engine", answer.is_success, False, f"{who}: accepts this home's key ({answer.status_code})")


def _rows(settings: Settings) -> tuple[list[EngineReplica], bool]:
    """The rows of all replicas, and whether there ever was a train. Raises InvalidSettings, Unavailable."""
    if settings.database_url is None and not (settings.home / "millrace.db").exists():
        return [], False  # nothing was started yet, and a look must make no file
    with settings.snapshot() as connection:
        arms = assignments.read(connection, settings.policy)
        return read_replicas(connection, settings.policy), CANARY in arms
