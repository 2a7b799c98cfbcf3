"""`millrace demo`: the whole loop on this machine, from a base policy that is half right to one whose users accept 94%.

In: a seed. Out: a table and <home>/summary.json. Waits for: the simulated users to finish, then for the loop to drain.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from commands import queries
from commands.audit import Audit, audit, read_clients
from commands.demo_product import DemoProduct
from commands.demo_summary import GOALS, SMOKE_GOALS, VLLM_SECONDS, DemoRun, missed_goals, print_summary, summarise
from commands.engine_weights import compare_engines
from commands.engines import EngineChoice, choose_engine
from commands.home import Home, claimed, prepare_home
from commands.options import DeviceOption, EngineOption, LearningRateOption, VllmPythonOption
from commands.policy_check import check_policy
from commands.servers import servers_of
from commands.supervisor import Supervisor
from commands.up import greet, listen, new_settings, running
from contracts import assignments
from contracts.assignments import CANARY, CANDIDATE, LEARNING, LIVE
from contracts.errors import MillraceError
from contracts.ledger import PENDING, generation_counts, trained_versions
from contracts.tasks.loading import load_tasks
from examples.reservations.evaluate import evaluate
from examples.reservations.sentences import requests
from pipelines.release.settings import ReleaseSettings
from pipelines.training.settings import TrainingSettings
from runtime.database import Database
from runtime.settings import Section, make_section
from runtime.train_settings import TrainSettings
from services.engine.settings import EngineSettings

NUM_SENTINELS = 200
NUM_USERS = 16
PACE_SECONDS = 1.0
DRAIN_SECONDS = 90.0
DEMO_SECONDS, SMOKE_SECONDS = 210.0, 30.0
PRODUCT = Path(__file__).parent.parent / "examples" / "reservations"
_REPORT_SECONDS = 5.0

DEMO_TRAINING = {"learning_rate": 3e-4, "batch_size": 16, "publish_samples": 96, "publish_seconds": 8.0}
"""Small steps and frequent versions: sixteen users give nine signals a second, and they leave after three minutes."""
DEMO_SLOTS = (LIVE, CANDIDATE, LEARNING, CANARY)
DEMO_TRAIN = {
    "learning_share": 0.3,
    "stages": (0.5,),
    "stage_seconds": 5.0,
    "stage_units": 15,
    "shadow_prompts": 16,
    "shadow_seconds": 5.0,
    "age_seconds": 5.0,
    "margin": 0.25,
    "guardrail_margin": 0.35,
    "length_margin": 1.0,
    "level": 0.01,
    "proof_level": 0.1,
    "tuned_units": 60,
}
"""A short train: it sees only large harm. Ten users a second cannot show small ones."""
SmokeOption = Annotated[
    bool, typer.Option("--smoke", help="A run of half a minute. It must lose nothing, and need not learn much.")
]
ProfileOption = Annotated[
    str, typer.Option(help="embedded; or services: Kafka, PostgreSQL, Redis and S3, from `make services`.")
]
KeepOption = Annotated[bool, typer.Option("--keep", help="Leave everything running at the end.")]
SeedOption = Annotated[int, typer.Option(help="Seed of the simulated users.")]
DemoHomeOption = Annotated[Path | None, typer.Option("--home", help="Home folder. Default: runs/<time>.")]
console = Console(highlight=False, soft_wrap=True)


def demo(
    *,
    seed: SeedOption = 1,
    seconds: Annotated[float, typer.Option(help="How long the users work.")] = DEMO_SECONDS,
    home: DemoHomeOption = None,
    keep: KeepOption = False,
    device: DeviceOption = "cpu",
    learning_rate: LearningRateOption = None,
    smoke: SmokeOption = False,
    profile: ProfileOption = "embedded",
    engine: EngineOption = "millrace",
    vllm_python: VllmPythonOption = None,
) -> int:
    """Watch a model learn from its users: a reservations assistant, from about half right to 97%.

    Exit status 0 if every goal was met.
    """
    product = RESERVATIONS._replace(seconds=seconds)
    if learning_rate is not None:
        product = product._replace(training={**product.training, "learning_rate": learning_rate})
    chosen = choose_engine(engine, vllm_python, 2)
    if chosen.kind == "millrace":
        chosen = chosen._replace(own=make_section("[engine]", EngineSettings, slots=DEMO_SLOTS))
    if chosen.kind == "vllm":
        product = product._replace(goals=product.goals._replace(seconds=VLLM_SECONDS))
    return run_demo(product, chosen, seed=seed, home=home, keep=keep, device=device, smoke=smoke, profile=profile)


def run_demo(
    product: DemoProduct,
    chosen: EngineChoice,
    *,
    seed: int,
    home: Path | None,
    keep: bool,
    device: str,
    smoke: bool,
    profile: str,
) -> int:
    """Run a product in a new home. Returns 0 if every goal was met, else 1."""
    started, goals = time.monotonic(), product.smoke_goals if smoke else product.goals
    folder = (home or Path("runs") / time.strftime("%Y%m%d-%H%M%S")).resolve()
    with claimed(folder):
        servers = servers_of(profile)
        sockets = listen(0, split=servers.is_shared, num_engines=chosen.num_own)
        settings = new_settings(
            folder,
            sockets,
            name=product.name,
            base=product.folder / "base",
            tasks=[product.folder / "task.toml"],
            device=device,
            servers=servers,
        )
        release = ReleaseSettings(sentinels=product.write_sentinels(folder / "sentinels.jsonl"))
        training = make_section("[training]", TrainingSettings, **product.training)
        sections: dict[str, Section] = {"training": training, "release": release, **chosen.sections}
        if product.train is not None:
            sections["train"] = make_section("[train]", TrainSettings, **product.train)
        ready = prepare_home(settings, sections, check_policy)
        if ready.app_key is None:
            raise MillraceError(f"{folder} was used before; run the demo in a new folder")
        with running(ready, sockets, servers.replicas, chosen) as supervisor:
            greet(ready)
            lasting = product._replace(seconds=SMOKE_SECONDS) if smoke else product
            run = _loop(lasting, ready, supervisor, seed, training.learning_rate)
            elapsed = time.monotonic() - started
            facts = {"seed": seed, "seconds": round(elapsed, 1), "goal_seconds": goals.seconds, "engine": chosen.kind}
            summary = {**facts, **summarise(ready.settings, run), **compare_engines(ready.settings)}
            with _database(ready) as database, database.snapshot() as connection:
                summary |= product.further(connection)
            (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
            print_summary(console, summary, run.audit, goals)
            console.print(f"written to {folder / 'summary.json'}")
            if keep:
                console.print("Everything stays up; Ctrl-C ends it.")
                _wait_for_interrupt(supervisor)
    return 0 if not missed_goals(summary, goals) else 1


def demo_seeds(
    first: Annotated[int, typer.Option(help="First seed.")] = 1,
    last: Annotated[int, typer.Option(help="Last seed.")] = 5,
) -> int:
    """Run the demo with several seeds and report the worst. Exit status 0 if every run met every goal."""
    summaries = []
    for seed in range(first, last + 1):
        console.rule(f"seed {seed}")
        folder = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-seed{seed}"
        demo(seed=seed, home=folder)
        summaries.append(json.loads((folder / "summary.json").read_text()))
    worst = min(summaries, key=lambda summary: float(summary["accepted_last"] or 0.0))
    names = (
        "seed",
        "seconds",
        "held_out_base",
        "held_out_live",
        "accepted_base",
        "accepted_last",
        "seconds_until_85",
        "versions_shipped",
        "failed_requests",
        "ledger_balanced",
    )
    table = Table(*names)
    for summary in summaries:
        table.add_row(*(str(summary[name]) for name in names))
    console.print(table)
    console.print(f"worst: seed {worst['seed']}, users accept {worst['accepted_last']} in the last fifth")
    return 0 if not any(missed_goals(summary) for summary in summaries) else 1


def _loop(product: DemoProduct, home: Home, supervisor: Supervisor, seed: int, learning_rate: float) -> DemoRun:
    """Evaluate the base policy, let the users work, drain the loop, and evaluate the live version."""
    settings, policy = home.settings, home.settings.policy
    base = product.evaluate(settings.web_url, home.operator_key, policy, 0)
    console.print(f"base policy: {base.accuracy:.1%} of the held-out cases are right")
    listed = settings.home / "users.jsonl"
    users = _start_users(product, home, seed, listed)
    stop = threading.Event()
    watcher = threading.Thread(target=supervisor.watch, args=(stop,), daemon=True)
    watcher.start()
    try:
        started = time.monotonic()
        while users.poll() is None:
            time.sleep(_REPORT_SECONDS)
            _report(home, policy, listed, time.monotonic() - started)
        if users.returncode != 0:
            raise MillraceError(why_users_ended(users.returncode, settings.home / "logs" / "users.log"))
        console.print("users have stopped; windows close, and the trainer takes the remaining samples")
        result = _drain(home, policy, listed)
    finally:
        users.terminate()
        users.wait()
        stop.set()
        watcher.join()
    live = product.evaluate(settings.web_url, home.operator_key, policy, _live(home, policy))
    explore = next(iter(load_tasks(settings.tasks).values())).sampling.explore
    share = 0.0 if explore is None else explore.share
    return DemoRun(base, live, result, read_clients(listed), product.seconds, learning_rate, share)


def why_users_ended(status: int, log: Path) -> str:
    """For an error: their status, and the last line that they printed."""
    said = log.read_text(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(said) if line.strip()), "they printed nothing")
    return f"the users ended with status {status}: {last}; see {log}"


def _drain(home: Home, policy: str, listed: Path) -> Audit:
    """Wait until nothing is pending, and every version that learned has its verdict."""
    log = home.settings.event_log()
    deadline = time.monotonic() + DRAIN_SECONDS
    with _database(home) as database:
        result = audit(database, log, read_clients(listed), settled=True)
        while time.monotonic() < deadline and not (result.balanced and all_judged(database, policy)):
            time.sleep(0.5)
            result = audit(database, log, read_clients(listed), settled=True)
    log.close()
    return result


def all_judged(database: Database, policy: str) -> bool:
    """True if every version with a trained sample has its verdict. Then the live version no longer changes by itself."""
    with database.snapshot() as connection:
        return set(trained_versions(connection).values()) <= queries.verdicts(connection, policy).keys()


def _start_users(product: DemoProduct, home: Home, seed: int, listed: Path) -> subprocess.Popen[bytes]:
    settings = home.settings
    command = [sys.executable, "-m", f"examples.{product.folder.name}.users", "--url", settings.web_url]
    command += ["--feedback-url", settings.feedback_url]
    command += ["--key", str(home.app_key), "--model", settings.policy, "--seed", str(seed)]
    command += ["--seconds", str(product.seconds), "--users", str(product.num_users), "--pace", str(product.pace)]
    command += ["--out", str(listed)]
    listed.touch()
    with (settings.home / "logs" / "users.log").open("wb") as output:
        return subprocess.Popen(  # noqa: S603 our own interpreter and module
            command, stdout=output, stderr=subprocess.STDOUT, cwd=PRODUCT.parent.parent
        )


def write_sentinels(path: Path, count: int = NUM_SENTINELS) -> Path:
    """Write the gate's own sentences. They are disjoint from those of the users and from the held-out ones."""
    lines = [
        json.dumps(
            {
                "messages": [{"role": "user", "content": request.sentence}],
                "reference": request.booking.json(),
            }
        )
        for request in itertools.islice(requests("sentinel", 0), count)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


RESERVATIONS = DemoProduct(
    name="reservations",
    folder=PRODUCT,
    write_sentinels=write_sentinels,
    evaluate=evaluate,
    goals=GOALS,
    smoke_goals=SMOKE_GOALS,
    training=DEMO_TRAINING,
    train=DEMO_TRAIN,
    seconds=DEMO_SECONDS,
    num_users=NUM_USERS,
    pace=PACE_SECONDS,
)


@contextmanager
def _database(home: Home) -> Iterator[Database]:
    database = home.settings.database()
    yield database
    database.close()


def _live(home: Home, policy: str) -> int:
    with _database(home) as database, database.snapshot() as connection:
        return assignments.read(connection, policy)[LIVE].version or 0


def _report(home: Home, policy: str, listed: Path, seconds: float) -> None:
    clients = read_clients(listed)
    signals = [item for item in clients if item["kind"] == "signal"]
    recent = signals[-100:]
    accepted = sum(item["positive"] for item in recent) / len(recent) if recent else 0.0
    answers = sum(item["kind"] == "generation" for item in clients)
    failed = sum(item["kind"] == "failed" for item in clients)
    with _database(home) as database, database.snapshot() as connection:
        pending = generation_counts(connection).states.get(PENDING, 0)
    console.print(
        f"{seconds:4.0f} s  live v{_live(home, policy):<3} {answers:5} answers {len(signals):5} signals  "
        f"accepted {accepted:4.0%}  pending {pending:4}  failed {failed}"
    )


def _wait_for_interrupt(supervisor: Supervisor) -> None:
    try:
        supervisor.watch(threading.Event())
    except KeyboardInterrupt:
        console.print("ending")
