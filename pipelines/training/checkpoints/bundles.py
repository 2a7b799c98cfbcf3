"""Bundles: what explains each step that the guard stopped. Keys and figures, no content.

    bundles/step-000003-00000018-9f2c31aa/bundle.json     a step that was skipped, or that found culprits: a `StepBundle`
            rewards-000003-00000021-51e07b20/bundle.json  rewards that jumped, so that their samples never came to a step

In: a guarded step. Out: its file, there whole or not at all. Waits for: the disk. If the disk is full or refuses, training goes on
without the bundle, and the log says so. The newest MOST_BUNDLES stay.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from blake3 import blake3

from contracts.errors import MillraceError
from pipelines.training.known.experiences import num_tokens
from pipelines.training.samples.reward_watch import REWARD_SPIKE, of_tasks
from pipelines.training.samples.trial import Failure
from weights.files import make_folder_durably, write_durably

if TYPE_CHECKING:
    from collections.abc import Sequence

    from contracts.records import Experience
    from pipelines.training.samples.reward_watch import Suspicion
    from pipelines.training.samples.trial import Plan, TrialResult, Tried

BUNDLE = "bundle.json"
MOST_BUNDLES = 200
_OWN = re.compile(r"(step|rewards)-.+")
"""What may be deleted here."""
_NOT_OF_ROWS = ("mismatch_", "seconds_", "step_seconds", "tokens_per_second_", "mfu_")
"""Figures that depend on more than weights and rows: of other versions, or of time."""

log = structlog.get_logger()

Figure = float | str | None
"""JSON has no NaN: non-finite numbers are text."""


class GuardLook(msgspec.Struct, frozen=True, kw_only=True):
    """What a step with some rows of the batch would do, or did."""

    num_rows: int
    rows: str
    """The key of a single row, else a digest of the keys in their order."""
    is_whole: bool = False
    """A try to take the step. Otherwise a part of the batch was tried, to find who is to blame."""
    reason: str = ""
    """Why the guard skips it; empty: it would be taken."""
    error: str = ""
    left: list[str] = []
    """Keys that today's policy has left: the figures are without them."""
    figures: dict[str, Figure] = {}
    samples: list[dict[str, Figure]] = []
    """Of a whole one: a row of figures per sample."""


class BlamedSample(msgspec.Struct, frozen=True, kw_only=True):
    """A quarantined sample, and why."""

    key: str
    revision: int
    reward: float | None
    weight: float
    num_tokens: int
    reason: str
    error: str = ""
    traceback: list[str] = []


class BundleOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a bundle was made."""

    base: str
    """Folder or hub id of the base policy."""
    machine: dict[str, str]
    settings: dict[str, Any]
    """The section [training], with what the task files fill in."""


class _Guarded(msgspec.Struct, frozen=True, kw_only=True):
    epoch: int
    step: int
    """Steps that were taken or skipped before it."""
    at: float
    reason: str
    origin: BundleOrigin


class StepBundle(_Guarded, frozen=True, kw_only=True, tag="step"):
    """A guarded step."""

    learned: int
    """Rows that were learned in the end."""
    looks: list[GuardLook]
    culprits: list[BlamedSample]
    left: list[str]


class RewardBundle(_Guarded, frozen=True, kw_only=True, tag="rewards"):
    """Rewards that jumped."""

    tasks: list[dict[str, Figure]]
    """See `reward_watch.Suspicion`."""
    samples: list[dict[str, Figure]]
    """Those that were quarantined."""


def _facts_of(found: TrialResult) -> dict[str, Any]:
    looks = [_look_at(item) for item in found.tried]
    whole = next((look.reason for look in looks if look.is_whole and look.reason), "")
    culprits = [
        BlamedSample(
            key=item.key,
            revision=item.revision,
            reward=item.reward,
            weight=item.weight,
            num_tokens=num_tokens([item]),
            reason=failure.reason,
            error=failure.error,
            traceback=failure.traceback.splitlines(),
        )
        for part, failure in found.culprits
        for item in part.everything
    ]
    return {
        "reason": whole or next((item.reason for item in culprits), ""),
        "learned": 0 if found.result is None or found.result.skipped else len(found.learned.keys),
        "looks": looks,
        "culprits": culprits,
        "left": found.left.keys,
    }


def origin_of(base: str, settings: Any, machine: dict[str, str]) -> BundleOrigin:
    """The origin of a bundle that is made here. `settings`: of training; `machine`: see `Trainee`."""
    place = Path(base).expanduser()
    held = settings.model_dump(mode="json")
    return BundleOrigin(base=str(place.resolve()) if place.exists() else base, machine=machine, settings=held)


class Bundles:
    """The bundles of one trainer, in its thread."""

    def __init__(self, folder: Path, origin: BundleOrigin) -> None:
        """`origin` says where this trainer runs."""
        self._folder, self._origin = folder, origin
        for links in folder.glob("*/checkpoint-*"):  # of 0.1.0 before it was released: weights, and what users wrote
            shutil.rmtree(links, ignore_errors=True)

    def keep_step(self, plan: Plan, found: TrialResult) -> Path | None:
        """Write the bundle of a step that was skipped or found culprits; None if that was not possible."""
        bundle = StepBundle(epoch=plan.epoch, step=plan.step, at=plan.at, origin=self._origin, **_facts_of(found))
        return self._keep(f"step-{plan.epoch:06d}-{plan.step:08d}-{plan.digest[:8]}", bundle)

    def keep_rewards(
        self, batch: Sequence[Experience], found: Sequence[Suspicion], *, epoch: int, step: int, at: float
    ) -> Path | None:
        """Write the bundle of rewards that jumped; None if that was not possible."""
        keys = of_tasks(batch, found)
        bundle = RewardBundle(
            epoch=epoch,
            step=step,
            at=at,
            reason=REWARD_SPIKE,
            origin=self._origin,
            tasks=[item._asdict() for item in found],
            samples=[
                {"key": item.key, "revision": item.revision, "task": item.task, "reward": item.reward}
                for item in batch
                if item.key in keys
            ],
        )
        digest = blake3("\n".join(item.key for item in batch).encode()).hexdigest(4)
        return self._keep(f"rewards-{epoch:06d}-{step:08d}-{digest}", bundle)

    def _keep(self, name: str, bundle: StepBundle | RewardBundle) -> Path | None:
        place = self._folder / name
        try:
            make_folder_durably(place)
            document = _finite(msgspec.to_builtins(bundle, enc_hook=str))
            write_durably(place / BUNDLE, [json.dumps(document, indent=1, allow_nan=False).encode()])
            own = [path for path in self._folder.iterdir() if _OWN.fullmatch(path.name)]
            for path in sorted(own, key=lambda path: path.stat().st_mtime)[:-MOST_BUNDLES]:
                shutil.rmtree(path)
        except (OSError, MillraceError) as error:
            log.error("the bundle of a guarded step is not written", bundle=str(place), reason=str(error))  # noqa: TRY400 an operator's disk
            return None
        return place


def _look_at(tried: Tried) -> GuardLook:
    keys, result = tried.batch.keys, tried.result
    rows = keys[0] if len(keys) == 1 else blake3("\n".join(keys).encode()).hexdigest(8)
    look = partial(GuardLook, num_rows=len(keys), rows=rows, is_whole=tried.is_whole)
    if isinstance(result, Failure):
        return look(reason=result.reason, error=result.error)
    figures = {name: value for name, value in result.metrics.items() if not name.startswith(_NOT_OF_ROWS)}
    samples = list(result.samples) if tried.is_whole else []
    return look(reason=result.skipped, left=list(result.left), figures={**figures, **result.signs}, samples=samples)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
