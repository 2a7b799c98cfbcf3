"""A product with a known truth: who comes when, what each answer is worth, and what of it reaches the train.

The reward of an answer is 0 or 1. Its mean is that of the prompt's cluster, so that clusters explain the share `explained` of its variance;
a canary that is worse by d loses each success with probability d / mean. Times are seconds since the departure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from contracts.arms import control_fraction
from contracts.assignments import CANARY, LIVE
from contracts.draws import DrawnVersion, LoggedDraw
from contracts.records import Generation
from contracts.sampling import Sampling, Span
from pipelines.release.train.answers import AnswerRow, grace_seconds
from pipelines.release.train.reading.sampling import Evidence, evidence_of

Floats = NDArray[np.float64]
START = 1_800_000_000.0
LEARNING_SHARE = 0.05
FAST = ("truncated", "refuses", "misshapen")
_CLUSTERS, _FINE = 200, 200
_VERSIONS = {LIVE: 4, CANARY: 5}
_SAMPLING = Sampling(temperature=1.0, max_tokens=16)


@dataclass(frozen=True)
class Product:
    """The truth. Pairs are of live and of the canary."""

    rate: float = 20.0
    """Sessions per second."""
    reward: float = 0.8
    loss: float = 0.0
    """How much less reward the canary gets."""
    explained: float = 0.4
    speaks: tuple[float, float] = (1.0, 1.0)
    """Of those whose answer was good; see `sulks`."""
    sulks: tuple[float, float] = (1.0, 1.0)
    """Of those whose answer was bad: how much more often they speak."""
    faults: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    fault: float = 0.02
    age: float = 60.0
    good_delay: float = 10.0
    """Mean seconds until good news is known; `bad_delay` of bad news."""
    bad_delay: float = 10.0
    swing: float = 0.0
    """Of the reward's mean over a cycle of `cycle` seconds, up and down; the train departs at the best time."""
    cycle: float = 86_400.0
    people: int = 0
    """0: each session is a new person's."""
    alike: float = 0.0
    """Intraclass correlation of a person's sessions."""
    lost: tuple[float, float] = (0.0, 0.0)
    lost_bad: tuple[float, float] = (0.0, 0.0)
    """Of the records of bad answers."""
    outage: tuple[float, float] = (0.0, 0.0)
    outage_arms: tuple[float, float] = (1.0, 1.0)
    skew: Mapping[float, float] = field(default_factory=dict)
    """Seconds by which clocks are ahead, and the share of the gateways that have them."""


class TrainSession(NamedTuple):
    """What a naive rule sees of a session: its arm, its reward, and when that was known."""

    is_canary: Floats
    reward: Floats
    known_at: Floats


class SessionBatch(NamedTuple):
    """The sessions of a time, for the train and for a naive rule."""

    rows: list[AnswerRow]
    sessions: TrainSession


