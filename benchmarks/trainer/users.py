"""Users and a trainer on one core, which stands for their card: what training adds to answers, and what users leave of training.

usage: python -m benchmarks.trainer.users [--policy demo|26M] [--rounds N] [--seconds N] [--added-p99-ms N] [--rate N] [--json]

In: a home with its engine and its `web`, users who come at random times whatever happens, and trainers that take steps all the time. Out: a
table; with --json a dated file too. The engine and the trainers have core 0, `web` and users core 1. Each way is measured in each round:

    alone       users without a trainer, and a trainer without users
    free        no waiting, and micro-batches as long as a step: as without `[gpu] added_p99_ms`
    nice        the same at the lowest priority of the system
    first       users first: waiting, and micro-batches as short as `[gpu] added_p99_ms`
    both        users first at the lowest priority, as the product does it on a CPU
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import httpx
import msgspec
import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from benchmarks.report import percentile, print_table, summarise, write_report
from commands.home import Home, prepare_home
from commands.up import listen, new_settings
from contracts.records import Experience
from engines.card_users import GpuSettings, WaitingUsers, budget_seconds
from examples.reservations.fitting import save, untrained
from pipelines.training.learning.learner import Learner
from pipelines.training.learning.short_batches import a_row, keep_short
from pipelines.training.learning.trainees import make_trainee
from pipelines.training.learning.users_first import UsersFirst
from pipelines.training.settings import TrainingSettings
from runtime.settings import load_settings
from services.engine.settings import EngineSettings
from tests.worlds.paths import BASE, EXAMPLE, ROOT

POLICY = "reservations"
WAYS = ("free", "nice", "first", "both")
LARGER = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "num_attention_heads": 8}
ROWS, LONGEST = 4, 128
"""Of a step."""
_CARD, _OTHERS = {0}, {1}
_READY_SECONDS = 300.0


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write a file if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trainer.users")
    parser.add_argument("--policy", choices=("demo", "26M"), default="demo")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each way in each round")
    parser.add_argument("--added-p99-ms", type=float, default=50.0)
    parser.add_argument("--rate", type=float, default=4.0, help="users a second")
    parser.add_argument("--tokens", type=int, default=16, help="of an answer, at most")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    os.sched_setaffinity(0, _OTHERS)
    with tempfile.TemporaryDirectory() as folder:
        found = _measured(Path(folder), options)
    columns = ("way", "users' p50 ms", "p95 ms", "p99 ms", "p99 added", "answers", "trainer's tokens/s", "of alone")
    print_table(f"users and a trainer on one core: {options.policy}", columns, [_shown(row) for row in found["ways"]])
    if options.json:
        print(f"written: {write_report(f'trainer-users-{options.policy}', {'options': vars(options), **found})}")


def _measured(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    base = BASE if options.policy == "demo" else _larger(folder / "base")
    home = _a_home(folder / "home", base, options.added_p99_ms)
    answers: dict[str, list[float]] = {way: [] for way in ("alone", *WAYS)}
    speeds: dict[str, list[float]] = {way: [] for way in ("alone", *WAYS)}
    with ExitStack() as stack:
        for name in ("engine", "web"):
            stack.enter_context(_process(home, name))
        _until_it_answers(home)
        trainers, sizes = {}, {}
        for way in WAYS:  # one after the other: each measures its micro-batches
            trainers[way] = stack.enter_context(_trainer(home, way))
            sizes[way] = _told(trainers[way])
        print(json.dumps(sizes), flush=True)
        for number in range(options.rounds):
            answers["alone"] += asyncio.run(_users(home, options, number))
            _say(trainers["free"], "go")
            time.sleep(options.seconds)
            speeds["alone"].append(_stopped(trainers["free"]))
            for way, trainer in trainers.items():
                _say(trainer, "go")
                answers[way] += asyncio.run(_users(home, options, number))
                speeds[way].append(_stopped(trainer))
                print(json.dumps(_row(way, answers, speeds)), flush=True)
    return {"micro_batches": sizes, "ways": [_row(way, answers, speeds) for way in answers]}


def _row(way: str, answers: dict[str, list[float]], speeds: dict[str, list[float]]) -> dict[str, Any]:
    ms = {f"p{share}_ms": 1000 * percentile(answers[way], share / 100) for share in (50, 95, 99)}
    added = ms["p99_ms"] - 1000 * percentile(answers["alone"], 0.99)
    whole = summarise(speeds["alone"])["median"]
    speed = summarise(speeds[way])
    figures = {"num_answers": len(answers[way]), "tokens_per_second": speed, "share_of_alone": speed["median"] / whole}
    return {"way": way, **ms, "added_p99_ms": added, **figures}


def _shown(row: dict[str, Any]) -> list[object]:
    figures = [row[f"p{share}_ms"] for share in (50, 95, 99)]
    share = f"{row['share_of_alone']:.2f}"
    return [row["way"], *figures, row["added_p99_ms"], row["num_answers"], row["tokens_per_second"]["median"], share]


def _larger(folder: Path) -> Path:
    """A random policy with the demo's tokenizer."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(BASE)
    save(untrained(tokenizer, 0, context=512, num_key_value_heads=8, **LARGER), tokenizer, folder)
    return folder


