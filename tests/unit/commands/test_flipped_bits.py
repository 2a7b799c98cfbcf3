"""One bit flips in one file of a home, at a seeded place: the start names the file, or the home behaves as before, or a note says which flips are not seen.

The home is made by the real code: three tasks, a log that was joined and scored, two versions, a checkpoint.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from sqlalchemy import Connection, Table, select

from commands.audit import audit
from commands.home import prepare_home
from contracts.errors import MillraceError
from contracts.ids import new_completion_id
from contracts.records import Generation, decode
from contracts.tables import generation, log_topic, metadata
from contracts.tasks.loading import load_tasks
from contracts.topics import GENERATIONS
from pipelines.episodes.handler import EpisodesHandler
from pipelines.training.checkpoints.checkpoint import CheckpointStore
from pipelines.training.settings import TrainingSettings
from pipelines.training.state import TrainerState
from rewards.worker import RewardsHandler
from runtime.log.outbox import message
from runtime.settings import Settings, load_settings
from runtime.worker import Worker
from tests.fakes import a_generation
from tests.in_memory import folder_in_memory
from tests.unit.pipelines.training.builders import a_learner, tiny_model
from weights.publish import publish_version
from weights.stores.opening import open_weight_store
from weights.tensors import Tensor
from weights.versions.keys import keyring_of, signer_of

PRODUCT = Path(__file__).parent.parent.parent.parent / "examples" / "reservations"
CHAT = 'name = "chat"\nwindow_seconds = 10\n[signals.liked]\ntype = "bool"\nlabels = { true = 1.0 }\n'
SUMS = CHAT.replace("chat", "sums") + '[[verifiers]]\nname = "right"\nkind = "numeric"\n'
SEEDS = range(int(os.environ.get("MILLRACE_FLIPS", "4")))
"""Of the flips of a file; a run takes half of them. More flips measure how many go unnoticed."""
UNREAD = ("up.lock", "logs/")
"""Files that no process reads back."""


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield made(folder)


def made(folder: Path) -> Path:
    tasks = [PRODUCT / "task.toml"]
    for name, content in (("chat", CHAT), ("sums", SUMS)):
        tasks.append(folder / f"{name}.toml")
        tasks[-1].write_text(content)
    home = folder / "home"
    base = str(PRODUCT / "base")
    settings = Settings(home=home, run="r", policy="reservations", base=base, tasks=tuple(tasks))
    prepare_home(settings, {})
    serve(settings)
    publish(settings)
    training = TrainingSettings()
    torch.set_num_threads(1)
    store = CheckpointStore(settings.checkpoints, 2)
    store.save(a_learner(tiny_model(), training).capture(TrainerState(epoch=1), 0), {0})
    return home


def serve(settings: Settings) -> None:
    database, log = settings.database(), settings.event_log()
    tasks = load_tasks(settings.tasks)
    names, about = [name for name in tasks for _ in range(40)], {"reference": "2"}
    made = [a_generation(completion_id=new_completion_id(), task=name, metadata=about) for name in names]
    log.append([message(GENERATIONS, item.key, item) for item in made])
    now = made[0].finished_at + 1000.0
    for worker in (
        Worker(EpisodesHandler(tasks, lambda: now), database, log, clock=lambda: now),
        Worker(RewardsHandler(tasks, lambda: now, database), database, log, clock=lambda: now),
    ):
        for _ in range(4):
            worker.step()
    log.close()
    database.close()


def publish(settings: Settings) -> None:
    store = open_weight_store(settings)
    base = store.load("reservations", 0)
    target = dict(base)
    name, tensor = next(iter(base.items()))
    data = np.array(tensor.data)
    data[::2] ^= 1
    target[name] = Tensor(tensor.dtype, tensor.shape, data)
    publish_version(
        store, policy="reservations", run="r", version=1, parent=0, base=base, target=target, step=1, epoch=1,
        num_samples=1, created_at=0.0, signer=signer_of(settings),
    )  # fmt: skip


def start(home: Path, said: Callable[[], str]) -> tuple[str, object]:
    """Whatever a start reads and processes read first: what it names, and what it goes on with."""
    try:
        settings = load_settings(home)
        prepare_home(settings, {})
        keyring_of(settings)
        signer_of(settings)
        store = open_weight_store(settings)
        roots = [store.load(settings.policy, version) for version in store.versions(settings.policy)]
        newest, refused = CheckpointStore(settings.checkpoints, 2).load_newest()
        database, log = settings.database(), settings.event_log()
        result = audit(database, log)
        with database.snapshot() as connection:
            tables = [table for table in metadata.sorted_tables if table is not log_topic]
            rows = {table.name: read_rows(connection, table) for table in tables}
            wires = connection.execute(select(generation.c.record).order_by(generation.c.completion_id)).scalars()
            answers = [decode(Generation, wire).open() for wire in wires]
        log.close()
        database.close()
    except MillraceError as error:
        return error.message, None
    told = ("is damaged", "object in the weight store not used")
    lines = [line for line in said().splitlines() if any(words in line for words in told)]
    named = [*(str(item) for item in refused), *result.problems, *lines]
    names = [sorted(root) for root in roots]
    return "; ".join(named), (settings, result.generations, result.signals, newest is None, rows, answers, names)


def read_rows(connection: Connection, table: Table) -> list[object]:
    """Every value, as it is stored."""
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    keys = ", ".join(f'"{column.name}"' for column in table.primary_key)
    rows = connection.exec_driver_sql(f"SELECT {names} FROM {table.name} ORDER BY {keys}")  # noqa: S608 our own names
    return [tuple(row) for row in rows]


def files_of(home: Path) -> Iterator[Path]:
    for path in sorted(home.rglob("*")):
        name = str(path.relative_to(home))
        is_read = not name.endswith(("-wal", "-shm")) and not name.startswith(UNREAD)
        if is_read and path.is_file() and path.stat().st_size:
            yield path


def kind_of(home: Path, path: Path) -> str:
    top = path.relative_to(home).parts[0]
    return f"{top}/" if path.parent != home else path.name


def flip(path: Path, place: random.Random) -> None:
    content = bytearray(path.read_bytes())
    at = place.randrange(len(content))
    content[at] ^= 1 << place.randrange(8)
    mode = path.stat().st_mode
    path.chmod(0o600)
    path.write_bytes(content)
    path.chmod(mode)


@pytest.mark.slow
def test_every_start_names_the_file_or_is_unharmed(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said() -> str:
        return capsys.readouterr().out

    clean, expected = start(home, said)
    assert clean == ""
    whole = tmp_path / "whole"
    shutil.copytree(home, whole)
    fates: dict[str, Counter[str]] = {}
    names: list[str] = []
    for name in [path.relative_to(home) for path in files_of(home)]:
        for seed in random.SystemRandom().sample(SEEDS, len(SEEDS) // 2):
            flip(home / name, random.Random(f"{name}-{seed}"))
            named, facts = start(home, said)
            unharmed = facts is not None and repr(facts) == repr(expected)
            fate = "named" if named else "unharmed" if unharmed else "unnoticed"
            fates.setdefault(kind_of(home, home / name), Counter())[fate] += 1
            names.append(f"{name}, {seed}: {fate}: {named[:150]}")
            shutil.rmtree(home)
            shutil.copytree(whole, home)
    print("\n".join([*names, *(f"{kind}: {dict(found)}" for kind, found in fates.items())]))  # noqa: T201 the figures
    covered = {"log/", "weights/", "checkpoints/", "keys/"}
    assert {kind: found["unnoticed"] for kind, found in fates.items() if kind in covered} == dict.fromkeys(covered, 0)
    assert set(fates) >= covered | {"millrace.db", "millrace.toml", "operator.key"}
