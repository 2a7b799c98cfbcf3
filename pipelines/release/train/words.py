"""What is known of a train, in a sentence or two for the operator; and what a proof takes, said before the train has it. Pure.

A version arrives if every required metric is proven, and that few records are lost. So the promise is the larger of both. The pace is
measured on the answers before the departure, and on the canary's own once some came. It is a lower bound of the time: people who come back
are no new units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pipelines.release.train.sequences import lost_part
from pipelines.release.train.strata import Standing
from pipelines.release.train.verdicts import LEAST_UNITS
from runtime.train_settings import TrainSettings

PACE, WANTED_LEVEL = "pace", "wanted_level"
"""In the settings of a train: the pace of users before its departure, and the level that it would have if the year's budget allowed it."""
_HOUR = 3600.0
_REMEDY = (
    "In [train], a longer patience_seconds gives more time; larger stages bring units faster; larger margins and a smaller tuned_units "
    "need fewer of them."
)


def in_words(facts: Mapping[str, Any], settings: TrainSettings) -> str:
    """The verdict in one or two sentences."""
    metrics = facts["metrics"]
    if facts["sample_ratio"]["verdict"] == "broken":
        return ratio_in_words(facts)
    for verdict in ("worse", "missing"):
        if named := [fact["says"] for fact in metrics if fact["verdict"] == verdict]:
            return " ".join(named)
    only = " No task has a reward of its users, so guardrails alone decide." if facts["guardrails_only"] else ""
    return f"{_progress(facts, settings)}{only}" if metrics else "No answer can be compared yet."


def _progress(facts: Mapping[str, Any], settings: TrainSettings) -> str:
    required = [fact for fact in facts["metrics"] if fact["required"]]
    waiting = [fact for fact in required if fact["verdict"] != "proven"]
    troubles = [fact["says"] for fact in waiting if fact["trouble"]]
    if troubles:
        return f"No verdict. {troubles[0]}"
    if waiting:
        slowest = max(waiting, key=lambda fact: fact["needed_units"] - fact["num_canary"])
        missing = max(0, slowest["needed_units"] - slowest["num_canary"])
        done = f"{len(required) - len(waiting)} of {len(required)} metrics are proven"
        return f"No harm seen. {done}; {slowest['name']} needs about {missing:,} more units of the canary."
    if facts["sample_ratio"]["verdict"] != "fine":
        missing = max(0, facts["sample_ratio"]["needed_units"] - facts["num_stage_units"])
        return (
            f"All metrics are proven, but not yet that fewer than {lost_part(settings.tuned_units):.0%} of the records are lost: that needs"
            f" about {missing:,} more units of the canary in the last stage."
        )
    proven = f"Proven: none of {len(required)} metrics is worse by more than its margin."
    if not (harmed := facts.get("harmed")):
        return proven
    if facts["at"] >= facts["harmed_until"]:
        return f"{proven} For {_listed(harmed)} alone it seems worse: nobody withdrew it for {settings.harmed_seconds:,.0f} s."
    left = facts["harmed_until"] - facts["at"]
    return (
        f"{proven} But for {_listed(harmed)} alone it seems worse, which may be so, or be said: the version arrives in {left:,.0f} s unless"
        " somebody withdraws it."
    )


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def promise(facts: Mapping[str, Any], settings: TrainSettings) -> str:
    """How many units it takes, said before they came."""
    return f"{_of_rewards(facts, settings)} {_floor(facts, settings)}"


def _of_rewards(facts: Mapping[str, Any], settings: TrainSettings) -> str:
    if facts["guardrails_only"]:
        return "No task has a reward of its users: a loss of reward would not be found."
    rewards = [fact for fact in facts["metrics"] if fact["kind"] == "primary" and fact["required"]]
    slowest = max(rewards, key=lambda fact: fact["found_units"], default=facts["first"])
    most = "" if rewards else "at most "
    return (
        f"With 95%, {most}about {slowest['needed_units']:,} units of the canary prove that an equal version loses less than"
        f" {settings.margin:.1%} of the reward, and a loss of {settings.margin:.1%} is found after {most}about {slowest['found_units']:,}."
    )


def _floor(facts: Mapping[str, Any], settings: TrainSettings) -> str:
    """The units that no train can do without, whatever its metrics say."""
    return (
        f"Besides, it takes about {facts['sample_ratio']['needed_units']:,} units of the canary in the last stage to prove that fewer than"
        f" {lost_part(settings.tuned_units):.0%} of the records are lost."
    )


def ratio_in_words(facts: Mapping[str, Any]) -> str:
    """What a broken sample ratio means."""
    ratio = facts["sample_ratio"]
    return (
        f"Records are lost: {ratio['seen']:.1%} of {ratio['num']:,} units came from the canary, {ratio['expected']:.1%} were drawn for it."
        " Nothing can be compared."
    )


