"""Crowds whose true opinion is known: what the naive estimate says, and what ours does.

Bias is the mean error over seeded repetitions; its standard error is asserted too, so that a pass means something.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

import numpy as np
import pytest

from contracts.draws import is_asked
from rewards.signals.delay import (
    ANSWERS,
    Curve,
    bucket_of,
    cohort_of,
    curve_of,
    edges_of,
)
from rewards.signals.repository import delays_of
from rewards.signals.silence import Tally, expected_of
from rewards.signals.votes import ScoredSample
from rewards.signals.weighing import Weighing
from runtime.database import Database
from tests.unit.rewards.signals.crowds import NOW, a_task, an_item, weigh, weighted_mean

pytestmark = pytest.mark.slow  # seconds, for what changes rarely: CI runs it

GOOD, TIMES, ANSWERS_EACH = 0.6, 400, 20_000
CONTENT_SPEAK_MORE, ANGRY_SPEAK_MORE = (0.02, 0.10), (0.10, 0.02)
HOUR, DAY = 3600.0, 86_400.0


def bias_of(estimates: list[float], truth: float) -> tuple[float, float]:
    """Mean error and its standard error."""
    errors = np.asarray(estimates, np.float64) - truth
    return float(errors.mean()), float(errors.std(ddof=1) / math.sqrt(len(errors)))


@pytest.mark.parametrize("speaks", [CONTENT_SPEAK_MORE, ANGRY_SPEAK_MORE])
def test_silence_that_depends_on_the_opinion_is_corrected(speaks: tuple[float, float]) -> None:
    dice = np.random.default_rng(1)
    naive, asked = [], []
    for _ in range(TIMES):
        good = dice.random(ANSWERS_EACH) < GOOD
        spoke = dice.random(ANSWERS_EACH) < np.where(good, speaks[1], speaks[0])
        naive.append(good[spoke].mean())
        # One in fifty is asked, and answers: what is expected of the silent.
        was_asked = dice.random(ANSWERS_EACH) < 0.02
        tally = Tally(int(was_asked.sum()), int(was_asked.sum()), float(good[was_asked].sum()))
        expected = expected_of({(4, 1): tally}, 4, {})
        assert expected is not None
        asked.append(expected.value)
    assert abs(bias_of(naive, GOOD)[0]) >= 0.1
    bias, error = bias_of(asked, GOOD)
    assert abs(bias) <= 0.01
    assert error <= 0.004


def test_volunteers_weigh_nothing_where_others_are_asked(database: Database) -> None:
    dice = np.random.default_rng(3)
    items = []
    for number in range(50_000):
        is_good = bool(dice.random() < GOOD)
        asked = is_asked(f"chatcmpl-{number:08d}", 0.2)
        if asked or dice.random() < (0.02, 0.3)[is_good]:
            items.append(an_item(number, f"u{number}", float(is_good), ask_probability=0.2))
    thumbs = {"means": "thumbs", "labels": {"up": 1.0, "down": 0.0}, "type": "label", "window_seconds": 600}
    weighing = Weighing({"chat": a_task(asking={"probability": 0.2}, signals={"thumbs": thumbs})}, lambda: NOW)
    weights = weigh(database, weighing, items)
    assert abs(float(np.mean([item.reward or 0.0 for item in items])) - GOOD) >= 0.1
    assert abs(weighted_mean(weights) - GOOD) <= 0.01
    assert {weight.reason for weight in weights if weight.value == 0.0} == {"not_asked"}


WINDOW, FIRST, MEAN_DELAY, COMES = 2 * DAY, HOUR, 6 * HOUR, 0.3
ALL_IN = 1 - math.exp(-WINDOW / MEAN_DELAY)
IN_AFTER_FIRST = (1 - math.exp(-FIRST / MEAN_DELAY)) / ALL_IN


def observed_curve(dice: np.random.Generator, num: int, now: float) -> tuple[Curve, float]:
    """The curve from what is known at `now`, and the naive share of signals among the answers given by then."""
    answered = dice.random(num) * now
    delays = np.where(dice.random(num) < COMES / ALL_IN, dice.exponential(MEAN_DELAY, num), math.inf)
    known = answered + delays <= now
    counts: dict[tuple[int, int], int] = {}
    for at in answered[now - answered >= FIRST]:
        key = (cohort_of(at, WINDOW), ANSWERS)
        counts[key] = counts.get(key, 0) + 1
    for at, delay in zip(answered[known], delays[known], strict=True):
        if delay <= WINDOW:
            key = (cohort_of(at, WINDOW), bucket_of(delay))
            counts[key] = counts.get(key, 0) + 1
    curve = curve_of([(*key, value) for key, value in counts.items()], now, WINDOW, FIRST)
    old = now - answered >= FIRST
    in_first = (delays <= FIRST) & old
    return curve, float(in_first.sum() / old.sum())


def test_a_rate_of_a_short_window_is_corrected_by_delays_of_the_same_data() -> None:
    dice = np.random.default_rng(4)
    naive, corrected, shares, completions = [], [], [], []
    for _ in range(20):
        curve, seen = observed_curve(dice, 5_000, 2.5 * DAY)
        completions.append(curve.completion(FIRST))
        naive.append(seen)
        corrected.append(seen / completions[-1])
        shares.append(float(curve.arrived[-1]))
    assert bias_of(naive, COMES)[0] <= -0.1
    for estimates, truth in ((corrected, COMES), (shares, COMES), (completions, IN_AFTER_FIRST)):
        bias, error = bias_of(estimates, truth)
        assert abs(bias) <= 0.01
        assert error <= 0.004


def test_answers_too_young_to_be_judged_do_not_count_as_silent() -> None:
    dice = np.random.default_rng(5)
    curve, _ = observed_curve(dice, 40_000, WINDOW / 2)  # nobody is as old as the window
    observed = 1 - math.exp(-curve.observed_seconds / MEAN_DELAY)
    assert curve.observed_seconds < WINDOW
    assert curve.arrived[-1] == pytest.approx(COMES / ALL_IN * observed, abs=0.01)


def slow_thumbs(number: int, answered: float, delay: float) -> Iterator[ScoredSample]:
    """The revisions of an answer: at an hour or when the signal comes, when it comes later, and when it never did."""
    about = {"finished_at": answered, "completion_id": f"chatcmpl-{number:08d}"}
    revision = 1
    if delay > FIRST:
        at = answered + FIRST
        yield an_item(number, None, 0.0, revision=1, provisional=True, closed_at=at, at=at, **about)
        revision = 2
    if delay <= WINDOW:
        at = answered + delay
        yield an_item(number, f"u{number}", 1.0, revision=revision, closed_at=at, at=at, **about)
    else:
        at = answered + WINDOW
        yield an_item(number, None, 0.0, revision=revision, closed_at=at, at=at, **about)


def slow_task() -> dict[str, object]:
    signals = {"thumbs": {"type": "label", "labels": {"up": 1.0, "down": 0.0}, "window_seconds": WINDOW}}
    return {"signals": signals, "window_seconds": FIRST, "silence": 0.0}


def test_the_worker_learns_the_delay_from_its_stream_and_corrects_what_it_applied(database: Database) -> None:
    dice, num = np.random.default_rng(6), 6_000
    answered = NOW + np.sort(dice.random(num)) * 5 * DAY
    delays = np.where(dice.random(num) < COMES / ALL_IN, dice.exponential(MEAN_DELAY, num), math.inf)
    stories = [slow_thumbs(number, answered[number], delays[number]) for number in range(num)]
    items = list(heapq.merge(*stories, key=lambda item: item.closed_at))
    known = [item for item in items if item.closed_at <= NOW + 5 * DAY]
    weighing = Weighing({"chat": a_task(**slow_task())}, lambda: NOW)
    weights = weigh(database, weighing, known)
    young = [weight.value for item, weight in zip(known, weights, strict=True) if item.provisional]
    assert young[0] == pytest.approx(FIRST / WINDOW)  # nothing is known: as if delays were uniform
    assert young[-1] == pytest.approx(IN_AFTER_FIRST, abs=0.03)
    with database.snapshot() as connection:
        curve = curve_of(delays_of(connection, {"chat"})["chat", "thumbs"], NOW + 5 * DAY, WINDOW, FIRST)
    assert curve.arrived[-1] == pytest.approx(COMES, abs=0.01)

    rest = weigh(database, weighing, items[len(known) :])
    applied: dict[str, list[tuple[float, float]]] = {}
    for item, weight in zip(items, weights + rest, strict=True):
        applied.setdefault(item.key, [(0.0, 0.0)]).append((weight.value, weight.reward or 0.0))
    # Each revision applies the difference to the one before.
    products = {key: [weight * reward for weight, reward in steps] for key, steps in applied.items()}
    totals = {key: sum(map(float.__sub__, steps[1:], steps)) for key, steps in products.items()}
    last = {item.key: item.reward for item in items}
    assert totals == pytest.approx(last)
    assert sum(totals.values()) == (delays <= WINDOW).sum()


def test_edges_end_at_the_window() -> None:
    edges = edges_of(WINDOW)
    assert edges[-1] == WINDOW
    assert bucket_of(WINDOW) == len(edges) - 1
    assert all(edges[bucket_of(seconds)] >= seconds for seconds in (0.0, 0.5, 1.0, 2.0, 59.0, HOUR, DAY))


ATTACKERS, ATTACKS, HONEST, TRUE_SHARE = 20, 500, 10_000, 0.8


def attacked(dice: np.random.Generator, days: float, num_clusters: int = 1) -> list[ScoredSample]:
    """10,000 honest people who vote once, 8,000 of them up; 20 attackers who vote down 500 times each."""
    who = np.concatenate([np.arange(HONEST), HONEST + np.repeat(np.arange(ATTACKERS), ATTACKS)])
    up = np.concatenate([np.arange(HONEST) % 5 != 0, np.zeros(ATTACKERS * ATTACKS, bool)])
    at = NOW + np.sort(dice.random(len(who))) * days * DAY
    return [
        an_item(number, f"u{who[place]}", float(up[place]), at=at[number], cluster=f"c{number % num_clusters}")
        for number, place in enumerate(dice.permutation(len(who)))
    ]


@pytest.mark.parametrize(
    ("days", "num_clusters", "window_days"), [(0.5, 1, 1), (7, 1, 7), (7, 50, 7)],
    ids=["in a morning", "over a week", "over a week and fifty kinds of prompt"],
)  # fmt: skip
def test_twenty_attackers_do_not_move_what_ten_thousand_people_say(
    database: Database, days: float, num_clusters: int, window_days: float
) -> None:
    items = attacked(np.random.default_rng(7), days, num_clusters)
    trust = {"votes": 5, "window_seconds": window_days * DAY}
    weights = weigh(database, Weighing({"chat": a_task(trust=trust)}, lambda: NOW), items)
    assert np.mean([item.reward for item in items]) <= TRUE_SHARE - 0.1
    assert abs(weighted_mean(weights) - TRUE_SHARE) <= 0.01
    assert {weight.reason for weight in weights} == {"", "influence_cap"}


def test_with_the_default_cap_the_mean_of_samples_moves_by_three_hundredths(database: Database) -> None:
    items = attacked(np.random.default_rng(8), 0.5)
    weights = weigh(database, Weighing({"chat": a_task()}, lambda: NOW), items)
    assert weighted_mean(weights) == pytest.approx(8_000 / 10_400)


def test_invented_identities_have_a_vote_each(database: Database) -> None:
    """The limit of every cap: a thousand names with one vote move as much as a thousand people."""
    honest = [an_item(number, f"u{number}", float(number % 5 != 0)) for number in range(4_000)]
    sybils = [an_item(10_000 + number, f"sybil-{number}", 0.0) for number in range(1_000)]
    weights = weigh(database, Weighing({"chat": a_task()}, lambda: NOW), honest + sybils)
    assert weighted_mean(weights) == pytest.approx(3_200 / 5_000)


def test_a_brigade_of_new_names_is_a_burst_where_votes_have_a_history(database: Database) -> None:
    """A day of honest votes, then a thousand names vote down about one kind of prompt within ten minutes."""
    dice = np.random.default_rng(9)
    at = NOW + np.sort(dice.random(5_000)) * DAY
    honest = [
        an_item(number, f"u{number}", float(number % 5 != 0), at=at[number], cluster=f"c{number % 4}")
        for number in range(5_000)
    ]
    brigade = [
        an_item(10_000 + number, f"sybil-{number}", 0.0, at=NOW + DAY + 0.5 * number, cluster="c1")
        for number in range(1_000)
    ]
    rule = {"burst": {"bucket_seconds": 600}}
    weights = weigh(database, Weighing({"chat": a_task(trust=rule)}, lambda: NOW), honest + brigade)
    assert [weight.reason for weight in weights[:5_000]] == [""] * 5_000
    stopped = [weight.reason for weight in weights[5_000:]].count("burst")
    assert stopped >= 950
    assert abs(weighted_mean(weights) - TRUE_SHARE) <= 0.01


def test_who_contradicts_audits_is_suspended_and_the_honest_are_not(database: Database) -> None:
    """One in ten votes is audited; attackers always vote down, honest people are right four times in five."""
    dice = np.random.default_rng(10)
    items = []
    for number in range(12_000):
        good, who = bool(dice.random() < TRUE_SHARE), int(dice.integers(20))
        said = good if dice.random() < 0.8 else not good
        reward = float(said) if who >= 4 else 0.0
        audited = float(good) if dice.random() < 0.1 else None
        items.append(an_item(number, f"u{who}", reward, at=NOW + number, audited=audited))
    weights = weigh(database, Weighing({"chat": a_task(trust={"votes": 10_000})}, lambda: NOW), items)
    suspended = {item.signals[0].submitter.id for item, weight in zip(items, weights, strict=True) if weight.reason}
    assert suspended == {"u0", "u1", "u2", "u3"}
    assert {weight.reason for weight in weights} == {"", "suspended_submitter"}
