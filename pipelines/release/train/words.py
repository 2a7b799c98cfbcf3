"""What is known of a train, in a sentence or two for the operator. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.release.train.ratio import lost_part
from runtime.train_settings import TrainSettings


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
