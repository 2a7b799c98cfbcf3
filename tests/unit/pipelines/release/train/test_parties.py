"""Who asked for the answers of a train: nobody decides by choosing units, except whoever is most of the product."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.release.train.answers import AnswerRow, Answers, LiftRow, TaskRule
from pipelines.release.train.assess import Assessment, assess
from pipelines.release.train.compare import Contrast
from pipelines.release.train.lift import lift_of
from pipelines.release.train.parties import PRODUCT, SEVERAL, parties_of
from pipelines.release.train.rules import TrainMove, decide, decide_by_fast_facts
from pipelines.release.train.strata import Standing
from tests.worlds.release.product import NOON, RULES, SETTINGS, answer, product, standing

Parts = dict[str, float]
THREE: Parts = {"a": 0.5, "b": 0.3, "c": 0.2}
REFUSES = "refuses"
NOW = NOON + 700.0
"""All answers are old enough, and the newest are new enough."""


def asked_by(rows: Iterable[AnswerRow], tenants: Parts, seed: int = 7) -> Iterator[AnswerRow]:
    """The same answers, asked for by these tenants, each with one key. The arm hangs on neither."""
    draw = random.Random(seed)
    for row in rows:
        [tenant] = draw.choices([*tenants], [*tenants.values()])
        yield row._replace(tenant=tenant, api_key=f"key of {tenant}", unit=f"{tenant} {row.unit}")


def attacker(
    num: int = 900,
    *,
    rewards: tuple[float, float] = (1.0, 0.0),
    refuses: tuple[float, float] = (0.0, 0.0),
    canary: float = 0.5,
) -> Iterator[AnswerRow]:
    """Answers to tenant x, which says of live and of the canary what it wants. `canary`: the part of its units that are of it."""
    for number in range(num):
        is_canary = number < canary * num
        row = answer(number, "canary" if is_canary else "live", at=NOON + number % 600)
        facts = {**row.metrics, REFUSES: refuses[is_canary]}
        yield row._replace(
            key=f"x{number}",
            unit=f"x {number}",
            tenant="x",
            api_key="key of x",
            reward=rewards[is_canary],
            metrics=facts,
        )


def found_in(
    rows: Iterable[AnswerRow], where: Standing | None = None, rules: dict[str, TaskRule] = RULES
) -> Assessment:
    answers = Answers()
    answers.put(rows)
    return assess(answers, rules, SETTINGS, NOW, where or standing())


def moved(found: Assessment, where: Standing | None = None) -> TrainMove:
    return decide(where or standing(), found, SETTINGS, NOW)


def out_of(found: Assessment) -> set[str]:
    return {name.split(",")[0] for name in found["left_out"]}


@cache
def fine() -> list[AnswerRow]:
    """A version as good as live, asked for by three tenants."""
    return list(asked_by(product(0, 16_000), THREE))


def without_parties(rows: Iterable[AnswerRow]) -> Iterator[AnswerRow]:
    """As trains saw them when answers did not know who asked."""
    return (row._replace(tenant="", api_key="") for row in rows)


def test_one_party_is_compared_as_if_nobody_knew_who_asked() -> None:
    rows = list(product(0, 2000, reward=(0.8, 0.7)))
    for named in ({"tenant": "acme", "api_key": "k"}, {"tenant": "acme"}):
        assert found_in(row._replace(**named) for row in rows) == found_in(rows)  # type: ignore[arg-type] # texts


ATTACKS = {
    "votes against": (list(attacker()), "revoke"),
    "makes faults": (list(attacker(rewards=(0.8, 0.8), refuses=(0.0, 1.0))), "revoke"),
    "one arm alone": (list(attacker(rewards=(0.8, 0.8), canary=1.0)), "withdraw"),
    "one unit of the canary": (
        [row._replace(unit="x 0" if row.arm == "canary" else row.unit) for row in attacker(1600)],
        "withdraw",
    ),
    "a few units": (
        [
            row._replace(unit="x 0" if row.arm == "canary" else f"x {1 + number % 3}")
            for number, row in enumerate(attacker(1600))
        ],
        "stay",
    ),
}
LATE = Standing(
    stage=len(SETTINGS.stages) - 1, stage_at=NOON - SETTINGS.harmed_seconds, started_at=NOON, state="canary"
)


def test_a_version_as_good_as_live_arrives() -> None:
    assert moved(found_in(fine(), LATE), LATE).kind == "arrive"


@pytest.mark.parametrize("name", ATTACKS)
def test_a_tenant_that_chooses_its_units_moves_no_verdict(name: str) -> None:
    attack, before = ATTACKS[name]
    blind, seen = (found_in(rows, LATE) for rows in (without_parties([*fine(), *attack]), [*fine(), *attack]))
    assert moved(blind, LATE).kind == before, "an attack that works without the defence"
    assert moved(seen, LATE).kind == "arrive"
    assert "of x" in out_of(seen)


def test_a_tenant_that_likes_a_bad_version_saves_it_not() -> None:
    honest = list(asked_by(product(0, 12_000, reward=(0.8, 0.72)), THREE))
    attack = list(attacker(2000, rewards=(0.0, 1.0)))
    assert moved(found_in(without_parties([*honest, *attack]))).kind != "revoke"
    for rows in (honest, [*honest, *attack]):
        assert moved(found_in(rows)).kind == "revoke"


def test_a_key_of_the_only_tenant_moves_no_verdict_either() -> None:
    found = found_in([row._replace(tenant="a") for row in [*fine(), *attacker()]], LATE)
    assert moved(found, LATE).kind == "arrive"
    assert "of key key of x" in out_of(found)


def test_the_learning_arm_is_not_emptied_by_one_tenant() -> None:
    rules = {"chat": TaskRule(has_primary=False, age_seconds=60.0)}
    honest = list(asked_by(product(0, 4000), THREE))
    attack = list(attacker(refuses=(0.0, 1.0)))
    found = [found_in(rows, rules=rules) for rows in (without_parties([*honest, *attack]), [*honest, *attack])]
    assert [decide_by_fast_facts(one, {"chat"}).kind for one in found] == ["revoke", "stay"]


def test_who_seems_harmed_alone_delays_the_arrival_and_is_named() -> None:
    rows = [*fine(), *attacker()]
    facts = found_in(rows)
    assert moved(facts).kind == "stay"
    assert (facts["harmed"], facts["harmed_until"]) == (["x"], NOON + SETTINGS.harmed_seconds)
    assert "for x alone it seems worse" in facts["says"]
    assert "unless somebody withdraws it" in facts["says"]
    assert "nobody withdrew it" in moved(found_in(rows, LATE), LATE).reason
    likes = found_in([*fine(), *attacker(rewards=(0.0, 1.0))])
    assert likes["harmed"] == []
    assert any(name.startswith("of x, which contradicts") for name in likes["left_out"])


def test_a_loss_for_everybody_is_no_exception() -> None:
    rows = list(product(0, 16_000, reward=(0.8, 0.7)))
    for tenants in (THREE, {"a": 1.0, "b": 1.0}, {str(number): 0.1 for number in range(10)}):
        found = found_in(asked_by(rows, tenants))
        assert (moved(found).kind, found["harmed"]) == ("revoke", [])


def test_records_that_everybody_loses_withdraw_the_version() -> None:
    rows = asked_by(fine(), {str(number): 0.1 for number in range(10)})
    lost = (row for number, row in enumerate(rows) if row.arm == "live" or number % 5)
    assert moved(found_in(lost)).reason.startswith("Records are lost")


def test_a_ratio_that_one_party_breaks_before_its_own_is_broken_is_nobodys_loss() -> None:
    """Chance helps it, and its own units are too few to be told."""
    arms = ["canary", "live", "canary", "live", "canary", "live", "canary", "live", "canary"]
    honest = [
        answer(number, arm, share=0.05)._replace(tenant=f"t{number % 3}", api_key=f"k{number % 3}")
        for number, arm in enumerate(arms)
    ]
    attack = [
        answer(100 + number, "canary", share=0.05)._replace(tenant="x", api_key="key of x") for number in range(12)
    ]
    early = standing(stage=1)
    seen = [found_in(rows, early) for rows in (without_parties([*honest, *attack]), [*honest, *attack])]
    assert [facts["sample_ratio"]["verdict"] for facts in seen] == ["broken", "unknown"]
    assert seen[1]["left_out"] == {}


def test_what_more_than_a_part_of_the_product_says_is_no_exception() -> None:
    """Two halves that contradict each other: nobody knows who is right, so both count."""
    bad = product(0, 8000, reward=(0.8, 0.3))
    good = (row._replace(key=f"b{row.key}") for row in product(1, 8000))
    found = found_in([*asked_by(bad, {"a": 1.0}), *asked_by(good, {"b": 1.0})])
    assert (moved(found).kind, found["left_out"]) == ("revoke", {})


def test_a_verdict_must_hold_without_each_tenant() -> None:
    """A third of the people see all of a loss that is too small yet to contradict the others."""
    hit, rest = product(0, 1100, reward=(0.8, 0.68)), product(1, 2200, reward=(0.8, 0.74))
    others = (row._replace(key=f"b{row.key}", unit=f"b{row.unit}") for row in rest)
    rows = [*asked_by(hit, {"a": 1.0}), *asked_by(others, {"b": 0.5, "c": 0.5})]
    facts = found_in(rows)
    reward = next(fact for fact in facts["metrics"] if fact["name"] == "reward")
    pooled = next(fact for fact in found_in(without_parties(rows))["metrics"] if fact["name"] == "reward")
    assert facts["left_out"] == {}
    assert reward["needed_units"] > 1.3 * pooled["needed_units"], "it says so: a proof takes more units"


@given(st.integers(0, 10_000))
def test_a_party_alone_and_all_without_it_are_comparisons_of_their_own_answers(seed: int) -> None:
    draw = np.random.default_rng(seed)
    num = 120
    parties, canary, values = draw.integers(0, 3, num), draw.random(num) < 0.4, draw.random(num)
    strata = parties * 2 + draw.integers(0, 2, num)
    units = draw.integers(0, 30, num) * 3 + parties
    plan = Contrast(canary, strata, units, parties)
    for party, aside in enumerate(plan.compare_parties(values, is_log=False)):
        for rows, found in ((parties == party, aside.alone), (parties != party, aside.without)):
            own = Contrast(canary[rows], strata[rows], units[rows]).compare(values[rows], is_log=False)
            assert (own is None) == (found is None)
            if own is not None and found is not None:
                assert tuple(found) == pytest.approx(tuple(own))


def test_parties_are_tenants_and_of_the_largest_their_keys() -> None:
    def shares(*asked: tuple[int, int, int]) -> dict[str, float]:
        tenants, keys = (np.repeat([row[place] for row in asked], [row[2] for row in asked]) for place in (0, 1))
        every = np.ones(len(tenants), np.bool_)
        found = parties_of((tenants, keys), (["a", "b", "c"], ["0", "1", "2", "3"]), every, every)
        return dict(zip(found.names, found.share.tolist(), strict=True))

    assert shares((0, 0, 30), (1, 1, 35), (2, 2, 35)) == {"a": 0.3, "b": 0.35, "c": 0.35}
    assert shares((0, 0, 60), (0, 3, 20), (1, 1, 20)) == {"b": 0.2, "key 0": 0.6, "key 3": 0.2}
    assert shares((0, 0, 98), (1, 1, 1), (2, 2, 1)) == {"key 0": 0.98, SEVERAL: 0.02}
    assert PRODUCT < 0.5, "two can never both be most of it"


def test_one_tenant_does_not_move_the_lift() -> None:
    def lift(rows: list[LiftRow]) -> dict[str, object]:
        return lift_of(rows, RULES, SETTINGS, NOW)

    def said(arm: str, tenant: str, num: int, reward: float) -> list[LiftRow]:
        return [
            LiftRow(arm, "chat", f"{arm} {tenant} {n}", "user", "s", NOON, float(n % 10 < 10 * reward), tenant, tenant)
            for n in range(num)
        ]

    honest = [row for tenant in "ab" for arm in ("live", "holdout") for row in said(arm, tenant, 1000, 0.8)]
    attack = [*said("live", "x", 200, 0.0), *said("holdout", "x", 200, 1.0)]
    unknown = lift([row._replace(tenant="", api_key="") for row in [*honest, *attack]])
    known = lift([*honest, *attack])
    assert unknown["high"] < 0.0  # type: ignore[operator] # a number
    assert known["difference"] == pytest.approx(0.0, abs=1e-9)
    assert known["left_out"] == ["x"]
    assert "left_out" not in lift(honest)
