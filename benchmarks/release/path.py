"""How long users wait for what the gate has seen: versions that get better, and one track, with a virtual clock.

usage: python -m benchmarks.release.path [--rate R] [--every N] [--seeds S] [--json] [--quick]

In: nothing. Out: a table of seconds from "the gate says better than live" until half of the users have that version or a newer one, with
the settings of `millrace demo`; and the same with trains of 28 s that throw their evidence away. A version is loaded and judged
in no time here; the gate sees differences of 6 points (200 sentinels).
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.report import end_with, percentile, print_table
from examples.demo.command import DEMO_TRAIN
from pipelines.release.train.answers import AnswerRow, Answers, TaskRule
from pipelines.release.train.assess import Standing, assess
from pipelines.release.train.ratio import expected_share
from pipelines.release.train.rules import decide
from runtime.train_settings import TrainSettings

START, SECONDS, SEEN, WANTED = 1_800_000_000.0, 240, 0.06, 0.85
NEW = TrainSettings.model_validate(DEMO_TRAIN)
OLD = NEW.model_copy(update={"patience_seconds": 28.0, "shadow_seconds": 7.0})
RULES = (("goes on, changes over", NEW, True), ("goes on", NEW, False), ("28 s, begins at zero", OLD, False))
TASKS = {"chat": TaskRule(has_primary=True, age_seconds=5.0)}


class Riding(NamedTuple):
    """A train: its version, when it departed, and in which stages the track changed over."""

    version: int
    departed: float
    changed: frozenset[int] = frozenset()


def quality(version: int) -> float:
    """From half right to .95, as the demo's policy learns."""
    return 0.95 - 0.45 * 0.8**version


def waits(settings: TrainSettings, rate: float, every: float, seed: int, *, changes: bool) -> tuple[list[float], float]:
    """Seconds that users waited for each version that the gate saw win against live, and until they got 85% of right answers."""
    draw, answers = random.Random(seed), Answers()  # noqa: S311 no secret
    live, train, newest, stage, tried, felt = 0, None, 0, -1, set[int](), float(SECONDS)
    since, found, had = dict[int, float](), dict[int, float](), 0
    for second in range(SECONDS):
        now = START + second
        if second % every == every - 1:
            newest += 1
            if quality(newest) - quality(live) > SEEN:
                since[newest] = now
        if train is None and newest > live and newest not in tried:
            train, stage, answers = Riding(newest, now), -1, Answers()
        may_change = changes and train is not None and stage not in train.changed
        if may_change and train is not None and quality(newest) - quality(train.version) > SEEN:
            train, stage, answers = Riding(newest, now, train.changed | {stage}), -1, Answers()
        if train is not None and stage < 0 and now - train.departed >= settings.shadow_seconds:
            stage, entered = 0, now
        if train is not None and stage == 0:
            answers.put(_answers(draw, rate, train.version, live, now))
            where = Standing(0, entered, train.departed, "canary")
            move = decide(where, assess(answers, TASKS, settings, now + 1.0, where), settings, now + 1.0).kind
            if move in {"arrive", "withdraw", "revoke"}:
                live = train.version if move == "arrive" else live
                tried, train = tried if move == "arrive" else tried | {train.version}, None
        on_canary = train.version if train is not None and stage == 0 else live
        had = max(had, on_canary)
        for version in [version for version in since if version <= had and version not in found]:
            found[version] = now + 1.0 - since[version]
        newer, share = NEW.learning_share, NEW.stages[0]
        mean = newer * quality(newest) + (1.0 - newer) * (share * quality(on_canary) + (1.0 - share) * quality(live))
        felt = min(felt, second + 1.0) if mean >= WANTED else felt
    return [found.get(version, START + SECONDS - at) for version, at in since.items()], felt


def _answers(draw: random.Random, rate: float, version: int, live: int, now: float) -> list[AnswerRow]:
    share, rows = NEW.stages[0], list[AnswerRow]()
    for _ in range(round(rate * (1.0 - NEW.learning_share))):
        is_canary = draw.random() < expected_share(share, NEW.control_ratio)
        good = draw.random() < quality(version if is_canary else live)
        name = f"{draw.random():.16f}"
        facts = {"tokens": 4.0, "seconds": draw.gauss(0.0, 0.3), "truncated": 0.0, "heard": 1.0}
        chance = (1.0 - NEW.learning_share) * (share if is_canary else 1.0 - share)
        arm, at = "canary" if is_canary else "live", now + draw.random()
        rows.append(
            AnswerRow(name, arm, "chat", name, "user", "", "t", chance, at, facts, float(good), "scored", at + 1.0)
        )
    return rows


def main(arguments: Sequence[str]) -> int:
    """Simulate both, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.release.path")
    parser.add_argument("--rate", type=float, default=9.0, help="answers a second")
    parser.add_argument("--every", type=int, default=12, help="seconds between versions")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="two seeds, no file")
    options = parser.parse_args(arguments)
    seeds = range(2 if options.quick else options.seeds)
    figures: dict[str, Any] = {"rate": options.rate, "every": options.every}
    for name, settings, changes in RULES:
        runs = [waits(settings, options.rate, options.every, seed, changes=changes) for seed in seeds]
        every = [wait for waited, _ in runs for wait in waited]
        felt = percentile([felt for _, felt in runs], 0.5)
        figures[name] = {"p50": percentile(every, 0.5), "p90": percentile(every, 0.9), "users_at_85": felt}
    return end_with(figures, options, _show, "release-path")


def _show(figures: Any) -> None:
    rows = [[name, *(f"{item:.0f}" for item in figures[name].values())] for name, *_ in RULES]
    title = f"{figures['rate']:g} answers/s, a version every {figures['every']} s"
    print_table(title, ["train", "p50 s", "p90 s", "users at 85% after s"], rows)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
