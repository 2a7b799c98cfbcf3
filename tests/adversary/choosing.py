"""Clients that choose their units: what one party of a home can do to trains of versions whose worth is known.

usage: python -m tests.adversary.choosing [--trains N] [--home NAME ...] [--only NAME ...] [--json] [--quick]

Each train runs twice on the same honest people, once alone and once beside an attacker who sends a tenth of all requests by the key of one
tenant. It sees the version of each answer, so after one try it knows the arm of a unit; which units of live are compared nobody tells it. A
verdict is *moved* if the two trains end differently. `before`: the same with all answers of one party, as trains compared them until
answers knew who asked.

In: nothing. Out: a table, and a dated file; with --json one object instead. Status 1 if more than a hundredth of the verdicts moved.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.report import end_with, print_table
from contracts.arms import control_fraction
from pipelines.release.train.answers import AnswerRow, Answers, TaskRule, grace_seconds
from pipelines.release.train.assess import assess
from pipelines.release.train.rules import decide
from pipelines.release.train.strata import Standing
from runtime.train_settings import TrainSettings
from tests.worlds.trains.journey import ENDS, share_of
from tests.worlds.trains.products import FAST, LEARNING_SHARE, START, Product, TrainWorld

PART = 0.1
"""The attacker's share of all requests."""
SETTINGS = TrainSettings(
    stages=(0.01, 0.05, 0.2, 0.5),
    margin=0.06,
    guardrail_margin=0.1,
    tuned_units=1250,
    stage_units=50,
    harmed_seconds=120.0,
)
GOOD, BAD = Product(), Product(loss=0.1)
ATTACKER = ("tenant x", "key x")
HOMES: Mapping[str, tuple[tuple[tuple[str, str], float], ...]] = {
    "1 tenant": ((("tenant a", "key a"), 1.0),),
    "3 tenants": ((("tenant a", "key a"), 0.5), (("tenant b", "key b"), 0.5)),
    "10 tenants": tuple(((f"tenant {number}", f"key {number}"), 1.0 / 9.0) for number in range(9)),
}
"""Who asks beside the attacker, and for which share. In a home of one tenant the attacker has another key of it."""
_MOST_MOVED, _MOST_SECONDS = 0.01, 3600.0
_LOOK, _GROWTH = 5.0, 0.08


class Known(NamedTuple):
    """What the attacker knows of a unit that it tried, and whether release compares it."""

    name: str
    place: float
    """Of its draw: it is of the canary while this is below the canary's share."""
    control: float


class Ask(NamedTuple):
    """One request of the attacker: a unit, and what it does with each arm's answer."""

    unit: Known
    likes: Mapping[bool, float]
    """The reward that it gives, by whether the canary answered."""
    fault: Mapping[bool, float]


class Attacker:
    """Tries units, remembers the arms that it saw, and asks for a tenth of all answers."""

    def __init__(self, seed: int, choose: Choose) -> None:
        self.random = np.random.default_rng(seed)
        self.tried: list[Known] = []
        self._choose = choose

    def asks(self, num: int, share: float) -> Iterator[Ask]:
        """So many requests while the canary has this share."""
        return self._choose(self, num, share)

    def new(self, below: float = 1.0) -> Known:
        """A unit that was never seen. `below`: of its place, if it could be computed."""
        place, control = self.random.random(2).tolist()
        self.tried.append(Known(f"x{len(self.tried)}", below * place, control))
        return self.tried[-1]

    def of_canary(self, share: float) -> list[Known]:
        """The units that the canary answered."""
        return [unit for unit in self.tried if unit.place < share]

    def of_live(self, share: float) -> list[Known]:
        """The units that live answered."""
        return [unit for unit in self.tried if unit.place >= share]


Choose = Callable[[Attacker, int, float], Iterator[Ask]]
_AGAINST, _FOR = {True: 0.0, False: 1.0}, {True: 1.0, False: 0.0}
_NO_FAULT, _FAULT = {True: 0.0, False: 0.0}, {True: 1.0, False: 0.0}


