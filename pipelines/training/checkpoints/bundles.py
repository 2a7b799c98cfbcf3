"""Bundles: what explains each step that the guard stopped, and what is needed to take it again elsewhere.

    bundles/step-000003-00000018-9f2c31aa/    a step that was skipped, or that found culprits
                 bundle.json                   a `StepBundle`: every look of the guard, and what it led to. Keys and figures, no content
                 checkpoint-000003-00000007/   hard links: the weights as of the last save, and the journal of the steps since then,
                                               which ends with this one. The samples stand in it, content included
            rewards-000003-00000021-51e07b20/  rewards that jumped, so that their samples never came to a step: a `RewardBundle` alone

In: a guarded step. Out: its folder, there whole or not at all. Waits for: the disk. If the disk is full or refuses, training goes on
without the bundle, and the log says so.

Bounds: MOST_BUNDLES bundles. Only those of the newest MOST_CHECKPOINTS checkpoints, and none older than CONTENT_SECONDS, keep their
links; a checkpoint that nothing else needs takes 12 bytes per parameter. `bundle.json` is sealed with its own checksum.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from blake3 import blake3

from contracts.errors import MillraceError, WeightsRefused
from contracts.records import Experience
from pipelines.training.known.experiences import num_tokens
from pipelines.training.samples.reward_watch import REWARD_SPIKE, of_tasks
from pipelines.training.samples.trial import Failure
from weights.files import make_folder_durably, sync_folder, write_durably

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pipelines.training.samples.reward_watch import Suspicion, WatchMemory
    from pipelines.training.samples.trial import Plan, TrialResult, Tried

SCHEMA = 1
BUNDLE = "bundle.json"
MOST_BUNDLES = 200
MOST_CHECKPOINTS = 2
CONTENT_SECONDS = 7 * 24 * 3600.0
"""How long what users wrote stays in a bundle: as long as corrections of it are learned by default."""
_OWN = re.compile(r"(step|rewards)-.+|(epoch|sample|rewards)-.+\.json")
"""What may be deleted here. The files ending in .json are bundles of earlier releases."""
_UNFINISHED = "unfinished-"
_NOT_OF_ROWS = ("mismatch_", "seconds_", "step_seconds", "tokens_per_second_", "mfu_")
"""Figures that depend on more than weights and rows: of other versions, or of time."""
_CHECKSUM = "blake3"
_SAME_AGAIN = "copy the whole folder from the home again"

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
    """Where a bundle was made. A step gives the same bits only where all of this is the same."""

    base: str
    """Folder or hub id of the base policy."""
    machine: dict[str, str]
    settings: dict[str, Any]
    """The section [training], with what the task files fill in."""


class _Guarded(msgspec.Struct, frozen=True, kw_only=True):
    schema: int = SCHEMA
    epoch: int
    step: int
    """Steps that were taken or skipped before it."""
    at: float
    reason: str
    origin: BundleOrigin


class StepBundle(_Guarded, frozen=True, kw_only=True, tag="step"):
    """A guarded step."""

    checkpoint: str
    """The folder beside this file that leads to the weights; empty: see `missing`."""
    missing: str = ""
    plan: str
    """The digest of the plan in the journal there."""
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
    batch: list[Experience]
    """All samples of the batch, without tokens."""
    levels: dict[str, Any]
    recent: dict[str, list[float]]
    suspect_since: dict[str, float]
    """What the watch knew before."""


Bundle = StepBundle | RewardBundle


def facts_of(found: TrialResult) -> dict[str, Any]:
    """What a step came to: the fields of a `StepBundle` that taking the step again gives."""
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


def encode_bundle(bundle: Bundle) -> bytes:
    """The bytes of `bundle.json`."""
    document = _finite(msgspec.to_builtins(bundle, enc_hook=str))
    return json.dumps({**document, _CHECKSUM: _checksum(document)}, indent=1, allow_nan=False).encode()


def decode_bundle(data: bytes, name: str) -> Bundle:
    """Invert `encode_bundle`. Raises WeightsRefused: `damaged_bundle`, `newer_schema` or `old_bundle`."""
    try:
        document: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise WeightsRefused("damaged_bundle", f"{name} is cut or is not JSON ({error}): {_SAME_AGAIN}") from error
    if not isinstance(document, dict) or _CHECKSUM not in document:
        raise WeightsRefused(
            "old_bundle",
            f"{name} is not a bundle, or an older Millrace wrote it: it has figures only, so read them there",
        )
    schema = document.get("schema")
    if schema != SCHEMA:
        raise WeightsRefused(
            "newer_schema",
            f"{name} has schema {schema}, this Millrace reads {SCHEMA}: replay it with the release that wrote it",
        )
    if document.pop(_CHECKSUM) != _checksum(document):
        raise WeightsRefused("damaged_bundle", f"{name} does not match its checksum: {_SAME_AGAIN}")
    try:
        return msgspec.convert(document, StepBundle | RewardBundle)
    except msgspec.ValidationError as error:
        raise WeightsRefused("damaged_bundle", f"{name} is not a bundle ({error}): {_SAME_AGAIN}") from error


class Bundles:
    """The bundles of one trainer, in its thread."""

    def __init__(
        self, folder: Path, checkpoints: Path, origin: BundleOrigin, *, clock: Callable[[], float] = time.time
    ) -> None:
        """`origin` says where this trainer runs. `clock` is that of the disk's files."""
        self._folder, self._checkpoints, self._origin, self._clock = folder, checkpoints, origin, clock
        self._expires = 0.0

    def keep_step(self, plan: Plan, found: TrialResult, checkpoint: str) -> Path | None:
        """Write the bundle of a step that was skipped or found culprits; None if that was not possible.

        `checkpoint`: the one that the journal follows, whose last plan is this; empty: none leads to these weights.
        """
        bundle = StepBundle(
            epoch=plan.epoch,
            step=plan.step,
            at=plan.at,
            origin=self._origin,
            checkpoint=checkpoint,
            missing="" if checkpoint else "no checkpoint led to the weights of this step",
            plan=plan.digest,
            **facts_of(found),
        )
        return self._keep(f"step-{plan.epoch:06d}-{plan.step:08d}-{plan.digest[:8]}", bundle, checkpoint)

    def keep_rewards(
        self,
        batch: Sequence[Experience],
        found: Sequence[Suspicion],
        before: WatchMemory,
        *,
        epoch: int,
        step: int,
        at: float,
    ) -> Path | None:
        """Write the bundle of rewards that jumped; None if that was not possible. What people wrote and were told is left out."""
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
            batch=[_without_tokens(item) for item in batch],
            **before._asdict(),
        )
        digest = blake3("\n".join(item.key for item in batch).encode()).hexdigest(4)
        return self._keep(f"rewards-{epoch:06d}-{step:08d}-{digest}", bundle, "")

    def expire(self) -> None:
        """Delete what is too old. Cheap if nothing is."""
        if self._clock() < self._expires:
            return
        self._expires = math.inf
        try:
            self._delete_old()
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("old bundles are not deleted", folder=str(self._folder), reason=str(error))

    def _keep(self, name: str, bundle: Bundle, checkpoint: str) -> Path | None:
        place, temporary = self._folder / name, self._folder / f"{_UNFINISHED}{name}"
        try:
            make_folder_durably(self._folder)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            if checkpoint and (missing := self._link(checkpoint, temporary)):
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
        self._expires = 0.0
        self.expire()
        return place

    def _link(self, checkpoint: str, folder: Path) -> str:
        """Link what leads to the weights; returns why that is impossible, or empty."""
        target = folder / checkpoint
        try:
            target.mkdir()
            for path in sorted((self._checkpoints / checkpoint).iterdir()):
                (target / path.name).hardlink_to(path)
            sync_folder(target)
        except OSError as error:
            shutil.rmtree(target, ignore_errors=True)
            return f"{checkpoint} could not be linked: {error.strerror}"
        return ""

    def _delete_old(self) -> None:
        """Delete the oldest bundles, and the links of all but the newest."""
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


