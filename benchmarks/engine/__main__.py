"""The engine: tokens a second, beside transformers' `generate` on the same weights, dtype and threads.

usage: python -m benchmarks.engine [--device cuda] [--quick | --profile N]

In: real prompts of the demo product. Out: a table, and a dated JSON file. Waits: until every answer is complete. Both
sample at temperature 1 and record a log-prob per token. `fixed`: every answer has 64 tokens. `ragged`: 8 to 64, mixed,
and only tokens that were asked for count: a static batch waits for its longest, the engine starts the next request.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.engine.arms import EngineSpeed, GenerateArm, MillraceArm
from benchmarks.report import print_table, summarise, write_report
from policy.load import load_model
from services.engine.settings import EngineSettings
from tests.worlds.engines.own import Job, make_jobs, open_engine_on
from tests.worlds.paths import BASE

SIZES = (8, 32, 64)
NUM_TOKENS = 64
SHORTEST = 8
_WAVES = {"fixed": 1, "ragged": 4}
"""Requests per place in flight: ragged needs a queue behind it, or nothing could take the place of a short answer."""


def main(arguments: Sequence[str]) -> None:
    """Measure what the command line asks for."""
    options = _parse(arguments)
    settings = EngineSettings()
    torch.set_num_threads(settings.threads)
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    plain = load_model(str(options.base), device=options.device, dtype=dtype)
    with (
        tempfile.TemporaryDirectory() as folder,
        open_engine_on(Path(folder), options.base, options.device, dtype, settings) as engine,
    ):
        ours, peer = MillraceArm(engine), GenerateArm(plain)
        if options.profile:
            _profile(options, ours)
        else:
            _measure(options, settings, {"millrace": ours, "generate": peer})


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine", description=str(__doc__).split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--base", type=Path, default=BASE, help="the policy: a folder in the layout of Hugging Face")
    parser.add_argument("--device", default="cpu", help="cpu (float32), cuda or cuda:N (bfloat16)")
    parser.add_argument("--rounds", type=int, default=5, help="times over all cases, arms interleaved")
    parser.add_argument("--quick", action="store_true", help="one round; writes no file")
    parser.add_argument("--profile", type=int, metavar="N", help="where the engine's time goes with N in flight")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds = 1
    return options


def _measure(options: argparse.Namespace, settings: EngineSettings, arms: dict[str, MillraceArm | GenerateArm]) -> None:
    samples: dict[tuple[str, int, str], list[EngineSpeed]] = defaultdict(list)
    for number in range(options.rounds + 1):  # the first warms up
        for case, waves in _WAVES.items():
            for size in SIZES:
                jobs = _jobs(options.base, case, size * waves, seed=number)
                for name, arm in arms.items():
                    found = arm.run(jobs, size)
                    if number:
                        samples[case, size, name].append(found)
        print("warmed up" if not number else f"round {number}/{options.rounds}")
    result = {case: {str(size): _compared(samples, case, size, list(arms)) for size in SIZES} for case in _WAVES}
    rows = [
        (
            case,
            size,
            *(_shown(found[name]["by_clock"]) for name in arms),
            f"{found['ratio']['by_clock']['median']:.2f}",
            *(f"{found[name]['by_processor']['median']:,.0f}" for name in arms),
            f"{found['ratio']['by_processor']['median']:.2f}",
        )
        for case, sizes in result.items()
        for size, found in sizes.items()
    ]
    columns = ("", "in flight", *(f"{name}, tokens/s" for name in arms), "ratio")
    columns += (*(f"{name}, tokens/CPU s" for name in arms), "ratio")
    print_table(f"{options.base.name} on {options.device}, {settings.threads} thread(s)", columns, rows)
    if not options.quick:
        content = {
            "device": torch.cuda.get_device_name() if options.device.startswith("cuda") else "cpu",
            "threads": settings.threads,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "rounds": options.rounds,
            "tokens_per_answer": {"fixed": NUM_TOKENS, "ragged": [SHORTEST, NUM_TOKENS]},
            "requests_per_place": _WAVES,
            "tokens_per_second": result,
        }
        print(write_report(f"engine-{options.device.partition(':')[0]}", content))


def _compared(
    samples: dict[tuple[str, int, str], list[EngineSpeed]], case: str, size: int, names: list[str]
) -> dict[str, Any]:
    ours, peer = (samples[case, size, name] for name in names)
    ratios = [
        EngineSpeed(mine.by_clock / other.by_clock, mine.by_processor / other.by_processor)
        for mine, other in zip(ours, peer, strict=True)
    ]
    return {name: _summary(found) for name, found in (*zip(names, (ours, peer), strict=True), ("ratio", ratios))}


def _summary(found: list[EngineSpeed]) -> dict[str, Any]:
    return {field: summarise([getattr(speed, field) for speed in found]) for field in EngineSpeed._fields}


def _shown(figures: dict[str, Any]) -> str:
    return f"{figures['median']:,.0f} ({figures['min']:,.0f} to {figures['max']:,.0f})"


def _jobs(base: Path, case: str, count: int, seed: int) -> list[Job]:
    return make_jobs(base, count, shortest=SHORTEST if case == "ragged" else NUM_TOKENS, longest=NUM_TOKENS, seed=seed)


def _profile(options: argparse.Namespace, arm: MillraceArm) -> None:
    jobs = _jobs(options.base, "fixed", options.profile, seed=0)
    arm.run(jobs, options.profile)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if options.device.startswith("cuda"):
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)  # noqa: SLF001 steps run on a thread
    with torch.profiler.profile(activities=activities, experimental_config=everywhere) as profiler:
        arm.run(jobs, options.profile)
    print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=40))


if __name__ == "__main__":
    main(sys.argv[1:])
