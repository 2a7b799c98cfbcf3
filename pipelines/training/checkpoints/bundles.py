"""The folder of bundles: what explains each step that the guard stopped, and what is needed to take it again elsewhere.

    bundles/step-000003-00000018-9f2c31aa/    a guarded step
                 bundle.json                   see `bundle_records`
                 checkpoint-000003-00000007/   hard links: the weights as of the last save, and the journal of the steps since then,
                                               which ends with this one. The samples stand in it, content included
            rewards-000003-00000021-51e07b20/  rewards that jumped: `bundle.json` alone

In: a guarded step. Out: its folder, there whole or not at all. Waits for: the disk. If the disk is full or refuses, training goes on
without the bundle, and the log says so.

Bounds: MOST_BUNDLES bundles. Only those of the newest MOST_CHECKPOINTS checkpoints, and none older than CONTENT_SECONDS, keep their
links; a checkpoint that nothing else needs takes 12 bytes per parameter.
"""

from __future__ import annotations

import math
import re
import shutil
import time
from typing import TYPE_CHECKING

import msgspec
import structlog
from blake3 import blake3

from contracts.errors import MillraceError
from pipelines.training.checkpoints.bundle_records import (
    BUNDLE,
    Bundle,
    RewardBundle,
    StepBundle,
    encode_bundle,
    facts_of,
    origin_of,
)
from weights.files import make_folder_durably, sync_folder, write_durably

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from contracts.records import Experience
    from pipelines.training.checkpoints.bundle_records import BundleOrigin
    from pipelines.training.checkpoints.journal import Journal
    from pipelines.training.checkpoints.plans import Plan
    from pipelines.training.samples.reward_watch import Suspicion, WatchMemory
    from pipelines.training.samples.trial import TrialResult
    from pipelines.training.settings import TrainingSettings

MOST_BUNDLES = 200
MOST_CHECKPOINTS = 2
CONTENT_SECONDS = 7 * 24 * 3600.0
"""How long what users wrote stays in a bundle: as long as corrections of it are learned by default."""
_OWN = re.compile(r"(step|rewards)-.+|(epoch|sample|rewards)-.+\.json")
"""What may be deleted here. The files ending in .json are bundles of earlier releases."""
_UNFINISHED = "unfinished-"

log = structlog.get_logger()


class Bundles:
    """The bundles of one trainer, in its thread."""

    def __init__(
        self,
        folder: Path,
        checkpoints: Path,
        origin: Callable[[], BundleOrigin],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`origin` says where this trainer runs. `clock` is that of the disk's files."""
        self._folder, self._checkpoints, self._origin = folder, checkpoints, origin
        self._clock = clock
        self._expires = 0.0

    def keep_step(self, plan: Plan, found: TrialResult, journal: Journal) -> Path | None:
        """Write the bundle of a step that was skipped or found culprits; None if that was not possible."""
        name = journal.name if journal.is_open else ""
        bundle = StepBundle(
            epoch=plan.epoch,
            step=plan.step,
            at=plan.at,
            origin=self._origin(),
            checkpoint=name,
            missing="" if name else "no checkpoint led to the weights of this step",
            plan=plan.digest,
            **facts_of(found),
        )
        return self._keep(f"step-{plan.epoch:06d}-{plan.step:08d}-{plan.digest[:8]}", bundle, name)

    def keep_rewards(
        self,
        batch: Sequence[Experience],
        found: Sequence[Suspicion],
        before: WatchMemory,
        *,
        epoch: int,
        step: int,
        at: float,
        reason: str,
    ) -> Path | None:
        """Write the bundle of rewards that jumped; None if that was not possible. `batch`: without tokens."""
        suspects = {item.task for item in found}
        bundle = RewardBundle(
            epoch=epoch,
            step=step,
            at=at,
            reason=reason,
            origin=self._origin(),
            tasks=[item._asdict() for item in found],
            samples=[
                {"key": item.key, "revision": item.revision, "task": item.task, "reward": item.reward}
                for item in batch
                if f"{item.task}@{item.task_hash}" in suspects
            ],
            batch=list(batch),
            levels=before.levels,
            recent=before.recent,
            suspect_since=before.suspect_since,
        )
        digest = blake3("\n".join(item.key for item in batch).encode()).hexdigest(4)
        return self._keep(f"rewards-{epoch:06d}-{step:08d}-{digest}", bundle, "")

    def expire(self) -> None:
        """Delete what is too old. Cheap if nothing is."""
        if self._clock() >= self._expires:
            self._tidy()

    def _keep(self, name: str, bundle: Bundle, checkpoint: str) -> Path | None:
        place, temporary = self._folder / name, self._folder / f"{_UNFINISHED}{name}"
        try:
            make_folder_durably(self._folder)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            if checkpoint and isinstance(bundle, StepBundle) and (missing := self._linked(checkpoint, temporary)):
                bundle = msgspec.structs.replace(bundle, checkpoint="", missing=missing)
            write_durably(temporary / BUNDLE, [encode_bundle(bundle)])
            sync_folder(temporary)
            shutil.rmtree(place, ignore_errors=True)
            temporary.replace(place)
            sync_folder(self._folder)
        except (OSError, MillraceError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            log.error("the bundle of a guarded step is not written", bundle=str(place), reason=str(error))  # noqa: TRY400 an operator's disk
            return None
        self._tidy()
        return place

    def _linked(self, checkpoint: str, folder: Path) -> str:
        """Link what leads to the weights; returns why that is impossible, or empty."""
        source, target = self._checkpoints / checkpoint, folder / checkpoint
        try:
            target.mkdir()
            for path in sorted(source.iterdir()):
                (target / path.name).hardlink_to(path)
            sync_folder(target)
        except OSError as error:
            shutil.rmtree(target, ignore_errors=True)
            return f"{checkpoint} could not be linked: {error.strerror}"
        return ""

    def _tidy(self) -> None:
        """Delete the oldest bundles, and the links of all but the newest."""
        self._expires = math.inf
        try:
            self._delete_old()
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("old bundles are not deleted", folder=str(self._folder), reason=str(error))

    def _delete_old(self) -> None:
        for path in self._folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(path, ignore_errors=True)
        own = (path for path in self._folder.iterdir() if _OWN.fullmatch(path.name))
        kept: set[str] = set()
        for number, (at, path) in enumerate(sorted(((_written_at(path), path) for path in own), reverse=True)):
            if number >= MOST_BUNDLES:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
                continue
            for links in path.glob("checkpoint-*"):
                if self._clock() - at >= CONTENT_SECONDS or len(kept | {links.name}) > MOST_CHECKPOINTS:
                    shutil.rmtree(links, ignore_errors=True)
                else:
                    kept.add(links.name)
                    self._expires = min(self._expires, at + CONTENT_SECONDS)


def bundles_of(
    home: Path, checkpoints: Path, base: str, training: TrainingSettings, machine: Callable[[], dict[str, str]]
) -> Bundles:
    """The bundles of a home's trainer. `machine`: see `Trainee`."""
    return Bundles(home / "bundles", checkpoints, lambda: origin_of(base, training, machine()))


def _written_at(path: Path) -> float:
    """When a bundle was written: its folder changes when links are deleted."""
    file = path / BUNDLE if path.is_dir() else path
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0