def _a_home(folder: Path, base: Path, added_p99_ms: float) -> Home:
    sockets = listen(0)
    settings = new_settings(folder, sockets, name=POLICY, base=base, tasks=[EXAMPLE / "task.toml"], device="cpu")
    for listening in sockets.values():
        listening.close()
    gpu = GpuSettings(added_p99_ms=added_p99_ms)
    return prepare_home(settings, {"gpu": gpu, "engine": EngineSettings(slots=("live",))})


@contextmanager
def _process(home: Home, name: str) -> Iterator[None]:
    """A process of the home, on its core."""
    command = [sys.executable, str(ROOT / "millrace.py"), name, "--home", str(home.settings.home)]
    with (home.settings.home / f"{name}.out").open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 our own interpreter and script
            command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | {"PYTHONPATH": str(ROOT)}
        )
    os.sched_setaffinity(process.pid, _CARD if name == "engine" else _OTHERS)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@contextmanager
def _trainer(home: Home, way: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "benchmarks.trainer.users", "--trainer", str(home.settings.home), way]
    process = subprocess.Popen(  # noqa: S603 as above
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    os.sched_setaffinity(process.pid, _CARD)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _say(trainer: subprocess.Popen[str], word: str) -> None:
    _pipe(trainer.stdin).write(f"{word}\n")
    _pipe(trainer.stdin).flush()


def _told(trainer: subprocess.Popen[str]) -> Any:
    """The next line that is an answer, not a line of the log."""
    while not (line := _pipe(trainer.stdout).readline()).startswith("=> "):
        if not line:
            raise RuntimeError("a trainer ended")
    return json.loads(line[3:])


def _pipe(found: IO[str] | None) -> IO[str]:
    if found is None:
        raise RuntimeError("no pipe")
    return found


def _stopped(trainer: subprocess.Popen[str]) -> float:
    _say(trainer, "stop")
    return float(_told(trainer))


def _until_it_answers(home: Home) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        try:
            asyncio.run(_users(home, argparse.Namespace(rate=10.0, seconds=0.2, tokens=4), 0))
        except httpx.HTTPError:
            time.sleep(0.5)
        else:
            return
    raise RuntimeError(f"nothing answers; see {home.settings.home}")


async def _users(home: Home, options: argparse.Namespace, number: int) -> list[float]:
    """Seconds of each answer, from the moment when its user came."""
    gaps = np.random.default_rng(number).exponential(1 / options.rate, int(options.rate * options.seconds))
    async with httpx.AsyncClient(timeout=120.0) as client:

        async def user(at: float) -> float:
            await asyncio.sleep(at)
            return await _answer(home, client, options.tokens)

        return await asyncio.gather(*(user(float(at)) for at in np.cumsum(gaps)))


async def _answer(home: Home, client: httpx.AsyncClient, num_tokens: int) -> float:
    began = time.perf_counter()
    body = {
        "model": POLICY, "max_tokens": num_tokens, "store": False, "messages": [{"role": "user", "content": "table for four at seven, Ada"}]
    }  # fmt: skip
    headers = {"authorization": f"Bearer {home.app_key}"}
    answer = await client.post(f"{home.settings.web_url}/v1/chat/completions", json=body, headers=headers)
    answer.raise_for_status()
    return time.perf_counter() - began


def train(home: Path, way: str) -> None:
    """Steps between the lines `go` and `stop` of standard input; then the tokens per second of the whole steps."""
    if way in {"nice", "both"}:
        os.nice(19)
    settings, training, stop = load_settings(home), TrainingSettings(divergence_bound=float("inf")), threading.Event()
    torch.set_num_threads(training.num_threads)
    learner = Learner(make_trainee(settings.base, training, "cpu"), training)
    users = UsersFirst(WaitingUsers(settings).num, stop, learner.trainee.device)
    if way in {"first", "both"}:
        learner.trainee.users = users
        keep_short(learner, users, budget_seconds(settings) or 0.0)
    batch = _batch(learner.vocabulary_size)
    learner.step(batch, [1.0] * ROWS, {})
    print("=>", json.dumps({"tokens": learner.budget.current, "ms": 1000 * users.seconds}), flush=True)
    while sys.stdin.readline().startswith("go"):
        stop.clear()
        threading.Thread(target=_stop_at_the_next_line, args=(stop,), daemon=True).start()
        began, num_steps, ended = time.perf_counter(), 0, 0.0
        while not stop.is_set():
            learner.step(batch, [1.0] * ROWS, {})
            if not stop.is_set():
                num_steps, ended = num_steps + 1, time.perf_counter()
        print("=>", num_steps * ROWS * LONGEST / (ended - began) if num_steps else 0.0, flush=True)


def _stop_at_the_next_line(stop: threading.Event) -> None:
    sys.stdin.readline()
    stop.set()


def _batch(num_ids: int) -> list[Experience]:
    random = np.random.default_rng(0)
    rows = [a_row(random.integers(0, num_ids, LONGEST).tolist()) for _ in range(ROWS)]
    return [
        msgspec.structs.replace(row, key=f"row-{number}", reward=float(number % 2)) for number, row in enumerate(rows)
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--trainer"]:
        train(Path(sys.argv[2]), sys.argv[3])
    else:
        main(sys.argv[1:])
