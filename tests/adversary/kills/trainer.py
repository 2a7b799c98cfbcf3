"""Kill the trainer anywhere, 30 times: are the weights those of a run without kills, and how long until it learns again?

In: a home full of samples. Out: its final weights, moments and baselines compared bit for bit with those of an uninterrupted run over
the same samples; each sample's outcome; seconds from each start to the first step that is new; goodput. A third of the kills come at
the places that the trainer names (`FaultPoint`), a third after some steps and some milliseconds, a third while it starts.

Goodput is the share of time that steps take which count. A kill costs the start, the steps that are taken again, and the step that
was under way; everything else a run without kills pays too.
"""

from __future__ import annotations

import json
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from tests.adversary.kills.trainer_home import digests, make_home, problems_of
from tests.worlds.paths import ROOT

STEPS_PER_KILL = 8
KILL_EVERY_SECONDS = 300.0
PLACES = (
    "journal: before the plan", "journal: plan durable", "training: step taken", "journal: before the state", "journal: state durable",
    "checkpoint: before samples", "training: before outcomes", "training: outcomes told", "training: version claimed",
    "checkpoint: before samples.mark", "checkpoint: before weights.safetensors", "checkpoint: before optimizer.safetensors",
    "checkpoint: before state.json", "checkpoint: before MANIFEST.json", "checkpoint: durable", "publisher: before bytes",
    "publisher: before the snapshot", "training: bytes published", "publisher: before the offer", "training: candidate assigned",
)  # fmt: skip
_PLAN, _TAKEN = "journal: plan durable", "training: step taken"


class Life(NamedTuple):
    """One process: how it ended, seconds until its first new step, those of its steps, and how many it took."""

    ended: str
    until_step: float | None
    step_seconds: list[float]
    seconds: float


class End(NamedTuple):
    """How to end a process: at a place, when it comes there for this time; or after some steps and seconds."""

    place: str = ""
    number: int = 1
    steps: int | None = None
    delay: float = 0.0


def kill_trainer(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Run without kills, then with them; the figures of both."""
    num_steps, draw = kills * STEPS_PER_KILL, random.Random(seed)
    # The same samples under the same keys. A copy would not do: a home's settings have absolute paths.
    straight, killed = (make_home(folder / name, num_steps, seed) for name in ("straight", "killed"))
    whole = _live(folder / "straight", num_steps, End())
    lives: list[Life] = []
    for number in range(kills):
        lives.append(_live(folder / "killed", num_steps, _end(draw, number)))
        if lives[-1].ended == "stopped":
            break
    last = _live(folder / "killed", num_steps, End())
    wanted, found = digests(straight), digests(killed)
    problems = [f"{name} differ from the run without kills" for name in wanted if wanted[name] != found[name]]
    problems += [*problems_of(straight, num_steps), *problems_of(killed, num_steps)]
    waits = [life.until_step for life in [*lives[1:], last] if life.until_step is not None]
    worst, median = max(waits, default=0.0), statistics.median(waits) if waits else 0.0
    step = statistics.median(whole.step_seconds)
    ended = Counter(life.ended for life in lives)
    del ended["stopped"]
    return {
        "good": not problems and ended.total() == kills,
        "kills": {"trainer": ended.total()},
        "killed_behind": {"trainer": dict(ended)},
        "steps": num_steps,
        "bit_identical": wanted == found,
        "seconds_from_start_to_step": {"median": median, "worst": worst},
        "seconds_of_a_step": step,
        "goodput_at_a_kill_every_5_minutes": {
            "median": 1 - (median + step) / KILL_EVERY_SECONDS,
            "worst": 1 - (worst + step) / KILL_EVERY_SECONDS,
        },
        "share_of_time_in_steps_without_kills": sum(whole.step_seconds)
        / max(whole.seconds - (whole.until_step or 0.0), 1e-9),
        "problems": problems,
    }


def _end(draw: random.Random, number: int) -> End:
    if number % 3 == 0:
        return End(place=PLACES[(number // 3) % len(PLACES)], number=draw.randint(1, 2))
    if number % 3 == 1:
        return End(steps=draw.randint(1, 2 * STEPS_PER_KILL), delay=draw.uniform(0.0, 0.2))
    return End(steps=0, delay=draw.uniform(0.0, 8.0))


def _live(home: Path, num_steps: int, end: End) -> Life:
    """Run the trainer until it is killed, or has taken every step."""
    command = [sys.executable, "-m", "tests.adversary.kills.trainer_child", str(home), str(num_steps)]
    command += ["--die-at", f"{end.place}:{end.number}"] if end.place else []
    began = time.time()
    with (home / "trainer.log").open("ab") as log:
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log)  # noqa: S603 our own module
    if end.steps == 0:
        time.sleep(end.delay)
        child.kill()
    until_step, planned, seconds, last = None, 0.0, [], "start"
    for line in child.stdout or ():
        told = json.loads(line)
        last = told["place"]
        if last == _PLAN:
            planned = told["at"]
        elif last == _TAKEN:
            until_step = told["at"] - began if until_step is None else until_step
            seconds.append(told["at"] - planned)
            if len(seconds) == end.steps:
                time.sleep(end.delay)
                child.kill()
    status = child.wait()
    if status not in {0, -signal.SIGKILL}:
        raise RuntimeError(f"the trainer ended by itself with status {status}: see {home / 'trainer.log'}")
    ended = "stopped" if status == 0 else end.place or ("while it starts" if end.steps == 0 else f"after {last}")
    return Life(ended, until_step, seconds, time.time() - began)
