"""Fill the tables "On a GPU" of docs/performance.md on one card, in at most eight minutes.

usage: python -m benchmarks.gpu [--out FOLDER] [--only TEXT] [--seconds 480] [--rehearse]

In: a machine with torch, transformers and numba; what else the product imports may lie in `runs/gpu-packages` (`make gpu-packages`). Out: a line
and a JSON file after each row. Each row is a process of its own with a deadline, so that a row that fails, hangs or
does not fit costs its own figures only: what it had is kept, and the reason stands beside it. `--rehearse` runs all of it at tiny
size on a CPU, as a test of this script; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zipfile import ZipFile

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "runs" / "gpu-packages"
SECONDS = 480.0
LEAST = 8.0
"""Seconds below which no further row is begun."""

Figures = dict[str, Any]


class GpuRow(NamedTuple):
    """A row: `MODULE:FUNCTION` with its arguments, a generator of figures."""

    name: str
    seconds: float
    """The most it may take."""
    function: str
    arguments: Figures


def row(name: str, seconds: float, function: str, **arguments: Any) -> GpuRow:
    """A row of this folder."""
    return GpuRow(name, seconds, f"benchmarks.gpu.{function}", arguments)


R8, R32 = ({"rank": rank, "alpha": 32} for rank in (8, 32))
ROWS = (
    row("machine", 30, "machine:facts"),
    row("attention beside the CPU's", 30, "steps:attention"),
    row("trainer, layers compiled", 90, "steps:trainer", compile_layers=True),
    row("plain step (L1)", 50, "steps:plain"),
    row("plain step, blocks compiled (L2)", 80, "steps:plain", compiled=True),
    row("trainer, anchor computed", 110, "steps:trainer"),
    row("trainer, no anchor", 60, "steps:trainer", has_anchor=False),
    row("a version through the codec", 90, "versions:codec"),
    row("adapter swap, 8 B, rank 32", 20, "versions:adapter_swap"),
    row("adapter of rank 8", 60, "steps:trainer", adapter=R8),
    row("micro-batches beside users, adapter of rank 8", 40, "steps:beside_users", adapter=R8),
    row("our engine, for trying out", 70, "engine:speed"),
    row("a changed version on the card", 40, "versions:pauses"),
    row("masters in host memory", 70, "steps:trainer", has_anchor=False, masters="host"),
    row("adapter of rank 32, 8 B", 140, "steps:trainer", size="8B", adapter=R32, recompute="always"),
    row("adapter of rank 32", 50, "steps:trainer", adapter=R32),
)


def main(arguments: Sequence[str]) -> Figures:
    """Run the rows; returns what the file holds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument(
        "--out", type=Path, help="folder of the file; by default $OUT, benchmarks/results, or runs for a rehearsal"
    )
    parser.add_argument("--only", default="", help="rows whose names contain this")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all rows together")
    parser.add_argument("--rehearse", action="store_true", help="at tiny size on a CPU")
    options = parser.parse_args(arguments)
    began, method = time.monotonic(), "fork"
    report: Figures = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "rehearsed": options.rehearse,
        "rows": {},
    }
    usual = os.environ.get("OUT") or ROOT / ("runs" if options.rehearse else "benchmarks/results")
    path = Path(options.out or usual) / f"{report['at'][:10]}-gpu.json"
    with tempfile.TemporaryDirectory() as folder:
        sys.path[:0] = _carried(Path(folder))
        _import_once()
        for each in (each for each in ROWS if options.only in each.name):
            left = min(each.seconds, options.seconds - (time.monotonic() - began))
            started = time.monotonic()
            found = run_row(each, left, method, rehearse=options.rehearse) if left > LEAST else {"not_run": "no time"}
            method = found.get("start_method", method)
            report["rows"][each.name] = {**found, "row_seconds": time.monotonic() - started}
            report["ratios"] = _ratios(report["rows"])
            print(f"{each.name}: {json.dumps(found)}", flush=True)
            _write(path, report)
            if found.get("device") == "none" and not options.rehearse:
                sys.exit("this machine has no CUDA device: --rehearse runs the script on a CPU")
    print(f"ratios: {json.dumps(report['ratios'])}\n{time.monotonic() - began:.0f} s; written: {path}")
    return report


def _ratios(rows: Figures) -> Figures:
    """The trainer's speed over that of the plain steps: the median over steps, whose rows are the same."""
    speed = {name: found["tokens_s"]["samples"] for name, found in rows.items() if "tokens_s" in found}
    plain = [name for name in speed if name.startswith("plain")]
    return {
        f"{name} / {peer}": statistics.median(
            ours / theirs for ours, theirs in zip(speed[name], speed[peer], strict=False)
        )
        for name in sorted(speed.keys() - plain)
        for peer in plain
    }


def run_row(row: GpuRow, seconds: float, method: str, *, rehearse: bool) -> Figures:
    """What a row found within its seconds; `not_run` says why nothing, `broke_off` why not all of it."""
    context: Any = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(row, sender), kwargs={"rehearse": rehearse, "seconds": seconds})
    process.start()
    sender.close()
    deadline, found = time.monotonic() + seconds, Figures()
    try:
        while receiver.poll(max(deadline - time.monotonic(), 0)):
            found = found | receiver.recv()
        found["broke_off"] = f"no time: stopped after {seconds:.0f} s"
    except EOFError:
        process.join(LEAST)
        if process.exitcode:
            found["broke_off"] = f"its process ended with status {process.exitcode}"
    finally:
        process.kill()
        process.join()
    if found.keys() == {"broke_off"}:
        found = {"not_run": found["broke_off"]}
    return found


def _child(row: GpuRow, sender: Connection, *, rehearse: bool, seconds: float) -> None:
    """Run a row, and send what it finds. A reason is short, its traceback goes to standard error."""
    module, _, name = row.function.partition(":")
    try:
        function: Callable[..., Iterator[Figures]] = getattr(import_module(module), name)
        for found in function(**row.arguments, rehearse=rehearse, seconds=seconds):
            sender.send(found)
    except ModuleNotFoundError as error:
        sender.send({"broke_off": f"this machine has no {error.name}: carry it with `make gpu-packages`"})
    except Exception as error:  # noqa: BLE001 whatever fails costs its row only
        traceback.print_exc()
        sender.send({"broke_off": f"{type(error).__name__}: {str(error)[:300]}"})


def _import_once() -> None:
    """Import what the rows need before they are forked. Nothing of it may touch the device: CUDA does not survive a fork."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    for name in ("transformers.models.qwen3.modeling_qwen3", "pipelines.training.learning.whole_model"):
        with suppress(ModuleNotFoundError):
            import_module(name)


def _carried(folder: Path) -> list[str]:
    """A folder for `sys.path` with the carried packages. Wheels for several Pythons unpack over one another."""
    wheels = sorted(PACKAGES.glob("*.whl"))
    for wheel in wheels:
        with ZipFile(wheel) as file:
            file.extractall(folder)
    return [str(folder)] if wheels else []


def _write(path: Path, report: Figures) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(report, indent=2) + "\n")
    part.replace(path)


if __name__ == "__main__":
    main(sys.argv[1:])
