"""`millrace doctor --deep`: asks everything that a home depends on, once, and says what is wrong and what to do.

In: the settings of a home. Out: findings. Waits for: each server, judge and port, a few seconds each. It changes nothing that stays: a probe
object in the weight store and a key in Redis are removed or expire.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from commands.deep.servers import clock_findings, port_findings, server_findings
from commands.deep.tls import certificate_findings, encryption_findings
from commands.findings import Finding, missing
from contracts.errors import MillraceError
from contracts.tasks import Task
from contracts.tasks.loading import load_tasks
from rewards.judges.registry import new_http, probe
from rewards.worker import RewardsHandler
from runtime.settings import Settings

_GIB = 2**30
_SPARE_BYTES = 2 * _GIB
"""For the log, the database and whatever else grows between two looks."""


def deep_findings(settings: Settings) -> Iterator[Finding]:
    """Every check, the cheap ones first; one that fails does not end the others."""
    yield from certificate_findings(settings)
    yield from encryption_findings(settings)
    yield from disk_findings(settings)
    yield from port_findings(settings)
    yield from server_findings(settings)
    yield from clock_findings(settings)
    yield from task_findings(settings)


def disk_findings(settings: Settings) -> Iterator[Finding]:
    """One finding per disk that the home writes to: it needs room for two more checkpoints."""
    folders = {"home": settings.home, "checkpoints": settings.checkpoints, "spool": settings.home / "spool"}
    if settings.weights_url is None:
        folders["weights"] = settings.weights
    seen = set[int]()
    for name, folder in folders.items():
        if not folder.exists() or (device := folder.stat().st_dev) in seen:
            continue
        seen.add(device)
        yield _disk(f"disk {name}", folder, 2 * _newest_checkpoint(settings.checkpoints) + _SPARE_BYTES)


def _disk(name: str, folder: Path, needed: int) -> Finding:
    size, _, free = shutil.disk_usage(folder)
    says = f"{folder}: {free / _GIB:.1f} GiB of {size / _GIB:.0f} free"
    if free >= needed:
        return Finding(name, True, False, says)
    return missing(
        name,
        f"{says}, and two more checkpoints with room to spare take {needed / _GIB:.1f}: make it larger, or lower checkpoint_keep in "
        "[training], or delete bundles/",
    )


def _newest_checkpoint(folder: Path) -> int:
    newest = max(folder.glob("checkpoint-*"), default=None)
    return 0 if newest is None else sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())


def task_findings(settings: Settings) -> Iterator[Finding]:
    """One finding per task file, and one per judge."""
    base = Path(settings.base)
    if settings.base and not (base / "config.json").is_file():
        yield missing("base", f"{base} holds no policy: copy it there, or name another at the start with --policy")
    for path in settings.tasks:
        try:
            tasks = load_tasks((path,))
            RewardsHandler(tasks).close()
        except MillraceError as error:
            yield missing("task", error.message)
            continue
        for task in tasks.values():
            graders = ", ".join(rule.name for rule in (*task.verifiers, *task.judges))
            yield Finding("task", True, True, f"{path}: {task.name}, with graders {graders or 'none'}")
            yield from _judges(task)


def _judges(task: Task) -> Iterator[Finding]:
    """Each is asked one short question, as at a start."""
    with new_http() as http:
        for index, rule in enumerate(task.judges):
            try:
                probe(task, index, http)
            except MillraceError as error:
                yield missing("judge", error.message)
            else:
                places = ", ".join(endpoint.url for endpoint in rule.endpoints)
                yield Finding("judge", True, True, f"{rule.name!r} of task {task.name!r} answers at {places}")
