"""`millrace export`: a version as files that transformers, peft and vLLM load.

In: a version of the weight store. Out: a folder, complete or absent: an adapter in peft's layout, or a whole checkpoint, and a README.md
that says what it learned from and how much better it is. Waits for: the store.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from commands import queries
from commands.options import DEFAULT_HOME, HomeOption
from contracts import train_points
from contracts.errors import Conflict, NotFound
from contracts.tasks import Task
from contracts.tasks.loading import load_tasks
from contracts.version_history import BASE
from runtime.settings import Settings, load_settings
from weights.adapters import AdapterConfig, config_of, merged, write_adapter
from weights.files import full_disk_named
from weights.stores.opening import open_weight_store
from weights.tensors import SINGLE_FILE, write_safetensors
from weights.versions.manifest import Manifest

_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf"}


def export(
    version: Annotated[int, typer.Argument(help="Version to export.")],
    to: Annotated[Path, typer.Option("--to", help="Folder that is made; it may not exist.")],
    home: HomeOption = DEFAULT_HOME,
    *,
    merge: Annotated[
        bool, typer.Option("--merged", help="Of an adapter: the whole checkpoint, the adapter added to its base.")
    ] = False,
) -> None:
    """Write a version as a folder that transformers, peft and vLLM load, with a README.md about it."""
    settings = load_settings(home)
    if to.exists():
        raise Conflict(f"{to} exists: name a folder that does not")
    store = open_weight_store(settings)
    manifest = store.manifest(settings.policy, version)
    print(f"reading v{version}", flush=True)
    tensors = store.load(settings.policy, version)
    adapter = config_of(tensors)
    making = to.with_name(f".{to.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    try:
        if adapter is not None and not merge:
            write_adapter(making, tensors, settings.base)
        else:
            if adapter is not None:
                tensors = merged(store.load(settings.policy, BASE), tensors)
            _copy_beside(Path(settings.base), making)
            write_safetensors(making / SINGLE_FILE, tensors)
        with full_disk_named(making):
            (making / "README.md").write_text(_card(settings, manifest, adapter, is_merged=merge))
        making.rename(to)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    size = sum(path.stat().st_size for path in to.iterdir())
    what = "an adapter in peft's layout" if adapter is not None and not merge else "a whole checkpoint"
    print(f"v{version} is in {to}: {what}, {size / 1e6:,.1f} MB")


def _copy_beside(base: Path, to: Path) -> None:
    """Copy what stands beside the weights: the configuration, the tokenizer, the template."""
    if not base.is_dir():
        raise NotFound(
            f"the base policy is not in {base} any more: its configuration and tokenizer are copied from there"
        )
    with full_disk_named(to):
        for path in sorted(base.iterdir()):
            is_hidden, is_weights = (
                path.name.startswith("."),
                path.suffix in _WEIGHTS or path.name.endswith(".index.json"),
            )
            if path.is_file() and not is_hidden and not is_weights:
                shutil.copyfile(path, to / path.name)


def _card(settings: Settings, manifest: Manifest, adapter: AdapterConfig | None, *, is_merged: bool) -> str:
    """The text of README.md."""
    with settings.snapshot() as connection:
        verdict = queries.verdicts(connection, settings.policy).get(manifest.version)
        lift = train_points.read(connection, settings.policy, train_points.LIFT)
    lines = [f"# {settings.policy} v{manifest.version}", ""]
    if adapter is not None:
        kind = "Merged with its base from a LoRA adapter" if is_merged else "A LoRA adapter"
        lines += [f"{kind} of rank {adapter.rank}, alpha {adapter.alpha:g}, on {', '.join(adapter.targets)}.", ""]
    facts: dict[str, Any] = {
        "run": manifest.run,
        "made": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(manifest.created_at)),
        "parent": "none" if manifest.parent is None else f"v{manifest.parent}",
        "steps": manifest.step,
        "samples since its parent": manifest.num_samples,
        "base": Path(settings.base).name,
        "root of the published version": f"`{manifest.target_root}`",
        "verdict of the gate": "not judged" if verdict is None else verdict.reason,
        "lift": _lift_words(lift[-1] if lift else None),
    }
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    for task in load_tasks(settings.tasks).values():
        lines += ["", *_task_lines(task)]
    if is_merged and adapter is not None:
        lines += [
            "",
            "The sum was rounded to bfloat16, so log-probs differ slightly from those that the version was judged by.",
        ]
    return "\n".join(lines) + "\n"


def _lift_words(point: tuple[float, dict[str, Any]] | None) -> str:
    if point is None or point[1].get("difference") is None:
        return "not measured: no hold-out"
    at, facts = point
    interval = f"{facts['difference']:+.3f} reward, interval {facts.get('low', float('nan')):+.3f} to {facts.get('high', float('nan')):+.3f}"
    day = time.strftime("%Y-%m-%d", time.gmtime(at))
    return f"what was live on {day} against v{facts.get('version')}: {interval}"


def _task_lines(task: Task) -> list[str]:
    parts = {
        "signals": ", ".join(task.signals),
        "verifiers": ", ".join(rule.name for rule in task.verifiers),
        "judges": ", ".join(rule.name for rule in task.judges),
    }
    return [f"## Task {task.name}", "", *(f"- {name}: {text}" for name, text in parts.items() if text)]
