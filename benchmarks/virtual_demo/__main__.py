"""Run the demo in virtual seconds: `python -m benchmarks.virtual_demo [--top-p 0.9] [--explore 0 ...] [--seeds 1 2 3]`.

The base policy, the sentences, the users' habits and the learner are the demo's own; servers, Kafka and the gate are not there, so
a run takes about half a minute of one core and does not depend on its load. A version is served `--delay` seconds after it was
cut. It shows what a setting does to users before the real demo does; figures of the demo itself come from `make demo`.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog
import torch

from benchmarks.report import end_with, print_table, summarise
from benchmarks.virtual_demo.engine import SampledAnswer, VirtualEngine, load_base
from commands.demo import DEMO_TRAINING, NUM_USERS, NUM_VISITS
from commands.demo_curves import LAST_SHARE
from contracts.records import Experience
from contracts.sampling import Sampling
from examples.reservations.sentences import Request, requests
from examples.reservations.users import SILENT, SPAMMER
from pipelines.training.learning.learner import Learner
from pipelines.training.learning.whole_model import WholeModel
from pipelines.training.settings import TrainingSettings

REGENERATES, MOST_TRIES, MAX_TOKENS, NUM_HELD_OUT = 0.2, 3, 32, 500
"""As in examples/reservations: users.py and evaluate.py."""


class Heard(NamedTuple):
    """A signal: when, whether it accepted, and whether the answer explored."""

    second: int
    accepts: bool
    explores: bool


@dataclass
class VirtualRun:
    """One run. `second` is the time; a user makes one visit a second."""

    options: argparse.Namespace
    seed: int
    signals: list[Heard] = field(default_factory=list)
    waiting: list[Experience] = field(default_factory=list)
    second: int = 0

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self._random = random.Random(self.seed)  # noqa: S311 habits, not secrets
        self._engine = VirtualEngine(self.seed)
        settings = TrainingSettings(
            learning_rate=self.options.learning_rate, batch_size=self.options.batch_size, mismatch_samples=0,
            reward_low=0.0, reward_high=1.0,
        )  # fmt: skip
        self._learner = Learner(WholeModel(load_base(), settings), settings)
        self._requests = requests("users", self.seed)
        self.num_versions = self._learned = 0
        self._cut_at = 0
        self._coming: list[tuple[int, Any]] = []

    def run(self) -> dict[str, Any]:
        """All virtual seconds, then the figures."""
        for second in range(self.options.seconds):
            self.second = second
            while self._coming and self._coming[0][0] <= second:
                self._engine.load(self._coming.pop(0)[1], self.num_versions - len(self._coming))
            self._visits()
            self._learn()
        since = (1 - LAST_SHARE) * self.options.seconds
        late = [item for item in self.signals if item.second >= since]
        return {
            "accepted_base": _share(self.signals, lambda item: item.second < self.options.publish_seconds),
            "accepted_last": sum(item.accepts for item in late) / max(len(late), 1),
            "exploring": _share(late, lambda item: item.explores),
            "others": _share(late, lambda item: not item.explores),
            "held_out": self._held_out(),
            "versions": self.num_versions,
            "curve": [
                _share(self.signals, lambda item, start=start: start <= item.second < start + 15)
                for start in range(0, self.options.seconds, 15)
            ],
        }

    def _visits(self) -> None:
        tries: list[tuple[Request, int]] = [(next(self._requests), 1) for _ in range(NUM_USERS)]
        while tries:
            explores = [self._random.random() < self.options.explore for _ in tries]
            samplings = [self._sampling(explores=wide) for wide in explores]
            answers = self._engine.answer([request.sentence for request, _ in tries], samplings)
            again = []
            for (request, number), answer, wide in zip(tries, answers, explores, strict=True):
                right = answer.text == request.booking.json()
                if self._judges(answer, right=right, explores=wide) and number < MOST_TRIES:
                    again.append((request, number + 1))
            tries = again

    def _judges(self, answer: SampledAnswer, *, right: bool, explores: bool) -> bool:
        """Hear what a user says; True if the user asks again."""
        spams = self._random.random() < SPAMMER
        if not spams and self._random.random() < SILENT:
            return False
        accepts = right and not spams
        self.signals.append(Heard(self.second, accepts, explores))
        self.waiting.append(answer.experience(float(accepts), float(self.second)))
        return not accepts and not spams and self._random.random() < REGENERATES

    def _sampling(self, *, explores: bool) -> Sampling:
        temperature = self.options.explore_temperature if explores else self.options.temperature
        return Sampling(temperature=temperature, top_p=self.options.top_p, max_tokens=MAX_TOKENS)

    def _learn(self) -> None:
        size = self.options.batch_size
        while len(self.waiting) >= size:
            batch = sorted(self.waiting[:size], key=lambda item: item.key)
            del self.waiting[:size]
            if not self._learner.step(batch, [1.0] * size, {}).skipped:
                self._learned += size
        if self._learned and self.second - self._cut_at >= self.options.publish_seconds:
            self.num_versions += 1
            self._coming.append((self.second + self.options.delay, self._learner.tensors()))
            self._learned, self._cut_at = 0, self.second

    def _held_out(self) -> float:
        self._engine.load(self._learner.tensors(), self.num_versions + 1)
        asked = list(itertools.islice(requests("held_out", 0), NUM_HELD_OUT))
        greedy = [Sampling(temperature=0, max_tokens=MAX_TOKENS)] * len(asked)
        answers = self._engine.answer([request.sentence for request in asked], greedy)
        return sum(answer.text == request.booking.json() for answer, request in zip(answers, asked, strict=True)) / len(
            asked
        )


def _share(signals: Sequence[Heard], which: Any) -> float | None:
    found = [item.accepts for item in signals if which(item)]
    return sum(found) / len(found) if found else None


def main(arguments: Sequence[str]) -> int:
    """Run all seeds, one after the other."""
    options = _parse(arguments)
    torch.set_num_threads(1)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    runs = []
    for seed in options.seeds:
        runs.append({"seed": seed, **VirtualRun(options, seed).run()})
        print(f"seed {seed}: users accept {runs[-1]['accepted_last']:.3f}", file=sys.stderr, flush=True)
    asked = {name: value for name, value in vars(options).items() if name not in {"json", "quick"}}
    names = ("accepted_last", "held_out")
    means = {name: summarise([float(run[name]) for run in runs]) for name in names}
    return end_with({"settings": asked, **means, "runs": runs}, options, show, "virtual-demo")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.virtual_demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seconds", type=int, default=NUM_VISITS // NUM_USERS, help="virtual seconds")
    parser.add_argument("--temperature", type=float, default=0.3, help="of most answers")
    parser.add_argument("--explore", type=float, default=0.12, help="share of answers that explore")
    parser.add_argument("--explore-temperature", type=float, default=0.7)
    parser.add_argument("--top-p", type=float, default=1.0, help="of all answers")
    parser.add_argument("--learning-rate", type=float, default=DEMO_TRAINING["learning_rate"])
    parser.add_argument("--batch-size", type=int, default=int(DEMO_TRAINING["batch_size"]))
    parser.add_argument("--publish-seconds", type=float, default=8.0)
    parser.add_argument("--delay", type=int, default=4, help="seconds from the cut of a version to its first answer")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="write no file of results")
    return parser.parse_args(arguments)


def show(figures: dict[str, Any]) -> None:
    """Print a table."""
    columns = ("seed", "accepted_base", "accepted_last", "exploring", "others", "held_out", "versions")
    rows = [[_shown(run[name]) for name in columns] for run in figures["runs"]]
    print_table("The demo in virtual time", columns, rows)


def _shown(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
