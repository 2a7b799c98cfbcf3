"""One train after the other over HTTP, with simulated users whose true utility is known: a good version, a null one, a bad one.

usage: python -m benchmarks.release.over_http [--seconds N] [--keep FOLDER] [--json]

In: nothing; the versions are fitted from the base of the reservations. Out: a table, and a dated file. Nothing gates the versions (there
are no sentinels), so the train alone decides. The good version answers right more often than the base, the null version differs
from it in the last bit of a hundredth of its weights, the bad one was damaged. Status 1 if a verdict is wrong.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import openai
import torch
from sqlalchemy import func, select
from transformers import AutoTokenizer, LlamaForCausalLM

from benchmarks.report import end_with, print_table
from benchmarks.versions import moved
from commands.home import Home, claimed, prepare_home
from commands.up import listen, new_settings, running
from contracts import assignments, revocations
from contracts.assignments import CANARY, CANDIDATE, LIVE, MOVED, SLOTS
from contracts.errors import MillraceError
from contracts.tables import generation, train
from examples.demo.command import PRODUCT
from examples.reservations.evaluate import evaluate
from examples.reservations.fitting import fit, padded, save
from examples.reservations.sentences import requests
from pipelines.training.settings import TrainingSettings
from runtime.database import Database
from runtime.settings import Settings
from runtime.train_settings import TrainSettings
from services.engine.settings import EngineSettings
from weights.publish import publish_version
from weights.stores.opening import open_weight_store
from weights.tensors import Tensors, read_safetensors

ACCEPTS_RIGHT, ACCEPTS_WRONG = 0.967, 0.0
"""Share of the users' signals that accept a right and a wrong answer: one in thirty refuses whatever it is."""
TRAIN = TrainSettings(
    stages=(0.05, 0.2, 0.5),
    stage_seconds=10.0,
    stage_units=25,
    shadow_prompts=100,
    margin=0.1,
    guardrail_margin=0.15,
    tuned_units=300,
    patience_seconds=3600.0,
    shadow_seconds=150.0,
    silence_seconds=60.0,
)
_LOOK_SECONDS, _LONGEST_SECONDS = 0.5, 900.0
_NUM_STEPS, _BATCH, _NOISE = 120, 32, 0.4


class OfferedVersion(NamedTuple):
    """A version whose verdict is known beforehand."""

    name: str
    tensors: Tensors
    wanted: str


def main(arguments: Sequence[str]) -> int:
    """Run the three trains."""
    options = _parse(arguments)
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-trains-")))
        try:
            with redirect_stdout(sys.stderr):
                figures = run_trains(folder.resolve() / "home", options.seed)
        except MillraceError as error:
            print(error, file=sys.stderr)
            return 1
    return end_with(figures, options, _show, "release-over-http") or int(bool(figures["wrong"]))


def run_trains(folder: Path, seed: int) -> dict[str, Any]:
    """Offer the versions one after the other, and wait for each verdict."""
    with claimed(folder), ExitStack() as stack:
        sockets = listen(0)
        settings = new_settings(
            folder, sockets, name="reservations", base=PRODUCT / "base", tasks=[PRODUCT / "task.toml"], device="cpu"
        )
        settings = settings.model_copy(update={"weights_unsigned": True})
        versions = _versions(folder / "fitted")
        never = TrainingSettings(publish_samples=10**9, publish_seconds=1e9)
        sections = {"training": never, "train": TRAIN, "engine": EngineSettings(slots=SLOTS)}
        home = prepare_home(settings, sections)
        supervisor = stack.enter_context(running(home, sockets))
        stop = threading.Event()
        watcher = threading.Thread(target=supervisor.watch, args=(stop,), daemon=True)
        watcher.start()
        stack.callback(watcher.join)
        stack.callback(stop.set)
        users = _start_users(home, seed)
        stack.callback(users.wait)
        stack.callback(users.terminate)
        database = home.settings.database()
        stack.callback(database.close)
        base = read_safetensors(PRODUCT / "base")
        live = evaluate(home.settings.web_url, home.operator_key, "reservations", 0).accuracy
        found: list[dict[str, Any]] = []
        blessed, blessed_tensors = 0, base
        for number, offered in enumerate(versions, start=1):
            _publish(home.settings, number, blessed, blessed_tensors, offered.tensors)
            one = _ride(home, database, number, live, offered)
            found.append(one)
            print(json.dumps(one), flush=True)
            if one["verdict"] == "shipped":
                blessed, blessed_tensors, live = number, offered.tensors, one["held_out"]
        return {
            "users": "reservations",
            "trains": found,
            "wrong": [one["version"] for one in found if not one["is_right"]],
        }