class TrainWorld:
    """Makes the sessions of a product, seeded."""

    def __init__(self, product: Product, seed: int) -> None:
        self._product = product
        self._random = np.random.default_rng(seed)
        self._num = 0
        self._clusters = self._spread_out(product.explained, _CLUSTERS)
        people = max(1, product.people)
        self._likes = self._spread_out(product.alike, people)
        self._places = self._random.random((2, people))

    def sessions(self, begin: float, end: float, share: float, ratio: float) -> SessionBatch:
        """The sessions between two times, while the canary has the share `share`."""
        product, random = self._product, self._random
        num = int(random.poisson(product.rate * (1.0 - LEARNING_SHARE) * (end - begin)))
        person = random.integers(0, product.people, num) if product.people else np.zeros(num, np.int64)
        places = self._places[:, person] if product.people else random.random((2, num))
        arm = (places[0] < share).astype(np.int64)
        at = np.sort(random.uniform(begin, end, num))
        cluster = random.integers(0, _CLUSTERS, num)
        mean = self._likes[person] if product.people else self._clusters[cluster]
        mean = np.clip(mean + product.swing * np.cos(2.0 * np.pi * at / product.cycle), 0.0, 1.0)
        good = random.random(num) < mean
        good &= (arm == 0) | (random.random(num) >= product.loss / product.reward)
        speaks = np.where(good, 1.0, np.array(product.sulks)[arm]) * np.array(product.speaks)[arm]
        known = at + random.exponential(np.where(good, product.good_delay, product.bad_delay))
        known[random.random(num) >= speaks] = np.inf
        kept = random.random(num) >= np.where(good, np.array(product.lost)[arm], np.array(product.lost_bad)[arm])
        is_compared = kept & ((arm == 1) | (places[1] < control_fraction(share, ratio)))
        # Where clocks are off, release itself chooses the controls.
        places_of = np.flatnonzero(kept if product.skew else is_compared)
        rows = self._rows(places_of, at, arm, good, known, person, cluster, share)
        rows = [row for row in rows if _is_compared(row, share, ratio)] if product.skew else rows
        return SessionBatch(rows, TrainSession(arm[kept] == 1, good[kept].astype(float), known[kept]))

    def _rows(self, places: NDArray[np.int64], *columns: Any) -> list[AnswerRow]:
        at, arm, good, known, person, cluster, share = columns
        product, random = self._product, self._random
        num = len(places)
        arms, at, good, known = arm[places], at[places], good[places], known[places]
        person, cluster = person[places], cluster[places]
        facts = {
            name: (random.random(num) < np.array(product.faults.get(name, (product.fault,) * 2))[arms]).astype(float)
            for name in FAST
        }
        facts |= {"tokens": random.normal(4.0, 0.6, num), "seconds": random.normal(0.0, 0.4, num)}
        heard = known - at <= product.age
        facts["heard"] = heard.astype(float)
        failed = (
            (product.outage[0] <= at)
            & (at < product.outage[1])
            & (random.random(num) < np.array(product.outage_arms)[arms])
        )
        clock = at.copy()
        drawn = random.random(num)
        for seconds, part in product.skew.items():
            clock[drawn < part] += seconds
            drawn = np.where(drawn < part, 1.0, drawn - part)
        probability = (1.0 - LEARNING_SHARE) * np.where(arms == 1, share, 1.0 - share)
        names, first = tuple(facts), self._num
        self._num += num
        told = np.stack(tuple(facts.values()), axis=1).tolist() if num else []
        late = product.age + grace_seconds(product.age)
        return [
            AnswerRow(
                f"a{first + place}",
                "canary" if is_canary else "live",
                "chat",
                f"p{who}" if product.people else f"s{first + place}",
                "user",
                "" if product.people else f"c{group}",
                "t1",
                chance,
                START + when,
                dict(zip(names, values, strict=True)),
                float(is_good) if is_heard and not is_failed else None,
                "unscored" if is_failed else "scored" if is_heard else "unlabelled",
                START + when + late,
            )
            for place, (is_canary, who, group, chance, when, values, is_good, is_heard, is_failed) in enumerate(
                zip(
                    arms.tolist(), person.tolist(), cluster.tolist(), probability.tolist(), clock.tolist(), told,
                    good.tolist(), heard.tolist(), failed.tolist(), strict=True,
                )
            )
        ]  # fmt: skip

    def _spread_out(self, correlation: float, num: int) -> Floats:
        """Means whose variance is the share `correlation` of that of an answer: beta-binomial."""
        mean = self._product.reward
        if correlation <= 0.0:
            return np.full(num, mean)
        total = 1.0 / correlation - 1.0
        # Means of equal parts of the distribution, so that every seed has the same truth.
        fine = np.sort(np.random.default_rng(0).beta(mean * total, (1.0 - mean) * total, _FINE * num))
        means: Floats = fine.reshape(num, _FINE).mean(axis=1)
        return means


def _is_compared(row: AnswerRow, share: float, ratio: float) -> bool:
    """What release decides about the record of an answer, whose gateway has the clock of the row."""
    arm = CANARY if row.arm == "canary" else LIVE
    draw = LoggedDraw(row.unit, "user", _VERSIONS[arm], canary=DrawnVersion(_VERSIONS[CANARY], share))
    record = Generation(
        completion_id=row.key,
        choice=0,
        tenant="",
        policy="",
        task=row.task,
        task_hash="",
        purpose="user",
        arm=arm,
        arm_probability=row.probability,
        draw=draw,
        spans=(Span(0, draw.version),),
        sampling=_SAMPLING,
        finish_reason="stop",
        created_at=row.at,
        finished_at=row.at,
        engine="",
        dtype="",
        body=b"",
    )
    return isinstance(evidence_of(record, {row.task}, ratio, b""), Evidence)
