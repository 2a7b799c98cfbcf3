"""`millrace learn --from-log`: a warm start of a base policy on what the log holds, as version 1 of a home.

In: the log and the ledger of a home. Out: a table of what is learned and why the rest is not; version 1 in the weight store, offered to the gate as
any version. Waits for: the device. Until the training has ended, an interruption leaves no version and no weights behind.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from commands import options
from commands.home import claimed, prepare_home
from commands.home_gates import check_gate, print_gates
from commands.learn.curation import curate, is_held_out
from commands.learn.queries import withdrawn
from commands.learn.rendering import NotRendered, Renderer
from commands.learn.selection import Remark, select
from commands.options import DEFAULT_HOME, HomeOption
from commands.policy_check import CheckOnce
from commands.rewards.rescore import parse_since
from commands.room import gib, memory_need, room_here
from commands.up import console, make_settings, print_keys_of, resolve_policy
from contracts.checkpoints import CheckpointReport
from contracts.clusters import words_of
from contracts.errors import Conflict, InvalidSettings
from contracts.tasks.loading import load_tasks
from pipelines.episodes.curation.curator import hash_of
from pipelines.training.settings import AdapterSettings, TrainingSettings
from pipelines.training.text.samples import TextSample
from runtime.sentinels import read_sentinels, sentinels_of_home
from runtime.settings import Section, Settings, load_section, load_settings, write_settings
from weights.files import write_durably
from weights.stores.opening import open_weight_store

_ADAPTER_BYTES = 8
"""Of memory for each weight of a base that only an adapter is trained of: float32, its bits, and what the step holds."""


@dataclass(frozen=True)
class Lessons:
    """What was found in the log."""

    trained: list[TextSample] = field(default_factory=list)
    held_out: list[TextSample] = field(default_factory=list)
    counts: Counter[tuple[str, bool]] = field(default_factory=Counter)
    """By kind of remark, and whether it is held out."""
    left_out: Counter[str] = field(default_factory=Counter)
    num_answers: int = 0


def learn(
    home: HomeOption = DEFAULT_HOME,
    *,
    from_log: Annotated[bool, typer.Option("--from-log", help="Learn from the text in the home's log.")] = False,
    since: Annotated[str, typer.Option(help="Only answers since: 30m, 2h, 7d, or a time: 2026-11-20T08:00Z.")] = "",
    adapter: options.AdapterOption = None,
    policy: Annotated[str, typer.Option(help="With --to: folder or hub id of the base policy. Default: the home's.")] = "",
    to: Annotated[Path | None, typer.Option("--to", help="Make this new home, with the tasks of --home, for the result.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be learned, and write nothing.")] = False,
) -> None:
    """Warm start: train the base policy on edits, accepted answers, pairs and thumbs of the log, as version 1.

    Stop Millrace in this home first; --dry-run may run beside it. A log of a provider's answers needs --policy and --to.
    """
    if not from_log:
        raise InvalidSettings("learn needs --from-log: there is nothing else to learn from")
    if policy and to is None:
        raise InvalidSettings("--policy needs --to: a home that exists learns from its own version 0")
    source = load_settings(home)
    if not policy and not source.base:
        raise InvalidSettings(f"{home} has no policy of its own: name one with --policy, and a new home for it with --to")
    base = resolve_policy(policy or source.base)
    training = load_section(home, "training", TrainingSettings)
    if adapter is not None:
        training = training.model_copy(update={"adapter": AdapterSettings(rank=adapter)})
    start = parse_since(since, time.time()) if since else 0.0
    lessons = lessons_of(source, base, training, start, has_own_tokens=not policy)
    for line in table_of(lessons):
        print(line, flush=True)
    if not lessons.trained:
        raise InvalidSettings(
            f"nothing to learn in the log of {home}"
            + (": it has no answers" if not lessons.num_answers else "; the table says why, docs/training.md what each reason means")
        )
    if dry_run:
        print("nothing was written")
        return
    with claimed(to or home):
        settings = source if to is None else _new_settings(source, to, base)
        check = CheckOnce(settings.home)

        def fitting(folder: Path) -> CheckpointReport:
            report = check(folder)
            if lack := lack_of(report, room_here(settings.home, settings.device).memory, training):
                raise InvalidSettings(f"{folder} cannot be trained here: {lack}")
            return report

        sections: dict[str, Section] = {}
        if to is not None:
            sections = {"training": training, "release": check_gate(source.tasks, to, sentinels_of_home(home))}
        else:
            require_untrained(source)
        ready = prepare_home(settings, sections, fitting)
        _train(ready.settings, training, lessons, records_fates=to is None)
        if to is not None:
            print_keys_of(ready)
            print_gates(console, ready.settings)


def lessons_of(settings: Settings, base: Path, training: TrainingSettings, since: float, *, has_own_tokens: bool) -> Lessons:
    """Read, choose and render. Raises InvalidSettings, InvalidTask; Unavailable, Damaged: the log or the database cannot be read."""
    tasks = load_tasks(settings.tasks)
    renderer = Renderer(base, training.max_tokens, has_own_tokens=has_own_tokens)
    sentinels = read_sentinels(sentinels_of_home(settings.home), tasks)
    with closing(settings.event_log()) as log:
        selection = select(log, tasks, since)
    gone: dict[str, str] = {}
    if selection.remarks:
        with settings.snapshot() as connection:
            gone = withdrawn(connection, {remark.record.completion_id for remark in selection.remarks})
    asked = {hash_of(words_of(item.messages)) for item in sentinels.items}
    curated = curate(selection.remarks, tasks, asked, gone)
    found = Lessons(left_out=selection.left_out + curated.left_out, num_answers=selection.num_answers)
    for remark in curated.kept:
        try:
            samples = renderer.samples_of(remark)
        except NotRendered as error:
            found.left_out[str(error)] += 1
            continue
        held_out = is_held_out(remark)
        found.counts[remark.kind, held_out] += 1
        (found.held_out if held_out else found.trained).extend(samples)
    return found


def table_of(lessons: Lessons) -> Iterator[str]:
    """Lines: what is learned by kind, and what is left out by reason."""
    yield f"{lessons.num_answers:,} answers in the log"
    yield f"{'learned from':<28}{'trained':>10}{'held out':>10}"
    for kind in ("edit", "accepted", "pair", "thumb"):
        yield f"  {kind:<26}{lessons.counts[kind, False]:>10,}{lessons.counts[kind, True]:>10,}"
    if lessons.left_out:
        yield "left out"
    for reason, num in lessons.left_out.most_common():
        yield f"  {reason:<26}{num:>10,}"


def lack_of(report: CheckpointReport, memory: int, training: TrainingSettings) -> str:
    """Why there is not enough memory to train; empty if there is. What a GPU lacks, the trainer says itself."""
    need = memory_need(report, "cpu").trainer_peak if training.adapter is None else _ADAPTER_BYTES * report.num_weights
    return "" if need <= memory else f"training needs {gib(need)} of memory, and there are {gib(memory)}: take --adapter 8 or a smaller policy"


def require_untrained(settings: Settings) -> None:
    """Raises Conflict: the home has a version already, which a warm start would throw away."""
    if versions := [each for each in open_weight_store(settings).versions(settings.policy) if each]:
        raise Conflict(
            f"{settings.home} has version {max(versions)} already, and a warm start is version 1: name a new home with --policy and --to"
        )


def _new_settings(source: Settings, to: Path, base: Path) -> Settings:
    return make_settings(
        to, name=source.policy, base=base, tasks=list(source.tasks), device=source.device, web_port=source.web_port
    )


def _train(settings: Settings, training: TrainingSettings, lessons: Lessons, *, records_fates: bool) -> None:
    from pipelines.training.text.warm_start import learn_text  # noqa: PLC0415 torch takes seconds

    def keep() -> None:
        write_settings(settings, {"training": training} if training.adapter is not None else {})

    found = learn_text(
        settings, training, lessons.trained, lessons.held_out, keep, threading.Event(), records_fates=records_fates
    )
    content = {**found._asdict(), "counts": {}, "left_out": lessons.left_out, "keys": _keys_of(lessons.trained)}
    content["counts"] = {kind: num for (kind, held_out), num in lessons.counts.items() if not held_out}
    write_durably(settings.home / f"learned-v{found.version}.json", [msgspec.json.encode(content)], mode=0o600)
    print(f"version {found.version} is published and waits for the gate: start `millrace up` in {settings.home}")
    print(f"as files: millrace export {found.version} --home {settings.home} --to FOLDER")


def _keys_of(samples: Sequence[TextSample]) -> list[str]:
    return sorted({sample.key for sample in samples})