def _look_at(tried: Tried) -> GuardLook:
    keys, result = tried.batch.keys, tried.result
    rows = keys[0] if len(keys) == 1 else blake3("\n".join(keys).encode()).hexdigest(8)
    look = partial(GuardLook, num_rows=len(keys), rows=rows, is_whole=tried.is_whole)
    if isinstance(result, Failure):
        return look(reason=result.reason, error=result.error)
    figures = {name: value for name, value in result.metrics.items() if not name.startswith(_NOT_OF_ROWS)}
    samples = list(result.samples) if tried.is_whole else []
    return look(reason=result.skipped, left=list(result.left), figures={**figures, **result.signs}, samples=samples)


def _without_tokens(item: Experience) -> Experience:
    bare = {"token_ids": b"", "loss_mask": b"", "logprobs": b"", "experts": b"", "expert_shape": None, "support": b""}
    streams = msgspec.structs.replace(item.streams, edit="") if item.streams else None
    segments = tuple(msgspec.structs.replace(part, **bare) for part in item.segments)
    return msgspec.structs.replace(item, segments=segments, streams=streams)


def _written_at(path: Path) -> float:
    """When a bundle was written: its folder changes when links are deleted."""
    try:
        return (path / BUNDLE if path.is_dir() else path).stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _checksum(document: dict[str, Any]) -> str:
    return blake3(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
