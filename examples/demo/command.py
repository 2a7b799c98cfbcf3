"""`millrace demo`: the whole loop on this machine, from a base policy that is half right to one whose users accept 94%.

In: a seed. Out: what was measured beside its goals, <home>/summary.json and <home>/curves.svg. Waits for: the simulated users to
finish, then for the loop to drain. A promise that was broken ends it with status 1 (`figures`).
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console

from commands.audit import Audit
from commands.engines import EngineChoice, choose_engine
from commands.home import claimed, prepare_home
from commands.link import dashboard_link
from commands.options import AdapterOption, DeviceOption, EngineOption, EnginePythonOption, LearningRateOption
from commands.supervisor import Supervisor
from commands.up import greet, listen, new_settings, running, settle
from contracts.assignments import CANARY, CANDIDATE, LEARNING, LIVE
from contracts.errors import MillraceError
from engines.registry import kind_of
from examples.demo.curves import Bin
from examples.demo.engine_weights import compare_engines
from examples.demo.figures import broken_promises
from examples.demo.loop import DemoLoop
from examples.demo.machine import MachineUse
from examples.demo.pace import sizes_on
from examples.demo.picture import draw_curves
from examples.demo.product import DemoProduct
from examples.demo.servers import servers_of
from examples.demo.summary import GOALS, MOST, figures_of, print_summary, summarise
from examples.reservations.evaluate import evaluate
from examples.reservations.sentences import requests
from pipelines.release.settings import ReleaseSettings
from pipelines.training.settings import TrainingSettings
from runtime.settings import Section, make_section
from runtime.train_settings import TrainSettings
from services.engine.settings import EngineSettings

NUM_SENTINELS = 200
NUM_USERS = 16
NUM_VISITS = 2800
DEMO_SECONDS, SMOKE_SECONDS = 320.0, 30.0
"""How long users stay at most. At the full pace their visits are over after three minutes."""
PRODUCT = Path(__file__).parent.parent / "reservations"

DEMO_TRAINING = {"learning_rate": 3e-4, "batch_size": 16, "publish_samples": 64, "publish_seconds": 30.0}
"""Small steps and frequent versions: sixteen users give nine signals a second, and they leave after three minutes."""
DEMO_ADAPTER = {"learning_rate": 3e-3}
"""Ten times the rate of the whole model, as is usual for an adapter."""
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
StrictOption = Annotated[
    bool, typer.Option("--strict", help="A figure whose whole 95% interval misses its goal ends the demo with 1 too.")
]
console = Console(highlight=False, soft_wrap=True)


class DemoOptions(NamedTuple):
    """How a demo is run. `home`: None for a new folder in runs/."""

    seed: int = 1
    home: Path | None = None
    keep: bool = False
    device: str = "cpu"
    smoke: bool = False
    strict: bool = False
    profile: str = "embedded"


def demo(
    *,
    seed: SeedOption = 1,
    seconds: Annotated[
        float,
        typer.Option(help="How long the users work at most; they also leave so that all ends within seven minutes."),
    ] = DEMO_SECONDS,
    home: DemoHomeOption = None,
    keep: KeepOption = False,
    device: DeviceOption = "cpu",
    learning_rate: LearningRateOption = None,
    adapter: AdapterOption = None,
    smoke: SmokeOption = False,
    strict: StrictOption = False,
    profile: ProfileOption = "embedded",
    engine: EngineOption = "millrace",
    engine_python: EnginePythonOption = None,
) -> int:
    """Watch a model learn from its users: a reservations assistant, from about half right to 97%.

    Exit status 0 if every promise was kept: no failed request, a balanced ledger, no version served ungated, a better model.
    """
    product = RESERVATIONS._replace(seconds=seconds)
    if adapter is not None:
        product = product._replace(training={**product.training, **DEMO_ADAPTER, "adapter": {"rank": adapter}})
    if learning_rate is not None:
        product = product._replace(training={**product.training, "learning_rate": learning_rate})
    chosen = choose_engine(engine, engine_python, 2)
    if chosen.kind == "millrace":
        chosen = chosen._replace(own=make_section("[engine]", EngineSettings, slots=DEMO_SLOTS))
    if limit := kind_of(chosen.kind).demo_seconds:
        product = product._replace(goals=product.goals._replace(seconds=limit))
    return run_demo(product, chosen, DemoOptions(seed, home, keep, device, smoke, strict, profile))


def run_demo(product: DemoProduct, chosen: EngineChoice, options: DemoOptions) -> int:
    """Run a product in a new home. Returns 0 if every promise was kept (and, if asked, no figure missed its goal), else 1."""
    if find_spec("torch") is None:
        raise ModuleNotFoundError(name="torch")
    started, machine = time.monotonic(), MachineUse()
    samples, sentinels = sizes_on(machine.cores_given(), product.training["publish_samples"], product.num_sentinels)
    product = product._replace(num_sentinels=sentinels, training={**product.training, "publish_samples": samples})
    folder = (options.home or Path("runs") / time.strftime("%Y%m%d-%H%M%S")).resolve()
    with claimed(folder):
        servers = servers_of(options.profile)
        sockets = listen(0, split=servers.is_shared, num_engines=chosen.num_own)
        settings = new_settings(
            folder,
            sockets,
            name=product.name,
            base=product.folder / "base",
            tasks=[task_of(product, folder)],
            device=options.device,
            servers=servers,
        )
        training = settle(chosen, settings, make_section("[training]", TrainingSettings, **product.training))
        release = ReleaseSettings(sentinels=product.write_sentinels(folder / "sentinels.jsonl", sentinels))
        sections: dict[str, Section] = {"training": training, "release": release, **chosen.sections}
        if product.train is not None:
            sections["train"] = make_section("[train]", TrainSettings, **product.train)
        if product.provider is not None:
            sections["provider"] = product.provider
        # The base is ours: a process that inspects it would load torch once more.
        ready = prepare_home(settings, sections)
        if ready.app_key is None:
            raise MillraceError(f"{folder} was used before; run the demo in a new folder")
        with running(ready, sockets, servers.replicas, chosen) as supervisor:
            greet(ready)
            lasting = product._replace(seconds=SMOKE_SECONDS) if options.smoke else product
            loop = DemoLoop(lasting, ready, supervisor, console, seed=options.seed, started=started)
            run = loop.run(training.learning_rate, machine)
            facts = {"seed": options.seed, "engine": chosen.kind, **summarise(ready.settings, run)}
            facts["adapter"] = training.adapter.model_dump() if training.adapter else None
            facts |= compare_engines(ready.settings)
            database = ready.settings.database()
            with database.snapshot() as connection:
                facts |= product.further(connection, run.clients)
            database.close()
            facts |= {"seconds": round(time.monotonic() - started, 1), "machine": machine.figures()}
            status = _conclude(product, options, folder, facts, run.audit)
            if options.keep:
                _stay(folder, supervisor)
    return status


def _conclude(product: DemoProduct, options: DemoOptions, folder: Path, summary: dict[str, Any], result: Audit) -> int:
    """Write and print what was measured; the exit status."""
    broken = broken_promises(summary, learns=not options.smoke)
    broken += [] if options.smoke else product.broken(summary)
    figures = [] if options.smoke else figures_of(summary, product.goals)
    missed = [figure.name for figure in figures if figure.verdict == "missed"]
    status = 1 if broken or (options.strict and missed) else 0
    summary |= {"status": status, "broken": broken, "missed": missed, "figures": [item._asdict() for item in figures]}
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    curve = [Bin(**item) for item in summary["curve"]]
    (folder / "curves.svg").write_text(draw_curves(curve, f"{product.name}, seed {options.seed}", MOST))
    print_summary(console, summary, result, figures, broken)
    if said := product.closing(summary):
        console.print(said)
    if options.strict and missed:
        console.print(f"[red]--strict: the whole interval misses the goal of: {', '.join(missed)}")
    console.print(f"written to {folder / 'summary.json'}, and as a picture to {folder / 'curves.svg'}")
    if not options.keep:
        console.print("Everything ends now. With `--keep` it would stay up, and print a fresh link to the dashboard.")
    return status


def task_of(product: DemoProduct, folder: Path) -> Path:
    """The product's task file; with more to learn by than it says, a copy in the folder."""
    path = product.folder / "task.toml"
    if not product.learning:
        return path
    longer = folder / "task.toml"
    longer.write_text(f"{path.read_text()}\n{product.learning}")
    return longer


def _stay(folder: Path, supervisor: Supervisor) -> None:
    console.print(f"Everything stays up; Ctrl-C ends it. The dashboard: {dashboard_link(folder)}")
    try:
        supervisor.watch(threading.Event())
    except KeyboardInterrupt:
        console.print("ending")


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
    num_sentinels=NUM_SENTINELS,
    write_sentinels=write_sentinels,
    evaluate=evaluate,
    goals=GOALS,
    training=DEMO_TRAINING,
    train=DEMO_TRAIN,
    seconds=DEMO_SECONDS,
    num_users=NUM_USERS,
    visits=NUM_VISITS,
    answers_per_visit=1.1,
)
