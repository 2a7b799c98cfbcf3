"""What a train does next. Pure.

Behaviour that is proven worse revokes the version: its weights are the cause. Answers that are slow, fail or are not waited for only
withdraw it: the cause may be where its slots are. So does evidence that cannot be believed (lost records, a missing metric, arms in which
other people speak) or does not come: that may be our fault, and a later version may be as good.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple

from pipelines.release.train.assess import Assessment
from pipelines.release.train.metrics import GUARDRAILS, TOKENS, margin_of
from pipelines.release.train.strata import Standing
from pipelines.release.train.words import ratio_in_words
from runtime.train_settings import TrainSettings

PLACE = "The place of the canary's slots may be the cause, so the version is withdrawn and not revoked."
MoveKind = Literal["stay", "advance", "arrive", "withdraw", "revoke", "stop", "go_on", "change_over"]
_EARLY = 0.5
"""Of a margin: a canary that lost so much by its place gets no share that is too large for its engines."""


class TrainMove(NamedTuple):
    """What to do, and why, in words for the operator."""

    kind: MoveKind
    reason: str
    to: int | None = None


def decide(standing: Standing, facts: Assessment, settings: TrainSettings, now: float) -> TrainMove:
    """The next move of a train."""
    if standing.stage < 0:
        return TrainMove("stay", "Both versions answer the same prompts, unseen by users.")
    return (
        _harm(facts)
        or _doubt(facts)
        or _silence(standing, facts, settings, now)
        or _end_of_stage(standing, facts, settings, now)
        or _patience(standing, facts, settings, now)
        or TrainMove("stay", str(facts["says"]))
    )


def decide_by_fast_facts(facts: Assessment, with_primary: Collection[str]) -> TrainMove:
    """Whether the learning arm's version stays with its users, is revoked, or leaves them without being revoked.

    Its rewards are not compared, so lengths are compared in both directions. `with_primary`: the tasks with a reward; there, as in a
    train, shorter answers are no fault, and longer ones are a harm. What the place of the slot may cause is only a doubt.
    """
    harms, doubts = list[str](), list[str]()
    for fact in facts["metrics"]:
        is_length = fact["name"] == TOKENS and fact["task"] in with_primary
        if fact["verdict"] == "missing":
            doubts.append(fact["says"])
        elif fact["verdict"] != "worse" or (is_length and fact["difference"] <= 0.0):
            continue
        elif is_length or _blames_version(fact):
            harms.append(fact["says"])
        else:
            doubts.append(fact["says"])
    if harms:
        return TrainMove("revoke", " ".join(harms))
    return TrainMove("withdraw", " ".join(doubts)) if doubts else TrainMove("stay", str(facts["says"]))


def _harm(facts: Mapping[str, Any]) -> TrainMove | None:
    says = [fact["says"] for fact in facts["metrics"] if fact["verdict"] == "worse" and _blames_version(fact)]
    return TrainMove("revoke", " ".join(says)) if says else None


def _doubt(facts: Mapping[str, Any]) -> TrainMove | None:
    if facts["sample_ratio"]["verdict"] == "broken":
        return TrainMove("withdraw", ratio_in_words(facts))
    found = [fact for fact in facts["metrics"] if fact["verdict"] in {"missing", "worse"}]
    if not found:
        return None
    says = " ".join(fact["says"] for fact in found)
    why = "" if all(fact["blames_version"] for fact in found) else f" {PLACE}"
    return TrainMove("withdraw", f"{says}{why}")


def _blames_version(fact: Mapping[str, Any]) -> bool:
    return bool(fact["blames_version"] and fact["better"] != "same")


def _silence(standing: Standing, facts: Mapping[str, Any], settings: TrainSettings, now: float) -> TrainMove | None:
    newest = standing.stage_at if facts["newest_at"] is None else max(standing.stage_at, facts["newest_at"])
    quiet = now - newest
    because = "".join(f"; left out: {num:,} {reason}" for reason, num in facts["left_out"].items())
    # Only a train that stopped: whoever begins to look after a long time has to listen first.
    if quiet > 2.0 * settings.silence_seconds and standing.state == "stopped":
        return TrainMove("withdraw", f"No new evidence for {quiet:,.0f} s{because}.")
    if quiet > settings.silence_seconds:
        kind: MoveKind = "stay" if standing.state == "stopped" else "stop"
        return TrainMove(kind, f"No new evidence for {quiet:,.0f} s{because}. Nothing advances until it comes again.")
    if standing.state == "stopped":
        return TrainMove("go_on", "Evidence comes again.")
    return None


def _end_of_stage(
    standing: Standing, facts: Mapping[str, Any], settings: TrainSettings, now: float
) -> TrainMove | None:
    if now - standing.stage_at < settings.stage_seconds or facts["num_stage_units"] < settings.stage_units:
        return None
    if facts["num_aged_units"] is not None and facts["num_aged_units"] < settings.stage_units:
        return None
    if standing.stage < len(settings.stages) - 1:
        share = settings.stages[standing.stage]
        return TrainMove("advance", f"{facts['num_stage_units']:,} units of the canary at {share:.0%}, no harm seen.")
    required = [fact for fact in facts["metrics"] if fact["required"]]
    is_complete = facts["sample_ratio"]["verdict"] == "fine"
    if facts.get("harmed") and now < facts["harmed_until"]:
        return None
    if is_complete and required and all(fact["verdict"] == "proven" for fact in required):
        return TrainMove("arrive", str(facts["says"]))
    return None


def _patience(standing: Standing, facts: Mapping[str, Any], settings: TrainSettings, now: float) -> TrainMove | None:
    if now - standing.started_at <= settings.patience_seconds:
        return None
    return TrainMove("withdraw", f"Not proven within {settings.patience_seconds:,.0f} s. {facts['says']}")


def better_by(verdict: Mapping[str, Any], version: int) -> str | None:
    """How a version beats another one beyond chance, by the comparisons of its own verdict of the gate; None if it does not.

    It must be better on some task, and worse beyond chance on none.
    """
    compared = ((task, item) for task, of in verdict.get("tasks", {}).items() for item in of.get("comparisons", ()))
    found = [(task, item) for task, item in compared if item["version"] == version]
    if any(item["p"] <= item["alpha"] for _, item in found):
        return None
    won = [(task, item) for task, item in found if item["p_better"] <= item["alpha"]]
    return "; ".join(f"{task} {item['value']:.3f} against {item['against']:.3f}" for task, item in won) or None


def no_room(share: float, num_holders: int, num_engines: int, facts: Assessment, settings: TrainSettings) -> str | None:
    """Why the engines that hold the canary may not be able to take a share; None if nothing says so.

    What a machine can take is not known. So a share is only refused if it is more than those engines' part of all engines, and if answers
    of the canary are slower, fail or are not waited for already: beyond the level of a proof, and by half of a margin.
    """
    if num_holders >= share * num_engines:
        return None
    margins = {name: margin_of(metric, settings) for name, metric in GUARDRAILS.items() if not metric.blames_version}
    says = [
        fact["says"]
        for fact in facts["metrics"]
        if fact["name"] in margins
        and fact["verdict"] != "unknown"
        and fact["low"] is not None
        and fact["low"] > 0.0
        and fact["difference"] > _EARLY * margins[fact["name"]]
    ]
    if not says:
        return None
    return (
        f"Only {num_holders} of {num_engines} engines hold the canary, too few for {share:.0%} of the users: {' '.join(says)}"
        " Nothing advances until more engines have a canary slot, or answers are faster."
    )