class UnitPace(NamedTuple):
    """How many units came in a time, of all users."""

    units: float
    seconds: float

    @property
    def per_second(self) -> float:
        """Units a second."""
        return self.units / self.seconds if self.seconds > 0.0 else 0.0


class Prospect(NamedTuple):
    """What is said, and whether the train can prove its version in time, at the best; None: the pace is not known."""

    says: str
    is_in_time: bool | None


def prospect(
    facts: Mapping[str, Any],
    train_settings: Mapping[str, Any],
    settings: TrainSettings,
    standing: Standing,
    *,
    seconds_left: float,
) -> Prospect:
    """What a proof takes, and whether it comes in time. `train_settings`: as they stand in the train's row; `settings`: the same, read."""
    says = [str(facts["promise"])]
    wanted = float(train_settings.get(WANTED_LEVEL, settings.level))
    if settings.level < wanted:
        says.append(
            f"The year's budget of {settings.false_verdicts_per_year:g} false verdicts leaves this version a level of {settings.level:.2g} "
            f"instead of {wanted:.2g}, so smaller harm takes longer to be found."
        )
    pace = _pace(facts, train_settings, settings, standing)
    if pace is None:
        return Prospect(" ".join(says), None)
    least, most = seconds_needed(facts, settings, standing, pace)
    took = _time(least) if math.isclose(least, most, rel_tol=0.1) else f"{_time(least)} to {_time(most)}"
    said = f"At {_HOUR * pace.per_second:,.0f} units an hour, as they come now, a proof takes about {took} more"
    if most <= seconds_left:
        says.append(f"{said}; {_time(seconds_left)} are left.")
    else:
        verb = "will" if least > seconds_left else "may"
        says.append(
            f"{said}, but only {_time(seconds_left)} are left: this version {verb} be withdrawn unproven. {_REMEDY}"
        )
    return Prospect(" ".join(says), least <= seconds_left)


def seconds_needed(
    facts: Mapping[str, Any], settings: TrainSettings, standing: Standing, pace: UnitPace
) -> tuple[float, float]:
    """How long the rest of a train takes at a pace, at least and at most: its stages, and in the last one the units of the slowest proof.

    Before there are data, nobody knows what the metrics need: at least nothing, at most what the largest possible spread needs.
    """
    most = _metric_units(facts)
    least = most if facts["metrics"] else 0.0
    return _seconds(facts, settings, standing, pace, least), _seconds(facts, settings, standing, pace, most)


def _seconds(
    facts: Mapping[str, Any], settings: TrainSettings, standing: Standing, pace: UnitPace, metric_units: float
) -> float:
    stage, passed = max(standing.stage, 0), 0.0
    if standing.stage >= 0:
        passed = max(0.0, facts["at"] - standing.stage_at)
    have = facts["num_stage_units"] if standing.stage >= 0 else 0
    waited, total = 0.0, float(facts["num_canary_units"])
    for number in range(stage, len(settings.stages)):
        per_second = pace.per_second * settings.stages[number]
        missing = max(0.0, settings.stage_units - have)
        if number == len(settings.stages) - 1:
            missing = max(missing, _ratio_units(facts) - have, metric_units - total)
        if missing > 0.0 and per_second <= 0.0:
            return math.inf
        seconds = max(settings.stage_seconds - passed, missing / per_second if missing > 0.0 else 0.0)
        waited, total = waited + max(0.0, seconds), total + max(0.0, seconds) * per_second
        have, passed = 0, 0.0
    return waited + float(facts["age_seconds"])


def _ratio_units(facts: Mapping[str, Any]) -> int:
    ratio = facts["sample_ratio"]
    return 0 if ratio["verdict"] == "fine" else int(ratio["needed_units"])


def _metric_units(facts: Mapping[str, Any]) -> float:
    """Units of the canary that the slowest metric still needs in all; those that nobody spoke of do not count for rewards."""
    total = float(facts["num_canary_units"])
    needed = [] if facts["metrics"] else [float(facts["first"]["all_units"])]
    for fact in facts["metrics"]:
        if fact["required"] and fact["verdict"] != "proven":
            share = fact["num_canary"] / total if total and fact["num_canary"] >= LEAST_UNITS else 1.0
            needed.append(fact["needed_units"] / share)
    return max(needed, default=0.0)


def _pace(
    facts: Mapping[str, Any], train_settings: Mapping[str, Any], settings: TrainSettings, standing: Standing
) -> UnitPace | None:
    passed = facts["at"] - standing.stage_at
    if standing.stage >= 0 and facts["num_stage_units"] >= LEAST_UNITS and passed > 0.0:
        return UnitPace(facts["num_stage_units"] / settings.stages[standing.stage], passed)
    known = train_settings.get(PACE)
    return None if not known else UnitPace(float(known["units"]), float(known["seconds"]))


def _time(seconds: float) -> str:
    if math.isinf(seconds):
        return "forever"
    hours = seconds / _HOUR
    return f"{hours:,.1f} h" if hours >= 1.0 else f"{max(0.0, seconds) / 60.0:,.0f} min"