def _versions(folder: Path) -> list[OfferedVersion]:
    tokenizer = AutoTokenizer.from_pretrained(PRODUCT / "base")
    model: Any = LlamaForCausalLM.from_pretrained(PRODUCT / "base", dtype=torch.float32)
    torch.set_num_threads(1)
    stream = requests("train", 7)

    def batches() -> Any:
        while True:
            rows = [
                (
                    tokenizer.encode(f"<|user|>{request.sentence}<|end|><|assistant|>"),
                    tokenizer.encode(request.booking.json() + "<|end|>"),
                )
                for request in islice(stream, _BATCH)
            ]
            yield padded(rows, tokenizer.pad_token_id)

    fit(model, batches(), _NUM_STEPS, 5e-4, 10)
    save(model, tokenizer, folder / "good")
    good = read_safetensors(folder / "good")
    torch.manual_seed(7)
    damaged: Any = LlamaForCausalLM.from_pretrained(folder / "good", dtype=torch.float32)
    with torch.no_grad():
        for weight in damaged.parameters():
            if weight.dim() > 1:
                weight.add_(_NOISE * weight.std() * torch.randn_like(weight))
    save(damaged, tokenizer, folder / "bad")
    return [
        OfferedVersion("good", good, "shipped"),
        OfferedVersion("null", moved(good, 0.01, 3), "shipped"),
        OfferedVersion("bad", read_safetensors(folder / "bad"), "revoked"),
    ]


def _publish(settings: Settings, version: int, parent: int, base: Tensors, target: Tensors) -> None:
    store = open_weight_store(settings, publishes=True)
    made = publish_version(
        store, policy=settings.policy, run=settings.run, version=version, parent=parent, base=base, target=target, step=version,
        epoch=0, num_samples=0, created_at=time.time(),
    )  # fmt: skip
    database = settings.database()
    with database.transaction() as connection:
        held = assignments.read(connection, settings.policy).get(CANDIDATE)
        assignments.move(
            connection, policy=settings.policy, arm=CANDIDATE, version=version, root=made.target_root, run=settings.run,
            expected_epoch=held.epoch if held else 0, writer="benchmark", reason="offered",
        )  # fmt: skip
    database.close()
    bell = settings.replica_links().bell
    bell.ring(MOVED)
    bell.close()


def _ride(home: Home, database: Database, version: int, live: float, offered: OfferedVersion) -> dict[str, Any]:
    """Wait for the end of a version's train; its accuracy is asked for while the canary's slot holds it."""
    started, accuracy = time.monotonic(), None
    row: Any = None
    while time.monotonic() - started < _LONGEST_SECONDS:
        with database.snapshot() as connection:
            row = connection.execute(select(train).where(train.c.version == version)).one_or_none()
            arms = assignments.read(connection, "reservations")
        if row is not None and accuracy is None and CANARY in arms and arms[CANARY].version == version:
            accuracy = _accuracy(home, version)
        if row is not None and row.ended_at is not None:
            break
        time.sleep(_LOOK_SECONDS)
    if row is None or row.ended_at is None:
        raise MillraceError(f"the train of v{version} did not end within {_LONGEST_SECONDS:.0f} s")
    if accuracy is None and arms[LIVE].version == version:
        accuracy = _accuracy(home, version)
    with database.snapshot() as connection:
        answered = connection.execute(
            select(generation.c.arm, func.count().label("num"))
            .where(generation.c.purpose == "user", generation.c.created_at.between(row.started_at, row.ended_at))
            .group_by(generation.c.arm)
        )
        seen = {row.arm: row.num for row in answered}
        revoked = sorted(revocations.read(connection, "reservations"))
    utility = None if accuracy is None else _utility(accuracy) - _utility(live)
    return {
        "version": offered.name,
        "held_out": accuracy,
        "true_difference": None if utility is None else round(utility, 4),
        "verdict": row.state,
        "is_right": row.state == offered.wanted,
        "seconds": round(row.ended_at - row.started_at, 1),
        "last_stage": row.stage,
        "answers": seen,
        "canary_share_of_answers": round(seen.get(CANARY, 0) / max(1, sum(seen.values())), 4),
        "revoked": revoked,
        "reason": row.reason,
    }


def _accuracy(home: Home, version: int) -> float | None:
    try:
        return evaluate(home.settings.web_url, home.operator_key, "reservations", version).accuracy
    except openai.OpenAIError:  # its slot may have been emptied meanwhile
        return None


def _utility(accuracy: float) -> float:
    return accuracy * ACCEPTS_RIGHT + (1.0 - accuracy) * ACCEPTS_WRONG


def _start_users(home: Home, seed: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "examples.reservations.users", "--url", home.settings.web_url]
    command += ["--key", str(home.app_key), "--model", home.settings.policy, "--seed", str(seed), "--seconds", "3600"]
    command += ["--users", "24", "--pace", "1.0", "--out", str(home.settings.home / "users.jsonl")]
    (home.settings.home / "users.jsonl").touch()
    with (home.settings.home / "logs" / "users.log").open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)  # noqa: S603 our own module


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.release.over_http", description=str(__doc__).split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the users (default 1)")
    parser.add_argument("--keep", type=Path, help="keep the home in this folder")
    parser.add_argument("--quick", action="store_true", help="write no file")
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    return parser.parse_args(arguments)


def _show(figures: Any) -> None:
    rows = [
        (
            one["version"],
            f"{one['held_out']}",
            f"{one['true_difference']}",
            one["verdict"],
            f"{one['seconds']} s",
            one["reason"],
        )
        for one in figures["trains"]
    ]
    columns = ["version", "held out", "true difference", "verdict", "time", "reason"]
    print_table("Trains over HTTP, with users whose utility is known", columns, rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