def _judging(likes: Mapping[bool, float], fault: Mapping[bool, float]) -> Choose:
    """Half of the units are new; the others are those that the canary answered, and as many of live."""

    def choose(attacker: Attacker, num: int, share: float) -> Iterator[Ask]:
        known = [attacker.of_canary(share), attacker.of_live(share)]
        for number in range(num):
            back = known[number // 2 % 2] if number % 2 else []
            unit = back[int(attacker.random.integers(len(back)))] if back else attacker.new()
            yield Ask(unit, likes, fault)

    return choose


def _skewing(attacker: Attacker, num: int, share: float) -> Iterator[Ask]:
    """It tries units until the last stage. Then those come back that the canary answered before, and no other."""
    *_, before, last = SETTINGS.stages
    known = attacker.of_canary(before) if share >= last else []
    for number in range(num):
        yield Ask(known[number % len(known)] if known else attacker.new(), {True: 0.8, False: 0.8}, _NO_FAULT)


def _computing(attacker: Attacker, num: int, share: float) -> Iterator[Ask]:
    """It knows the draw, as everybody did while salts were public: all its units are of the canary from the first stage on."""
    del share
    for _ in range(num):
        yield Ask(attacker.new(SETTINGS.stages[0]), {True: 0.8, False: 0.8}, _NO_FAULT)


def _filling(attacker: Attacker, num: int, share: float) -> Iterator[Ask]:
    """All requests come from the first three units that the canary answered."""
    for _ in range(num):
        known = attacker.of_canary(share)[:3]
        unit = known[int(attacker.random.integers(len(known)))] if known else attacker.new()
        yield Ask(unit, _AGAINST, _NO_FAULT)


def _whispering(likes: Mapping[bool, float]) -> Choose:
    """New units alone, as an honest client has them, with judgements that differ by 15 points."""

    def choose(attacker: Attacker, num: int, share: float) -> Iterator[Ask]:
        del share
        for _ in range(num):
            yield Ask(attacker.new(), likes, _NO_FAULT)

    return choose


STRATEGIES: Mapping[str, tuple[Product, Choose]] = {
    "votes against a good canary": (GOOD, _judging(_AGAINST, _NO_FAULT)),
    "makes faults with a good canary": (GOOD, _judging(_AGAINST, _FAULT)),
    "votes for a bad canary": (BAD, _judging(_FOR, _NO_FAULT)),
    "comes back with one arm alone": (GOOD, _skewing),
    "knows the draw, comes with one arm alone": (GOOD, _computing),
    "fills a good canary": (GOOD, _filling),
    "whispers against a good canary": (GOOD, _whispering({True: 0.72, False: 0.87})),
    "whispers for a bad canary": (BAD, _whispering({True: 0.87, False: 0.72})),
}


def rows_of(attacker: Attacker, begin: float, end: float, share: float, product: Product) -> list[AnswerRow]:
    """What of the attacker's requests between two times reaches the train."""
    random, made = attacker.random, list[AnswerRow]()
    num = int(random.poisson(PART / (1.0 - PART) * product.rate * (1.0 - LEARNING_SHARE) * (end - begin)))
    for number, ask in enumerate(attacker.asks(num, share)):
        is_canary = ask.unit.place < share
        if not is_canary and ask.unit.control >= control_fraction(share, SETTINGS.control_ratio):
            continue
        at = START + begin + (end - begin) * (number + 0.5) / num
        facts = {name: float(random.random() < max(product.fault, ask.fault[is_canary])) for name in FAST}
        facts |= {"tokens": random.normal(4.0, 0.6), "seconds": random.normal(0.0, 0.4), "heard": 1.0}
        arm, chance = ("canary", share) if is_canary else ("live", 1.0 - share)
        made.append(
            AnswerRow(
                f"x{begin:.3f}-{number}",
                arm,
                "chat",
                f"{ask.unit.name}",
                "user",
                "",
                "t1",
                (1.0 - LEARNING_SHARE) * chance,
                at,
                facts,
                float(random.random() < ask.likes[is_canary]),
                "scored",
                at + product.age + grace_seconds(product.age),
                *ATTACKER,
            )
        )
    return made


def end_of(
    home: str, product: Product, seed: int, attacker: Attacker | None, *, knows_parties: bool = True
) -> tuple[str, str]:
    """How one train ends, and why. `knows_parties` False: as trains compared before."""
    world, answers, asked_by = TrainWorld(product, seed), Answers(), np.random.default_rng(seed + 1_000_000)
    tasks = {"chat": TaskRule(has_primary=True, age_seconds=product.age)}
    parties, shares = zip(*HOMES[home], strict=True)
    stage, stage_at, state, now = 0, 0.0, "canary", 0.0
    while now < _MOST_SECONDS:
        pause = max(_LOOK, _GROWTH * now)
        share = SETTINGS.stages[stage]
        rows = world.sessions(now, now + pause, share, SETTINGS.control_ratio).rows
        places = asked_by.choice(len(parties), len(rows), p=shares)
        rows = [
            row._replace(tenant=parties[place][0], api_key=parties[place][1])
            for row, place in zip(rows, places.tolist(), strict=True)
        ]
        if attacker is not None:
            rows += rows_of(attacker, now, now + pause, share, product)
        if home == "1 tenant":
            rows = [row._replace(tenant="tenant a") for row in rows]
        if not knows_parties:
            rows = [row._replace(tenant="", api_key="") for row in rows]
        answers.put(rows)
        now += pause
        standing = Standing(stage, START + stage_at, START, state)
        move = decide(standing, assess(answers, tasks, SETTINGS, START + now, standing), SETTINGS, START + now)
        if move.kind in ENDS:
            return ENDS[move.kind], move.reason
        if move.kind == "advance":
            stage, stage_at = stage + 1, now
        state = {"stop": "stopped", "go_on": "canary"}.get(move.kind, state)
    return "undecided", ""


@functools.cache
def _end_alone(home: str, loss: float, seed: int) -> tuple[str, str]:
    return end_of(home, Product(loss=loss), seed, None)


def moved(home: str, name: str, num: int) -> dict[str, Any]:
    """How many of `num` verdicts the attacker moves, now and as trains compared before."""
    product, choose = STRATEGIES[name]
    ends: dict[str, list[tuple[str, str]]] = {
        "alone": [_end_alone(home, product.loss, seed) for seed in range(num)],
        "attacked": [end_of(home, product, seed, Attacker(seed, choose)) for seed in range(num)],
        "before": [end_of(home, product, seed, Attacker(seed, choose), knows_parties=False) for seed in range(num)],
    }
    return {
        **{kind: dict(Counter(end for end, _ in found)) for kind, found in ends.items()},
        **{
            f"moved_{kind}": share_of(
                sum(one[0] != other[0] for one, other in zip(ends["alone"], ends[kind], strict=True)), num
            )
            for kind in ("attacked", "before")
        },
        "reasons": Counter(
            reason for (end, _), (other, reason) in zip(ends["alone"], ends["attacked"], strict=True) if end != other
        ).most_common(2),
    }


def main(arguments: Sequence[str]) -> int:
    """Run the chosen homes and strategies, print, and say whether the promise holds."""
    parser = argparse.ArgumentParser(prog="python -m tests.adversary.choosing")
    parser.add_argument("--trains", type=int, default=20, help="of each home and strategy")
    parser.add_argument("--home", action="append", choices=list(HOMES))
    parser.add_argument("--only", action="append", choices=list(STRATEGIES))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="two trains of each kind, no file")
    options = parser.parse_args(arguments)
    found, began = dict[str, Any](), time.process_time()
    for home in options.home or HOMES:
        for name in options.only or STRATEGIES:
            found[f"{home}: {name}"] = moved(home, name, 2 if options.quick else options.trains)
            print(home, name, found[f"{home}: {name}"], file=sys.stderr, flush=True)
    num = {
        kind: share_of(
            sum(one[f"moved_{kind}"]["num"] for one in found.values()),
            sum(one[f"moved_{kind}"]["of"] for one in found.values()),
        )
        for kind in ("attacked", "before")
    }
    figures = {"figures": found, "moved": num, "cpu_seconds": round(time.process_time() - began, 1)}
    status = end_with(figures, options, _show, "release-choosing")
    return max(status, 0 if num["attacked"]["share"] <= _MOST_MOVED else 1)


def _show(figures: Any) -> None:
    rows = [
        [name, one["moved_attacked"]["of"], one["moved_attacked"]["num"], one["moved_before"]["num"], one["attacked"]]
        for name, one in figures["figures"].items()
    ]
    total = figures["moved"]
    rows.append(["all", total["attacked"]["of"], total["attacked"]["num"], total["before"]["num"], ""])
    columns = ["home: the attacker", "trains", "moved", "moved before", "ends now"]
    print_table(f"{figures['cpu_seconds']:.0f} s of CPU", columns, rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
