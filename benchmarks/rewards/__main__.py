"""`python -m benchmarks.rewards`: what scoring costs, kind by kind and through the whole worker.

1. Each kind of verifier as a task runs it (`Grader.score_all`: faults attributed, values examined, time taken, killed on
   its deadline where it may hang), against a plain loop over the same library's call. One thread, arms interleaved.
2. Episodes that only users judged, through the real worker on the embedded log: decode, map, weigh, commit, relay.

Sandboxed code has a benchmark of its own: `python -m benchmarks.rewards.sandbox`.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import print_table, summarise, write_report
from benchmarks.rewards.cases import GraderCase, cases
from contracts.event_log import Message
from contracts.records import Episode, Signal, Submitter
from contracts.tasks import Task
from contracts.tasks.loading import load_tasks
from contracts.topics import EPISODES, EXPERIENCES
from rewards.panel import graders_of
from rewards.verifiers.check import Answer
from rewards.verifiers.registry import kinds
from rewards.worker import RewardsHandler
from runtime.database import Database
from runtime.days import migrate
from runtime.log.local import LocalLog
from runtime.log.outbox import message
from runtime.worker import Worker
from tests.worlds.feed import TASK_FILE, a_generation

_APPENDED_AT_ONCE = 500


def main() -> None:
    """Measure, print, write."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.rewards", description=__doc__.split("\n", 1)[0])
    options.add_argument("--answers", type=int, default=4_000, help="of the cheap kinds; the dear ones get a twentieth")
    options.add_argument("--episodes", type=int, default=20_000, help="that go through the worker")
    options.add_argument("--rounds", type=int, default=5)
    chosen = options.parse_args()
    figures: dict[str, Any] = {"kinds": {}, "worker": {}}
    for case in cases(chosen.answers):
        if case.kind in kinds():
            figures["kinds"][case.kind] = measure_kind(case, chosen.rounds)
    figures["worker"] = measure_worker(chosen.episodes, chosen.rounds)
    _print(figures)
    print(write_report("rewards", figures))


def measure_kind(case: GraderCase, rounds: int) -> dict[str, Any]:
    """Answers a second, graded and plain, and the overhead of the first over the second in the same round."""
    rule = {"name": "v", "kind": case.kind, "config": dict(case.config), "deadline_seconds": 30.0}
    signals = {"accepted": {"type": "bool", "labels": {"true": 1.0}}}
    (grader,) = graders_of(Task.model_validate({"name": "t", "signals": signals, "verifiers": [rule]}))
    warm = list(case.answers[:8])
    verdicts = [score.value == 1.0 for score in grader.score_all(warm)]
    expected = [bool(case.plain(answer)) for answer in warm]
    if verdicts != expected:
        raise SystemExit(f"{case.kind}: {verdicts} is not what the plain call says, {expected}")
    graded, plain = [], []
    for _ in range(rounds):
        graded.append(_rate(case.answers, grader.score_all))
        plain.append(_rate(case.answers, lambda answers: [case.plain(answer) for answer in answers]))
    overhead = [other / own - 1.0 for own, other in zip(graded, plain, strict=True)]
    return {"graded": summarise(graded), "plain": summarise(plain), "overhead": summarise(overhead)}


def measure_worker(num_episodes: int, rounds: int) -> dict[str, Any]:
    """Episodes a second through one worker, and the seconds of a core that each takes."""
    rates, costs = [], []
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            rate, cost = _worker_round(Path(folder), num_episodes, number)
            rates.append(rate)
            costs.append(cost)
    return {"episodes_per_second": summarise(rates), "core_milliseconds": summarise(costs)}


def _worker_round(home: Path, num_episodes: int, seed: int) -> tuple[float, float]:
    log = LocalLog(home / "log")
    log.create_topics()
    database = Database(f"sqlite:///{home / 'millrace.db'}")
    migrate(database)
    feed = [_episode(random.Random(seed * num_episodes + number)) for number in range(num_episodes)]  # noqa: S311
    for start in range(0, num_episodes, _APPENDED_AT_ONCE):
        log.append(feed[start : start + _APPENDED_AT_ONCE])
    tasks = {name: task.model_copy(update={"verifiers": ()}) for name, task in load_tasks((TASK_FILE,)).items()}
    worker = Worker(RewardsHandler(tasks), database, log)
    started, used, done = time.perf_counter(), time.process_time(), 0
    while done < num_episodes:
        done += worker.step(0.1)
    seconds, cpu = time.perf_counter() - started, time.process_time() - used
    scored = sum(log.ends(EXPERIENCES).values())
    if scored != num_episodes:
        raise SystemExit(f"{scored} experiences of {num_episodes} episodes")
    log.close()
    return num_episodes / seconds, 1000 * cpu / num_episodes


def _episode(chance: random.Random) -> Message:
    turn = a_generation(chance, time.time())
    person = f"user{chance.randrange(2_000)}"
    signal = Signal(
        id=f"fb_{chance.getrandbits(60):x}",
        completion_id=turn.completion_id,
        choice=0,
        name="accepted",
        value=chance.random() < 0.6,  # noqa: PLR2004 some say yes, some no
        at=time.time(),
        received_at=time.time(),
        tenant=turn.tenant,
        submitter=Submitter(id=person),
    )
    episode = Episode(
        key=turn.key, revision=1, reason="decisive", turns=(turn,), signals=(signal,), closed_at=time.time()
    )
    return message(EPISODES, episode.key, episode)


def _rate(answers: Sequence[Answer], grade: Callable[[Sequence[Answer]], object]) -> float:
    started = time.perf_counter()
    grade(answers)
    return len(answers) / (time.perf_counter() - started)


def _print(figures: dict[str, Any]) -> None:
    rows = [
        (
            kind,
            found["graded"]["median"],
            found["plain"]["median"],
            *(f"{found['overhead'][name]:+.0%}" for name in ("median", "min", "max")),
        )
        for kind, found in figures["kinds"].items()
    ]
    print_table("Answers a second, one thread", ("kind", "graded", "plain call", "overhead", "min", "max"), rows)
    found = figures["worker"]
    columns = ("", "median", "min", "max")
    rows = [(name, *(found[name][part] for part in ("median", "min", "max"))) for name in found]
    print_table("Signal-only episodes through the worker", columns, rows)


if __name__ == "__main__":
    main()
