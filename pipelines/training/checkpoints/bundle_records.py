"""What a bundle says of a guarded step: every look of the guard, and what it led to. Keys and figures, no content. Pure.

    StepBundle     a step that was skipped, or that found culprits; beside it lies what leads to the weights of that moment
    RewardBundle   rewards that jumped, so that their samples never came to a step

`bundle.json` is sealed with its own checksum. Both are read by `bundle_replay`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from blake3 import blake3

from contracts.errors import WeightsRefused
from contracts.records import Experience
from pipelines.training.known.experiences import num_tokens
from pipelines.training.samples.culprits import Failure

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pipelines.training.samples.trial import TrialResult, Tried

SCHEMA = 1
BUNDLE = "bundle.json"
_NOT_OF_ROWS = ("mismatch_", "seconds_", "step_seconds", "tokens_per_second_", "mfu_")
"""Figures that depend on more than weights and rows: of other versions, or of time."""
_CHECKSUM = "blake3"
_SAME_AGAIN = "copy the whole folder from the home again"

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
    return {
        "reason": whole or next((failure.reason for _, failure in found.culprits), ""),
        "learned": 0 if found.result is None or found.result.skipped else len(found.learned.keys),
        "looks": looks,
        "culprits": [
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
        ],
        "left": found.left.keys,
    }


def origin_of(base: str, settings: Any, machine: dict[str, str]) -> BundleOrigin:
    """The origin of a bundle that is made here. `settings`: of training; `machine`: see `Trainee`."""
    place = Path(base).expanduser()
    return BundleOrigin(
        base=str(place.resolve()) if place.exists() else base,
        machine=machine,
        settings=settings.model_dump(mode="json"),
    )


def encode_bundle(bundle: Bundle) -> bytes:
    """The bytes of `bundle.json`."""
    document = _finite(msgspec.to_builtins(bundle, enc_hook=str))
    return json.dumps({**document, _CHECKSUM: _checksum(document)}, indent=1, allow_nan=False).encode()


def decode_bundle(data: bytes, name: str) -> Bundle:
    """Invert `encode_bundle`.

    Raises:
        WeightsRefused: `damaged_bundle`, `newer_schema` or `old_bundle`.
    """
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


def without_tokens(items: Iterable[Experience]) -> list[Experience]:
    """The samples without what people wrote and were told; versions, rewards and scores stay."""
    return [
        msgspec.structs.replace(
            item,
            segments=tuple(
                msgspec.structs.replace(
                    part, token_ids=b"", loss_mask=b"", logprobs=b"", experts=b"", expert_shape=None, support=b""
                )
                for part in item.segments
            ),
        )
        for item in items
    ]


def _look_at(tried: Tried) -> GuardLook:
    keys, result, is_whole = tried.batch.keys, tried.result, tried.is_whole
    rows = keys[0] if len(keys) == 1 else blake3("\n".join(keys).encode()).hexdigest(8)
    if isinstance(result, Failure):
        return GuardLook(num_rows=len(keys), rows=rows, is_whole=is_whole, reason=result.reason, error=result.error)
    figures = {name: value for name, value in result.metrics.items() if not name.startswith(_NOT_OF_ROWS)}
    return GuardLook(
        num_rows=len(keys),
        rows=rows,
        is_whole=is_whole,
        reason=result.skipped,
        left=list(result.left),
        figures=_finite({**figures, **result.signs}),
        samples=_finite(result.samples) if is_whole else [],
    )


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
