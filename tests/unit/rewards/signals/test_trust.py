from __future__ import annotations

import math

import numpy as np
import pytest

from rewards.signals.people import Agreement, Person, is_suspended, lower_tail, offset_of


def watched(pairs: list[tuple[bool, bool]]) -> Agreement:
    agreement = Agreement()
    for said, found in pairs:
        agreement = agreement.plus(said_good=said, found_good=found)
    return agreement


def test_agreement_is_measured_against_chance() -> None:
    agreement = watched([(True, True)] * 6 + [(False, False)] * 2 + [(True, False)] * 2)
    good = (8 + 6) / 20
    chance = good**2 + (1 - good) ** 2
    assert agreement.chance == pytest.approx(chance)
    assert Agreement().chance == 0.5


def test_who_always_votes_down_on_good_answers_is_found_although_cohens_kappa_is_zero() -> None:
    always_down = watched([(False, True)] * 32 + [(False, False)] * 8)
    assert always_down.num_agreed / always_down.num_checked < always_down.chance - 0.3
    assert is_suspended(always_down, 1e-3)


def test_a_few_disagreements_are_no_proof() -> None:
    assert not is_suspended(watched([(False, True)] * 5), 1e-3)
    assert not is_suspended(Agreement(), 1e-3)


def test_a_strict_but_honest_person_stays() -> None:
    assert not is_suspended(watched([(True, True)] * 10 + [(False, False)] * 10 + [(False, True)] * 20), 1e-3)


def test_hardly_any_honest_person_is_suspended() -> None:
    dice, num_suspended = np.random.default_rng(0), 0
    for _ in range(1000):
        found = dice.random(60) < 0.8
        said = np.where(dice.random(60) < 0.8, found, ~found)
        num_suspended += is_suspended(watched(list(zip(said.tolist(), found.tolist(), strict=True))), 1e-3)
    assert num_suspended <= 2


def test_the_tail_is_exact_for_small_numbers_and_continuous_for_large_ones() -> None:
    exact = sum(math.comb(20, k) * 0.6**k * 0.4 ** (20 - k) for k in range(6))
    assert lower_tail(5, 20, 0.6) == pytest.approx(exact)
    assert lower_tail(20, 20, 0.6) == pytest.approx(1.0)
    assert lower_tail(560, 1000, 0.6) == pytest.approx(lower_tail(560, 1001, 0.6), rel=0.15)


def test_a_mean_of_few_votes_is_everybodys() -> None:
    assert offset_of(Person(), 0.8, 20.0) == pytest.approx(0.0)
    assert offset_of(Person(num=20), 0.8, 20.0) == pytest.approx(0.4)
    assert offset_of(Person(), 0.8, 0.0) == 0.0
    # After many votes down, one more says nothing about the answer: 0 + offset is everybody's mean.
    assert offset_of(Person(num=10_000), 0.8, 20.0) == pytest.approx(0.8, abs=0.01)


def test_votes_come_back_when_the_window_ends_and_latecomers_belong_to_it() -> None:
    person = Person()
    for at in (100.0, 101.0):
        assert person.has_votes(at, 2, 60.0)
        person.spend(at, 60.0)
    assert not person.has_votes(159.0, 2, 60.0)
    assert not person.has_votes(50.0, 2, 60.0)
    assert person.has_votes(160.0, 2, 60.0)
    person.spend(160.0, 60.0)
    assert (person.window_started_at, person.window_num) == (160.0, 1)
