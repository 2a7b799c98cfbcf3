"""`millrace policy list|promote|rollback`."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from commands import queries
from commands.gate_home import gates_of_home
from contracts import assignments
from contracts.assignments import LIVE, MOVED
from contracts.errors import NotFound
from contracts.rollback import roll_back
from contracts.settings import Settings, load_settings
from contracts.weights.store import open_weight_store

_WRITER = "operator"


def print_versions(home: Path) -> None:
    """One line a version, newest first."""
    settings = load_settings(home)
    store = open_weight_store(settings)
    with settings.database().snapshot() as connection:
        arms = assignments.read(connection, settings.policy)
        verdicts = queries.verdicts(connection, settings.policy)
        anchors = queries.anchors(connection, settings.policy)
    serving = {arm.version: name for name, arm in arms.items() if arm.version is not None and name != "training"}
    table = Table("version", "parent", "made", "samples", "density", "delta", "verdict", "serves")
    for version in reversed(store.versions(settings.policy)):
        manifest = store.manifest(settings.policy, version)
        table.add_row(
            f"v{version}",
            "" if manifest.parent is None else f"v{manifest.parent}",
            time.strftime("%H:%M:%S", time.localtime(manifest.created_at)),
            str(manifest.num_samples),
            f"{manifest.density:.3f}",
            f"{manifest.payload_bytes / 1000:.0f} kB",
            _verdict_text(verdicts.get(version)),
            ", ".join(
                filter(None, [serving.get(version, ""), *(f"anchor of {task}" for task in anchors.get(version, ()))])
            ),
        )
    Console().print(table)
    for gate in gates_of_home(settings):
        print(f"task {gate.task}: {gate.says}")


def promote(home: Path, version: int, reason: str) -> None:
    """Point `live` at a version that the store holds."""
    settings = load_settings(home)
    open_weight_store(settings).manifest(settings.policy, version)
    with settings.database().transaction() as connection:
        arms = assignments.read(connection, settings.policy)
        if LIVE not in arms:
            raise NotFound("nothing is live yet; start with: millrace up")
        assignments.move(
            connection,
            policy=settings.policy,
            arm=LIVE,
            version=version,
            expected_epoch=arms[LIVE].epoch,
            writer=_WRITER,
            reason=reason,
            share=1.0,
        )
    _tell(settings)
    print(f"v{version} is assigned to live")


def rollback(home: Path, to: int | None, reason: str) -> None:
    """Take the live version back."""
    settings = load_settings(home)
    if to is not None:
        open_weight_store(settings).manifest(settings.policy, to)
    with settings.database().transaction() as connection:
        version = roll_back(connection, policy=settings.policy, writer=_WRITER, reason=reason, to=to)
    _tell(settings)
    print(f"v{version} is assigned to live, and the trainer goes on from it")


def _tell(settings: Settings) -> None:
    bell = settings.passing().bell
    bell.ring(MOVED)
    bell.close()


def _verdict_text(verdict: queries.Verdict | None) -> str:
    if verdict is None:
        return "not judged"
    return f"{'accepted' if verdict.accepted else 'refused'}: {verdict.reason}"
