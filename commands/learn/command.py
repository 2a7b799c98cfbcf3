"""`millrace learn --from-log`: a warm start of a base policy on what the log holds, as version 1 of a home.

In: the log and the ledger of a home. Out: a table that names all that is learned, and why the rest is not; version 1 in the weight store, offered
to the gate as any version. Waits for: the device. Until the training has ended, an interruption leaves no version and no weights behind.
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
import structlog
import typer
from rich.console import Console

from commands import options
from commands.home import Home, claimed, prepare_home
from commands.home_gates import check_gate, print_gates
from commands.learn.lessons import Lessons, lessons_of, table_of
from commands.options import DEFAULT_HOME, HomeOption
from commands.policy_check import CheckOnce
from commands.rewards.rescore import parse_since
from commands.room import gib, memory_need, room_here
from commands.up import console, make_settings, print_keys_of, resolve_policy
from contracts.checkpoints import CheckpointReport
from contracts.errors import Conflict, InvalidSettings
from pipelines.training.settings import AdapterSettings, TrainingSettings
from runtime.sentinels import sentinels_of_home
from runtime.settings import Section, Settings, completed, load_section, load_settings, write_settings
from runtime.settings_file import settings_file
from weights.files import write_durably
from weights.stores.opening import open_weight_store

_ADAPTER_BYTES = 8
"""Of memory for each weight of a base that only an adapter is trained of: float32, its published bits, and what a step holds."""
_SINCE = "Only answers since: 30m, 2h, 7d, or a time: 2026-11-20T08:00Z."


def learn(
    home: HomeOption = DEFAULT_HOME,
    *,
    from_log: Annotated[bool, typer.Option("--from-log", help="Learn from the text in the home's log.")] = False,
    since: Annotated[str, typer.Option(help=_SINCE)] = "",
    adapter: options.AdapterOption = None,
    policy: Annotated[
        str, typer.Option(help="With --to: folder or hub id of the base policy. Default: the home's.")
    ] = "",
    to: Annotated[
        Path | None, typer.Option("--to", help="Make this new home, with the tasks of --home, for the result.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be learned, and write nothing.")] = False,
) -> None:
    """Warm start: train the base policy on edits, accepted answers, pairs and thumbs of the log, as version 1.

    Stop Millrace in this home first; --dry-run may run beside it. A log of a provider's answers needs --policy and --to.
    Imported answers are learned without may_train: whoever imported them answers for the terms of whoever wrote them.
    """
    source = load_settings(home)
    base = _base_of(source, policy, to, from_log=from_log)
    training = load_section(home, "training", TrainingSettings)
    if adapter is not None:
        chosen = TrainingSettings(adapter=AdapterSettings(rank=adapter))
        training = completed(home, {"training": chosen})["training"]
    start = parse_since(since, time.time()) if since else 0.0
    lessons = lessons_of(source, base, training, start, has_own_tokens=not policy)
    Console(markup=False).print(table_of(lessons))
    if not lessons.trained:
        why = "the table says why" if lessons.num_answers else "it has no answers"
        raise InvalidSettings(f"there is nothing to learn in the log of {home}: {why}")
    if dry_run:
        print("nothing was written")
        return
    with claimed(to or home):
        if to is None:
            require_untrained(source)
            ready = _prepared(source, {}, training)
        else:
            if settings_file(to).exists():
                require_untrained(load_settings(to))
            release = check_gate(source.tasks, to, sentinels_of_home(home))
            made = make_settings(
                to,
                name=source.policy,
                base=base,
                tasks=list(source.tasks),
                device=source.device,
                web_port=source.web_port,
            )
            ready = _prepared(made, {"training": training, "release": release}, training)
            training = load_section(to, "training", TrainingSettings)  # a home that was there has settings of its own
        _train(ready.settings, training, lessons, records_fates=to is None)
    if to is not None:
        print_keys_of(ready)
        print_gates(console, ready.settings)


def lack_of(report: CheckpointReport, memory: int, training: TrainingSettings) -> str:
    """Why there is not enough memory to train; empty if there is. What a GPU lacks, the trainer says itself."""
    need = _ADAPTER_BYTES * report.num_weights if training.adapter else memory_need(report, "cpu").trainer_peak
    if need <= memory:
        return ""
    return f"training needs {gib(need)} of memory, and there are {gib(memory)}: take --adapter 8 or a smaller policy"


def require_untrained(settings: Settings) -> None:
    """Raises Conflict: the home has a version already, which a warm start would throw away."""
    if versions := [each for each in open_weight_store(settings).versions(settings.policy) if each]:
        raise Conflict(
            f"{settings.home} has version {max(versions)} already, and a warm start is version 1: make a new home with --to"
        )


def _base_of(source: Settings, policy: str, to: Path | None, *, from_log: bool) -> Path:
    if not from_log:
        raise InvalidSettings("learn needs --from-log: there is nothing else to learn from")
    if to is not None and to.resolve() == source.home:
        raise InvalidSettings("--to is the home with the log: leave it out, or name a new folder")
    if policy and to is None:
        raise InvalidSettings("--policy needs --to: a home that exists learns from its own version 0")
    if not policy and not source.base:
        says = "has no policy of its own: name one with --policy, and a new home for it with --to"
        raise InvalidSettings(f"{source.home} {says}")
    return resolve_policy(policy or source.base)


def _prepared(settings: Settings, sections: dict[str, Section], training: TrainingSettings) -> Home:
    """The home as `millrace up` prepares it. Raises InvalidSettings: its base is not version 0 any more, or does not fit here."""
    check = CheckOnce(settings.home)

    def fitting(folder: Path) -> CheckpointReport:
        report = check(folder)
        if lack := lack_of(report, room_here(settings.home, settings.device).memory, training):
            raise InvalidSettings(f"{folder} cannot be trained here: {lack}")
        return report

    ready = prepare_home(settings, sections, fitting)
    check.remember()
    return ready


def _train(settings: Settings, training: TrainingSettings, lessons: Lessons, *, records_fates: bool) -> None:
    from pipelines.training.warm_start import Texts, learn_text  # noqa: PLC0415 torch takes seconds

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )

    def keep() -> None:
        if training.adapter is not None:
            write_settings(settings, {"training": training})

    found = learn_text(settings, training, Texts(lessons.trained, lessons.held_out), keep, records_fates=records_fates)
    said = {
        **found._asdict(),
        "learned_from": {kind: num for (kind, is_held_out), num in lessons.counts.items() if not is_held_out},
        "left_out": lessons.left_out,
        "keys": sorted({sample.key for sample in lessons.trained}),
    }
    write_durably(settings.home / f"learned-v{found.version}.json", [msgspec.json.encode(said)], mode=0o600)
    tasks = " ".join(f"--task {path}" for path in settings.tasks)
    start = f"millrace up --home {settings.home} --policy {settings.base} --name {settings.policy} {tasks}"
    print(f"version {found.version} is published and waits for the gate: {start}")
    print(f"as files: millrace export {found.version} --home {settings.home} --to FOLDER")
