"""Every rule of the train, one row each: what is known, and what is done."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.release.train.assess import Assessment
from pipelines.release.train.rules import PLACE, decide, decide_by_fast_facts, no_room
from tests.each_case import each_case
from tests.worlds.release.product import LAST, NOON, SETTINGS, standing

NOW = NOON + 200.0


def metric(verdict: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": "reward",
        "better": "higher",
        "verdict": verdict,
        "required": True,
        "blames_version": True,
        "says": f"It is {verdict}.",
        **changes,
    }


def known(*metrics: dict[str, Any], **changes: Any) -> Assessment:
    return {
        "metrics": list(metrics or [metric("proven")]),
        "sample_ratio": {"verdict": "fine", "seen": 0.2, "expected": 0.2, "num": 10},
        "newest_at": NOW - 1.0,
        "left_out": {},
        "num_stage_units": 1000,
        "num_aged_units": 1000,
        "says": "In words.",
        **changes,
    }


UNKNOWN = {"verdict": "unknown", "seen": 0.2, "expected": 0.2, "num": 10}
BROKEN = {"verdict": "broken", "seen": 0.1, "expected": 0.2, "num": 10}


@pytest.mark.parametrize(
    ("assessment", "stage", "state", "now", "kind"),
    [
        pytest.param(known(metric("worse")), -1, "shadow", NOW, "stay", id="the shadow ends elsewhere"),
        pytest.param(known(metric("worse")), 0, "canary", NOW, "revoke", id="worse"),
        pytest.param(known(metric("worse")), 0, "stopped", NOW, "revoke", id="worse while stopped"),
        pytest.param(known(metric("worse"), sample_ratio=BROKEN), 1, "canary", NOW, "revoke", id="worse, and lost records"),
        pytest.param(known(metric("worse", better="same")), 1, "canary", NOW, "withdraw", id="others speak"),
        pytest.param(known(metric("worse", blames_version=False)), 1, "canary", NOW, "withdraw", id="slow, or failed"),
        pytest.param(
            known(metric("worse"), metric("worse", blames_version=False)), 1, "canary", NOW, "revoke", id="slow, and worse"
        ),
        pytest.param(known(metric("worse", required=False)), 1, "canary", NOW, "revoke", id="worse at a rare task"),
        pytest.param(known(metric("missing")), 1, "canary", NOW, "withdraw", id="missing"),
        pytest.param(known(sample_ratio=BROKEN), LAST, "canary", NOW, "withdraw", id="lost records"),
        pytest.param(known(), 0, "canary", NOW, "advance", id="end of a stage"),
        pytest.param(known(metric("fine")), 0, "canary", NOW, "advance", id="a stage ends without a proof"),
        pytest.param(known(), 0, "canary", NOON + 59.0, "stay", id="too early"),
        pytest.param(known(num_stage_units=99), 0, "canary", NOW, "stay", id="too few units"),
        pytest.param(known(num_aged_units=99), 0, "canary", NOW, "stay", id="no unit is old enough"),
        pytest.param(known(num_aged_units=None), 0, "canary", NOW, "advance", id="no reward to wait for"),
        pytest.param(known(), LAST, "canary", NOW, "arrive", id="proven"),
        pytest.param(known(sample_ratio=UNKNOWN), LAST, "canary", NOW, "stay", id="records may be lost"),
        pytest.param(known(sample_ratio=UNKNOWN), 0, "canary", NOW, "advance", id="records may be lost at a small share"),
        pytest.param(known(num_stage_units=99), LAST, "canary", NOW, "stay", id="proven by too few at the last share"),
        pytest.param(known(metric("proven"), metric("fine")), LAST, "canary", NOW, "stay", id="half proven"),
        pytest.param(known(metric("proven"), metric("unknown")), LAST, "canary", NOW, "stay", id="half unknown"),
        pytest.param(known(metric("proven"), metric("fine", required=False)), LAST, "canary", NOW, "arrive", id="rare"),
        pytest.param(known(metric("fine", required=False)), LAST, "canary", NOW, "stay", id="nothing is required"),
        pytest.param(known(newest_at=NOON - 110.0), 0, "canary", NOW, "advance", id="a new stage has time to be heard of"),
        pytest.param(known(newest_at=NOON), 0, "canary", NOON + 301.0, "stop", id="silence"),
        pytest.param(known(newest_at=NOON), 0, "stopped", NOON + 301.0, "stay", id="silence goes on"),
        pytest.param(known(newest_at=NOON), 0, "stopped", NOON + 601.0, "withdraw", id="long silence"),
        pytest.param(known(newest_at=None), 0, "canary", NOON + 301.0, "stop", id="never heard"),
        pytest.param(known(), 0, "stopped", NOW, "go_on", id="heard again"),
        pytest.param(
            known(metric("fine"), newest_at=NOON + 14_399.0), LAST, "canary", NOON + 14_401.0, "withdraw", id="no patience left"
        ),
        pytest.param(known(newest_at=NOON + 14_399.0), LAST, "canary", NOON + 14_401.0, "arrive", id="proven at last"),
    ],
)  # fmt: skip
def test_the_next_move(assessment: Assessment, stage: int, state: str, now: float, kind: str) -> None:
    found = decide(standing(stage, state), assessment, SETTINGS, now)
    assert found.kind == kind
    assert found.reason


def test_a_train_that_ends_by_the_place_of_its_slots_says_so() -> None:
    slow, missing = known(metric("worse", blames_version=False)), known(metric("missing"))
    assert decide(standing(1), slow, SETTINGS, NOW).reason == f"It is worse. {PLACE}"
    assert decide(standing(1), missing, SETTINGS, NOW).reason == "It is missing."


SLOWER = metric("fine", name="seconds", blames_version=False, low=0.01, difference=0.2)


@pytest.mark.parametrize(
    ("found", "share", "num_holders", "is_told"),
    [
        pytest.param(SLOWER, 0.5, 1, True, id="slower, and one of three engines is to take half of the users"),
        pytest.param(SLOWER, 0.2, 1, False, id="not more than its part"),
        pytest.param(SLOWER, 0.5, 2, False, id="two of three"),
        pytest.param(SLOWER | {"low": -0.01}, 0.5, 1, False, id="perhaps by chance"),
        pytest.param(SLOWER | {"difference": 0.1}, 0.5, 1, False, id="a little slower"),
        pytest.param(SLOWER | {"verdict": "unknown"}, 0.5, 1, False, id="too few answers"),
        pytest.param(SLOWER | {"name": "errors", "difference": 0.03}, 0.5, 1, True, id="some fail"),
        pytest.param(SLOWER | {"name": "tokens"}, 0.5, 1, False, id="longer answers"),
    ],
)
def test_a_share_that_the_engines_of_the_canary_may_not_take_is_told(
    *, found: dict[str, Any], share: float, num_holders: int, is_told: bool
) -> None:
    why = no_room(share, num_holders, 3, known(found), SETTINGS)
    assert (why is not None) == is_told
    if why is not None:
        assert why.startswith("Only 1 of 3 engines hold the canary, too few for 50% of the users: It is fine.")


def test_reasons_are_the_evidence_in_words() -> None:
    says = [
        decide(standing(1), assessment, SETTINGS, now).reason
        for assessment, now in (
            (known(metric("worse")), NOW),
            (known(sample_ratio=BROKEN), NOW),
            (known(newest_at=NOON, left_out={"from the future": 3}), NOON + 400.0),
            (known(num_stage_units=5), NOW),
        )
    ]
    assert says == [
        "It is worse.",
        "Records are lost: 10.0% of 10 units came from the canary, 20.0% were drawn for it. Nothing can be compared.",
        "No new evidence for 400 s; left out: 3 from the future. Nothing advances until it comes again.",
        "In words.",
    ]


@each_case(
    ("changes", "with_primary", "kind"),
    [
        ({}, {"chat"}, "revoke"),
        ({"verdict": "fine"}, {"chat"}, "stay"),
        ({"verdict": "missing"}, {"chat"}, "withdraw"),
        ({"name": "seconds", "blames_version": False}, {"chat"}, "withdraw"),
        ({"name": "answers", "better": "same"}, {"chat"}, "withdraw"),
        ({"name": "tokens", "better": "same"}, {"chat"}, "revoke"),
        ({"name": "tokens", "better": "same", "difference": -0.5}, {"chat"}, "stay"),
        ({"name": "tokens", "better": "same"}, set(), "withdraw"),
    ],
)
def test_what_fast_facts_do_to_the_learning_arm(changes: dict[str, object], with_primary: set[str], kind: str) -> None:
    fact = {
        "name": "empty",
        "task": "chat",
        "verdict": "worse",
        "better": "lower",
        "difference": 0.3,
        "blames_version": True,
        "says": "s",
        **changes,
    }
    assert decide_by_fast_facts({"metrics": [fact], "says": "fine"}, with_primary).kind == kind
