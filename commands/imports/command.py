"""`millrace import FILE`, `millrace import undo ID`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from commands.imports import importer, progress
from commands.imports.elements import opened
from commands.imports.formats import FORMATS
from commands.imports.mapping import read_maps
from commands.imports.records import Target
from commands.imports.tally import print_tally
from commands.imports.undo import undo
from commands.options import DEFAULT_HOME, HomeOption
from contracts.errors import InvalidSettings
from contracts.tasks import Task
from contracts.tasks.loading import load_tasks
from runtime.log.loss_detection import require_same_log
from runtime.settings import Settings, load_settings

if TYPE_CHECKING:
    from runtime.template.chat_template import ChatTemplate

_UNDO = "undo"


def run_import(
    source: Annotated[
        str, typer.Argument(metavar="FILE", help="Export of another system; - is standard input. Or: undo.")
    ],
    import_id: Annotated[str, typer.Argument(metavar="[ID]", help="With undo: the import to take back.")] = "",
    home: HomeOption = DEFAULT_HOME,
    *,
    kind: Annotated[str, typer.Option("--from", help=f"Format: {', '.join(FORMATS)}.")] = "",
    task: Annotated[str, typer.Option(help="The task of these answers. Default: the first one.")] = "",
    maps: Annotated[
        list[str] | None,
        typer.Option(
            "--map", metavar="NAME=PATH", help="A signal from a score, or a signal or field from a place in the row."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be imported.")] = False,
) -> None:
    """Import answers that other systems logged, with what people said of them. Run it again after an interruption: it goes on.

    Imported answers are scored, shown and exported; no step takes them by ratio, and no comparison of versions counts them.
    """
    settings = load_settings(home)
    if source == _UNDO:
        _take_back(settings, import_id)
        return
    if kind not in FORMATS or import_id:
        raise InvalidSettings(f"millrace import FILE --from FORMAT; formats are {', '.join(FORMATS)}")
    chosen = _task_of(settings, task)
    read = read_maps(maps or [], chosen)
    with (
        opened(source) as file,
        nullcontext() if dry_run else progress.claimed_imports(settings.home),
        closing(settings.database()) as database,
        closing(settings.event_log()) as log,
    ):
        if not dry_run:
            require_same_log(database, log, settings.home)
        now = time.time()
        content = progress.hash_of(file, kind, chosen.name, chosen.hash, *sorted(maps or []))
        held = progress.find(settings.home, content, source, now)
        if held.done_at is not None and not dry_run:
            print(f"imported already, as {held.id}; take it back with: millrace import undo {held.id} --home {home}")
            return
        if held.next_byte and not dry_run:
            print(f"going on with {held.id}, after {held.next_byte:,} bytes")
        target = Target(kind, held.id, settings.policy, chosen, read, now, _fitting(settings))
        tally = importer.run(
            importer.Destination(settings.home, database, log, not dry_run), file, FORMATS[kind], target, held
        )
    print_tally(tally, chosen)
    print("nothing was written" if dry_run else f"imported as {held.id}")


def _take_back(settings: Settings, import_id: str) -> None:
    with progress.claimed_imports(settings.home), closing(settings.database()) as database:
        held = progress.get(settings.home, import_id)
        if held.undone_at is not None:
            print(f"{import_id} was taken back already")
            return
        now = time.time()
        with closing(settings.event_log()) as log:
            num = undo(database, log, held.id, now)
        progress.write(settings.home, msgspec.structs.replace(held, undone_at=now))
    print(f"{import_id}: {num:,} rows become quarantined(import)")


def _task_of(settings: Settings, name: str) -> Task:
    tasks = load_tasks(settings.tasks)
    if name and name not in tasks:
        raise InvalidSettings(f"no task is called {name!r}; there are {', '.join(tasks)}")
    return tasks[name] if name else next(iter(tasks.values()))


def _fitting(settings: Settings) -> Callable[[str], bool]:
    """Whether a text fits into the policy's context. Short ones do without being looked at, and all do where there is no policy yet."""
    if not settings.base:
        return lambda _text: True

    @cache
    def template() -> ChatTemplate:
        from runtime.template.chat_template import load_template  # noqa: PLC0415 it takes 100 MB, and most imports need none

        return load_template(settings.base)

    def fits(text: str) -> bool:
        context = template().context
        # A token has one byte at least.
        return len(text.encode()) <= context or len(template().tokenizer.encode(text).ids) <= context

    return fits
