"""The questions of the release train's statistics, each answered by trains through the real `Answers`, `assess` and `decide`.

Every function takes the number of trains and gives figures: how many ended how, beside the naive rule at the same looks.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipelines.release.rules import FALSE_REFUSALS
from pipelines.release.statistics import compare as compare_sentinels
from pipelines.release.train.answers import Answers, LiftRow, TaskRule
from pipelines.release.train.assess import assess
from pipelines.release.train.lift import lift_of
from pipelines.release.train.metrics import canary_level, levels
from pipelines.release.train.sequences import time_for
from pipelines.release.train.strata import Standing
from runtime.train_settings import TrainSettings
from tests.worlds.trains.journey import TrainEnding, share_of, travel
from tests.worlds.trains.products import START, Product, TrainWorld

DEFAULTS = TrainSettings()
FAST_SETTINGS = TrainSettings(margin=0.06, guardrail_margin=0.1, tuned_units=1250, stage_units=50)
"""Trains of an eighth of the units: many of them can be run, and few units are the harder case for an asymptotic method."""
VERSIONS_A_RUN = 100
POINTS = 100.0
FROG_LOSS, FROG_VERSIONS, FROG_HOLDOUT = 0.002, 50, 1000
_OBSERVED = 0.43
"""The share of the variance that clusters explain, for an adjustment that then explains .40 of it."""
_SENTINELS, _GAINED = 200, 0.25
"""Of the sentinels that live fails, the candidate gains this share: 5 points."""


class TrainCase(NamedTuple):
    """A product with something strange in it, and how its trains should end."""

    wanted: tuple[str, ...]
    product: Product
    settings: TrainSettings = DEFAULTS


def ended(found: Sequence[TrainEnding]) -> dict[str, Any]:
    """How trains ended, and how the naive rule would have ended them."""
    kinds, naive = Counter(end.kind for end in found), Counter(end.naive for end in found)
    seconds = sorted(end.seconds for end in found)
    return {
        "trains": len(found),
        "ends": dict(kinds),
        "naive": dict(naive),
        "revoked": share_of(kinds["revoked"], len(found)),
        "arrived": share_of(kinds["arrived"], len(found)),
        "naive_revoked": share_of(naive["revoked"], len(found)),
        "median_minutes": seconds[len(seconds) // 2] / 60.0,
        "median_units": sorted(end.units for end in found)[len(found) // 2],
        "mean_looks": sum(end.looks for end in found) / len(found),
        "reasons": Counter(end.reason for end in found if end.kind != "arrived").most_common(2),
    }


def trains(product: Product, settings: TrainSettings, num: int, **how: Any) -> list[TrainEnding]:
    """Run trains with the seeds 0, 1, ..."""
    found = []
    for seed in range(num):
        found.append(travel(product, settings, seed, **how))
        if seed % 50 == 49:  # noqa: PLR2004 a line for each fifty
            print(f"  {seed + 1} of {num}", file=sys.stderr, flush=True)
    return found


def null_versions(num: int) -> dict[str, Any]:
    """Runs of 100 versions that are as good as the live one."""
    found = trains(Product(), FAST_SETTINGS, num, look=2.0, growth=0.03)
    size = min(VERSIONS_A_RUN, num)
    runs = [found[start : start + size] for start in range(0, num - size + 1, size)]
    false, naive = (
        sum(any(end.kind != "arrived" if ours else end.naive == "revoked" for end in run) for run in runs)
        for ours in (True, False)
    )
    return {
        **ended(found),
        "level": FAST_SETTINGS.level,
        "versions_a_run": size,
        "runs_with_a_false_rollback": share_of(false, len(runs)),
        "naive_runs_with_a_false_rollback": share_of(naive, len(runs)),
    }


def null_by_default(num: int) -> dict[str, Any]:
    """The same with the default settings: how many arrive, and when."""
    return ended(trains(Product(), DEFAULTS, num, growth=0.04))


def power(num: int) -> dict[str, Any]:
    """Whether a loss is found with 10,000 sessions of each arm at most, and what the page promises beforehand."""
    found: dict[str, Any] = {}
    for loss, share in ((0.05, 0.5), (0.02, 1.0), (0.1, 0.5)):
        half = DEFAULTS.model_copy(update={"stages": (0.5,), "patience_seconds": 1e6})
        level = levels(canary_level(half), num_tasks=1, num_primaries=1).primary
        ends = trains(
            Product(loss=loss),
            half,
            max(1, int(num * share)),
            look=25.0,
            growth=0.03,
            most_units=10_000,
            until="revoked",
        )
        found[f"-{POINTS * loss:g}"] = {
            **ended(ends),
            "promised_for_95": {
                f"explained {explained:g}": round(
                    time_for(loss, 0.16 * (1 - explained), level=level, tuned=half.tuned_units, power=0.95)
                )
                for explained in (0.0, 0.4)
            },
        }
    return found


def promises(num: int) -> dict[str, Any]:
    """A loss of 2 points with as many sessions of each arm as the page promises for 95%."""
    half = DEFAULTS.model_copy(update={"stages": (0.5,), "patience_seconds": 1e6})
    product = Product(loss=0.02, explained=_OBSERVED)
    early = trains(product, half, 1, look=25.0, growth=0.03, most_units=3_000, until="revoked")[0]
    promised = int(next(fact["found_units"] for fact in early.facts["metrics"] if fact["name"] == "reward"))
    found = trains(product, half, num, look=50.0, growth=0.04, most_units=promised, until="revoked")
    return {"promised_after_3000": promised, **ended(found)}


def speed(num: int) -> dict[str, Any]:
    """Seconds of one core to take in and to assess answers, the least of `num` times."""
    tasks = {"chat": TaskRule(has_primary=True, age_seconds=60.0)}
    figures = {}
    for size in (10_000, 100_000):
        rows = TrainWorld(Product(speaks=(0.7, 0.7)), 0).sessions(0.0, size / 19.0, 0.5, 4.0).rows
        times = list[tuple[float, float]]()
        for _ in range(min(num, 20)):
            answers, began = Answers(), time.process_time()
            answers.put(rows)
            put = time.process_time()
            assess(answers, tasks, DEFAULTS, START + size, Standing(3, START, START, "canary"))
            times.append((put - began, time.process_time() - put))
        figures[f"{len(rows):,} answers"] = {"put": min(times)[0], "assess": min(one for _, one in times)}
    return figures


def whole_trains(num: int) -> dict[str, Any]:
    """Versions that are worse, from the first stage to the end of the train."""
    return {
        f"-{POINTS * loss:g}": ended(trains(Product(loss=loss), DEFAULTS, num, growth=0.05))
        for loss in (0.02, 0.05, 0.1)
    }


_SLOW_STAGES = DEFAULTS.model_copy(update={"stage_seconds": 1800.0})
_PATIENT = DEFAULTS.model_copy(update={"patience_seconds": 3600.0})
_FEW_PEOPLE = DEFAULTS.model_copy(update={"stages": (0.05, 0.2, 0.5), "margin": 0.04, "patience_seconds": 3600.0})
CASES: dict[str, TrainCase] = {
    "daily cycle x ramp": TrainCase(("arrived",), Product(rate=5.0, swing=0.15, cycle=14_400.0), _SLOW_STAGES),
    "slow good news": TrainCase(("arrived",), Product(age=240.0, good_delay=120.0, bad_delay=10.0)),
    "slow bad news, -5": TrainCase(("revoked",), Product(age=240.0, good_delay=10.0, bad_delay=120.0, loss=0.05)),
    "silence in the canary": TrainCase(("withdrawn",), Product(speaks=(0.7, 0.5))),
    "only the unhappy fall silent": TrainCase(("withdrawn",), Product(speaks=(0.9, 0.9), sulks=(1.0, 0.4))),
    "10% of the canary's records lost": TrainCase(
        ("withdrawn",), Product(lost=(0.0, 0.1), lost_bad=(0.0, 0.1)), _PATIENT
    ),
    "-5, and half of the bad answers lost": TrainCase(
        ("withdrawn", "revoked"), Product(loss=0.05, lost_bad=(0.0, 0.5)), _PATIENT
    ),
    "graders out for five minutes": TrainCase(
        ("arrived",), Product(outage=(700.0, 1000.0)), DEFAULTS.model_copy(update={"stratum_seconds": 300.0})
    ),
    "graders out for the canary alone": TrainCase(
        ("withdrawn",),
        Product(outage=(0.0, 1e9), outage_arms=(0.0, 0.3)),
        _PATIENT,
    ),
    "clocks off: 20% of gateways -10 min, 5% +1 h": TrainCase(("arrived",), Product(skew={-600.0: 0.2, 3600.0: 0.05})),
    "the same clocks, -5": TrainCase(("revoked",), Product(loss=0.05, skew={-600.0: 0.2, 3600.0: 0.05})),
    "people come back: 10 sessions, ICC .2": TrainCase(
        ("arrived",), Product(rate=50.0, people=9000, alike=0.2, explained=0.0), _FEW_PEOPLE
    ),
    "the same people, and 30% of the canary's records lost": TrainCase(
        ("withdrawn",),
        Product(rate=50.0, people=6000, alike=0.2, explained=0.0, lost=(0.0, 0.3), lost_bad=(0.0, 0.3)),
        _FEW_PEOPLE,
    ),
    "the same people, -10": TrainCase(
        ("revoked",), Product(rate=50.0, people=9000, alike=0.2, explained=0.0, loss=0.1), _FEW_PEOPLE
    ),
}


def strange_products(num: int) -> dict[str, Any]:
    """Null versions, and two bad ones, in products with something strange in them."""
    found = {}
    for name, case in CASES.items():
        print(f" {name}", file=sys.stderr, flush=True)
        ends = trains(case.product, case.settings, num, look=5.0, growth=0.05)
        right = sum(end.kind in case.wanted for end in ends)
        found[name] = {"wanted": case.wanted, "right": share_of(right, num), **ended(ends)}
    return found


def better_on_sentinels(num: int) -> dict[str, Any]:
    """A version that gains 5 points on 200 sentinels and loses 5 with users: the gate cannot see it, the train must."""
    random = np.random.default_rng(0)
    passed = 0
    for _ in range(num):
        live = (random.random(_SENTINELS) < Product.reward).astype(float)
        mine = np.where(random.random(_SENTINELS) < _GAINED, 1.0, live)
        paired = compare_sentinels(mine.tolist(), live.tolist(), margin=0.0, alpha=FALSE_REFUSALS)
        passed += paired.p_worse > FALSE_REFUSALS
    return {"passed_the_gate": share_of(passed, num), **ended(trains(Product(loss=0.05), DEFAULTS, num, growth=0.05))}


def broken(num: int) -> dict[str, Any]:
    """A version with 30 points more faults, from the stage of 5% on: seconds until it is out, at 20 and 100 sessions per second."""
    found: dict[str, Any] = {}
    from_five = DEFAULTS.model_copy(update={"stages": (0.05, 0.2, 0.5)})
    for rate in (20.0, 100.0):
        for usual in (0.02, 0.1, 0.3):
            product = Product(rate=rate, faults={"misshapen": (usual, usual + 0.3)})
            ends = trains(product, from_five, num, look=1.0, growth=0.0)
            seconds = sorted(end.seconds for end in ends)
            found[f"{rate:g}/s, {usual:.0%} -> {usual + 0.3:.0%}"] = {
                **ended(ends),
                "median_seconds": seconds[num // 2],
                "p95_seconds": seconds[min(num - 1, int(0.95 * num))],
                "largest_share": max(end.share for end in ends),
            }
    return found


def boiling_frog(num: int) -> dict[str, Any]:
    """Fifty versions of -0.2 points each: every train lets almost all through, and the hold-out's lift shows the sum."""
    histories, points = [], (5, 10, 15, 20, 25, 30, 40, 50)
    rule = {"chat": TaskRule(has_primary=True, age_seconds=60.0)}
    for seed in range(num):
        random, reward, ends = np.random.default_rng(seed), 0.8, list[TrainEnding]()
        rows, lifts = list[LiftRow](), list[dict[str, Any]]()
        for version in range(1, FROG_VERSIONS + 1):
            ends.append(
                travel(Product(reward=reward, loss=FROG_LOSS), DEFAULTS, 1000 * seed + version, look=5.0, growth=0.08)
            )
            if ends[-1].kind == "arrived":
                reward -= FROG_LOSS
            at = START + 3600.0 * version
            for arm, mean in (("holdout", 0.8), ("live", reward)):
                good = random.random(FROG_HOLDOUT) < mean
                rows += [
                    LiftRow(arm, "chat", f"{arm} {version} {place}", "user", "t1", at, float(value))
                    for place, value in enumerate(good.tolist())
                ]
            if version in points:
                lift = lift_of(rows, rule, DEFAULTS, at + 3000.0)
                lifts.append(
                    {
                        "version": version,
                        "true": reward - 0.8,
                        **{name: lift[name] for name in ("difference", "low", "high")},
                    }
                )
        histories.append({"arrived": sum(end.kind == "arrived" for end in ends), "end": reward, "lift": lifts})
        print(f"  history {seed + 1} of {num}: {histories[-1]['arrived']} arrived", file=sys.stderr, flush=True)
    return {"histories": histories}


def budget(measured: float | None = None) -> dict[str, Any]:
    """False rollbacks of a year: the most that the level allows, and as measured."""
    return {
        f"{trains_a_day:g} trains a day": {
            f"level {level:.2%}": round(365 * trains_a_day * level, 2) for level in (0.0005, 0.002, 0.01)
        }
        | ({} if measured is None else {"measured": round(365 * trains_a_day * measured, 2)})
        for trains_a_day in (1, 4, 20)
    }


PARTS: dict[str, tuple[Callable[[int], dict[str, Any]], int]] = {
    "null": (null_versions, 6000),
    "default": (null_by_default, 200),
    "power": (power, 200),
    "promise": (promises, 100),
    "speed": (speed, 5),
    "worse": (whole_trains, 60),
    "strange": (strange_products, 40),
    "sentinels": (better_on_sentinels, 60),
    "broken": (broken, 200),
    "frog": (boiling_frog, 4),
}
"""By name: what is run, and how many trains of each kind."""
