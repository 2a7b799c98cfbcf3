"""What a run in the sandbox costs above the same interpreter without one, and what bombs do to those beside them.

usage: python -m benchmarks.rewards.sandbox [--quick] [--sandbox NAME]

In: nothing. Out: tables, and a dated JSON file. Waits: for every run to end. Arms are interleaved: bare `python -I -S`,
the driver without a sandbox, and the sandbox. Then runs per second, one at a time and as many as there are cores. Then a
load of which a tenth are bombs, each run with the deadline of a real one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.report import percentile, print_table, summarise, write_report
from rewards.sandbox.choose import sandbox_named
from rewards.sandbox.port import Ran, Sandbox, SandboxLimits, interpreter
from rewards.sandbox.programs import Program, ProgramFailed

HONEST = Program("def f(x):\n    return x * x + 1\n")
BOMBS = (
    "import os\ndef f(x):\n    while True:\n        try: os.fork()\n        except OSError: pass\n",
    "def f(x):\n    return len(bytearray(6 * 2**30))\n",
    "def f(x):\n    while True: pass\n",
    "import os\ndef f(x):\n    kept = []\n    while True: kept.append(bytearray(os.urandom(2**12)) * 2**8)\n",
    "def f(x):\n    while True: print('x' * 1000)\n",
)
_ALLOWED_OVERHEAD_MS = 30.0
_GRACE_SECONDS = 0.5
_BOMB_EVERY = 10


class _Bare:
    """The driver with nothing around it: what the protocol costs by itself."""

    name = "none"

    def run(self, stdin: bytes, limits: SandboxLimits) -> Ran:
        """See `Sandbox`. For this file's honest program only."""
        done = subprocess.run(  # noqa: S603 our own command
            interpreter().command, input=stdin, capture_output=True, timeout=limits.seconds, check=False
        )
        return Ran("exit", done.returncode, done.stdout, done.stderr)


def main(arguments: Sequence[str]) -> None:
    """Measure what the command line asks for."""
    options = _parse(arguments)
    sandbox = sandbox_named(options.sandbox)
    content = {
        "sandbox": sandbox.name,
        "one_run_ms": _one_by_one(sandbox, options.rounds),
        "runs_per_second": _throughput(sandbox, options.rounds),
        "bombs": _bombs(sandbox, options.runs, options.seconds),
    }
    if not options.quick:
        print(write_report("sandbox", content))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rewards.sandbox", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--sandbox", default="auto", help="sandlock, bubblewrap, namespaces, or the first that holds")
    parser.add_argument("--rounds", type=int, default=200, help="runs of each arm")
    parser.add_argument("--runs", type=int, default=600, help="in the load with bombs")
    parser.add_argument("--seconds", type=float, default=5.0, help="the deadline of a run")
    parser.add_argument("--quick", action="store_true", help="few runs, a deadline of a second; writes no file")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.runs, options.seconds = 20, 100, 1.0
    return options


def _one_by_one(sandbox: Sandbox, rounds: int) -> dict[str, Any]:
    """Milliseconds of one run, and what the sandbox adds to the bare interpreter, pair by pair."""
    binary = interpreter().command[0]
    arms: dict[str, Callable[[], object]] = {
        "bare": lambda: subprocess.run([binary, "-I", "-S", "-c", "pass"], capture_output=True, check=True),  # noqa: S603
        "driver": lambda: HONEST.call(_Bare(), "f", [3], SandboxLimits()),
        sandbox.name: lambda: HONEST.call(sandbox, "f", [3], SandboxLimits()),
    }
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, run in arms.items():
            samples[name].append(_timed(run))
    pairs = zip(samples[sandbox.name], samples["bare"], strict=True)
    overhead = [with_sandbox - without for with_sandbox, without in pairs]
    found = {name: _spread(values) for name, values in {**samples, "overhead": overhead}.items()}
    print_table(
        f"one run in {sandbox.name}, {rounds} times, interleaved; the overhead may be {_ALLOWED_OVERHEAD_MS:g} ms",
        ("ms", "median", "p10", "p90", "p99"),
        [(name, *(f"{values[key]:.1f}" for key in ("median", "p10", "p90", "p99"))) for name, values in found.items()],
    )
    return found


def _throughput(sandbox: Sandbox, rounds: int) -> dict[str, Any]:
    found = {}
    for workers in sorted({1, os.cpu_count() or 1}):
        samples = []
        with ThreadPoolExecutor(workers) as pool:
            for _ in range(5):
                started = time.perf_counter()
                list(pool.map(lambda _: HONEST.call(sandbox, "f", [3], SandboxLimits()), range(rounds)))
                samples.append(round(rounds / (time.perf_counter() - started), 1))
        found[f"{workers} at once"] = summarise(samples)
    print_table(
        "runs per second",
        ("", "median", "min", "max"),
        [(name, values["median"], values["min"], values["max"]) for name, values in found.items()],
    )
    return found


def _bombs(sandbox: Sandbox, num_runs: int, seconds: float) -> dict[str, Any]:
    """Every tenth run is a bomb. Seconds of an honest run from its start; and how many were not answered rightly."""
    limits = SandboxLimits(seconds=seconds)
    honest: list[float] = []
    wrong: list[str] = []
    ended: list[float] = []

    def run(number: int) -> None:
        started = time.perf_counter()
        if number % _BOMB_EVERY == 0:
            bomb = Program(BOMBS[number // _BOMB_EVERY % len(BOMBS)])
            try:
                bomb.call(sandbox, "f", [number], limits)
            except ProgramFailed:
                ended.append(time.perf_counter() - started)
            return
        try:
            if HONEST.call(sandbox, "f", [number], limits) != number * number + 1:
                wrong.append("another value")
        except Exception as error:  # noqa: BLE001 whatever happens to an honest run is the figure
            wrong.append(f"{type(error).__name__}: {error}")
        honest.append(time.perf_counter() - started)

    before = _num_descriptors(), _num_children()
    workers = os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(run, range(num_runs)))
        alive = len(list(pool.map(lambda _: HONEST.call(sandbox, "f", [1], SandboxLimits()), range(workers))))
    found = {
        "deadline_seconds": seconds,
        "honest": len(honest),
        "honest_not_answered_rightly": wrong,
        "honest_seconds": {
            key: round(percentile(honest, share), 3) for key, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        },
        "bombs": num_runs - len(honest),
        "bombs_contained": len(ended),
        "bomb_seconds_max": round(max(ended), 3),
        "workers": workers,
        "workers_alive": alive,
        "left_behind": {
            "descriptors": _num_descriptors() - before[0],
            "children": _num_children() - before[1],
        },
        "passes": percentile(honest, 0.99) <= seconds + _GRACE_SECONDS and not wrong and alive == workers,
    }
    rows = [(key, str(value)) for key, value in found.items()]
    print_table("a tenth of the load are bombs", ("", ""), rows)
    return found


def _timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - started)


def _spread(values: Sequence[float]) -> dict[str, Any]:
    shares = {key: round(percentile(values, share), 2) for key, share in (("p10", 0.1), ("p90", 0.9), ("p99", 0.99))}
    return {**shares, **summarise([round(value, 2) for value in values])}


def _num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _num_children() -> int:
    return len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


if __name__ == "__main__":
    main(sys.argv[1:])
