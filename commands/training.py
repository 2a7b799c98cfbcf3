"""`millrace training` runs the process; `millrace training replay BUNDLE` takes a step that its guard stopped again, offline."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import structlog
import typer

from commands.options import DEFAULT_HOME, HomeOption
from commands.process import SupervisedOption, follow_supervisor, run_process
from contracts.errors import InvalidSettings
from pipelines.training.shards.launch import launch, settle_rank
from runtime.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipelines.training.checkpoints.bundle_replay import ComparedFigure, ComparedPart, ReplayedBundle

DIFFERENT = 3
"""Exit status if a figure differs. 1 and 2 are those of errors and of wrong usage."""
_LABELS = {"noise": "gradient_spike as noise", "direction": "gradient_spike one way"}
_MOST_DIFFERENT = 20
"""Lines of a part whose figures differ."""
_NAME, _VALUE = 26, 24
_EXACT = 2**53

_MILLRACE = Path(__file__).parent.parent / "millrace.py"

app = typer.Typer(help="Run the process training in the foreground; take a step that its guard stopped again.")


@app.callback(invoke_without_command=True)
def training(
    context: typer.Context,
    home: HomeOption = DEFAULT_HOME,
    *,
    supervised: SupervisedOption = False,
    start_from: Annotated[
        str,
        typer.Option("--from", help="earliest or now: choose where to read on after positions were lost, then exit."),
    ] = "",
    processes: Annotated[
        int, typer.Option(min=1, max=1024, help="Share the work among this many processes of this machine, one a GPU.")
    ] = 1,
) -> int:
    """Run the process training in the foreground; take a step that its guard stopped again."""
    if context.invoked_subcommand is not None:
        return 0
    if start_from not in {"", "earliest", "now"}:
        raise InvalidSettings(
            f"--from {start_from}: it is earliest (the oldest record in the log) or now (the end of the log)"
        )
    if processes > 1:
        return _launch(processes, home, *(("--from", start_from) if start_from else ()), supervised=supervised)
    settle_rank(os.environ)
    run_process("training", home, supervised=supervised, **({"start_from": start_from} if start_from else {}))
    return 0


def _launch(processes: int, home: Path, *more: str, supervised: bool) -> int:
    """Run this command in several processes, which end with this one. Raises InvalidSettings: the settings are wrong."""
    load_settings(home)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if supervised:
        threading.Thread(target=follow_supervisor, daemon=True).start()
    command = [sys.executable, str(_MILLRACE), "training", "--home", str(home), "--supervised", *more]
    return launch(command, processes, stop, lambda line: print(line, flush=True))


@app.command()
def replay(
    bundle: Annotated[Path, typer.Argument(help="Folder in the home's bundles/; the log names it.")],
    policy: Annotated[
        str, typer.Option("--policy", help="Folder or hub id of the base policy. Default: where the bundle says.")
    ] = "",
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N. Default: as in the bundle.")] = "",
) -> int:
    """Take a step that the guard stopped again, offline: recorded figures beside those of this machine.

    Exit status 0: all are equal bit by bit. 3: some differ. 1: the bundle cannot be replayed.
    """
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    from pipelines.training.checkpoints.bundle_replay import replay_bundle  # noqa: PLC0415 torch takes seconds

    found = replay_bundle(bundle, base=policy, device=device)
    for line in _lines(found):
        print(line)
    return 0 if found.is_same else DIFFERENT


def _lines(found: ReplayedBundle) -> Iterator[str]:
    held = found.bundle
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(held.at))
    yield f"{held.reason}: epoch {held.epoch}, step {held.step}, {when} UTC"
    for item in found.machine:
        yield f"{item.name}: {item.recorded} then, {item.recomputed} here"
    if found.machine:
        yield "Another machine or release: figures can be near, not equal bit by bit."
    for part in found.parts:
        yield from _part_lines(part)
    yield ""
    if found.is_same:
        yield "same: every figure is equal bit by bit"
        return
    figures = [item for part in found.parts for item in part.figures if not item.is_same]
    yield f"different: {len(figures)} figures, the largest relative difference is {max(i.distance for i in figures):.3g}"
    yield "Equal bits are promised on the same machine, device and number of processes only. Where the sums of a device have no"
    yield "fixed order, they differ there too: an H100 gave other bits in 7 of 16 steps."


def _part_lines(part: ComparedPart) -> Iterator[str]:
    if not part.figures:
        return
    if part.is_same and not part.is_shown:
        yield f"\n{part.title}: same"
        return
    shown = part.figures if part.is_shown else [item for item in part.figures if not item.is_same][:_MOST_DIFFERENT]
    yield f"\n{part.title:<{_NAME + 2}} {'recorded':<{_VALUE}} recomputed"
    for item in shown:
        if item.recorded or item.recomputed:
            yield _line(item)


def _line(item: ComparedFigure) -> str:
    verdict = "same" if item.is_same else f"differs by {item.distance:.3g}"
    limit = "" if item.limit is None else f", a spike above {item.limit:.6g}"
    name, one, other = _LABELS.get(item.name, item.name), _plain(item.recorded), _plain(item.recomputed)
    return f"  {name:<{_NAME}} {one:<{_VALUE}} {other:<{_VALUE}} {verdict}{limit}"


def _plain(value: float | str | None) -> str:
    """All digits: a float that differs in its last bit looks different."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT else str(value)
