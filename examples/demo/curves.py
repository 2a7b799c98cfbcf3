"""What a demo's users felt: their acceptance over time, what exploring cost them, and how large its deltas would be elsewhere.

Pure, except that `realistic_delta` reads checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from contracts.draws import is_exploring
from contracts.errors import WeightsRefused
from contracts.ids import parse_sample_key
from pipelines.training.checkpoints.checkpoint_names import names_in, read_manifest
from weights.codec.delta import encode
from weights.tensors import Tensor, read_safetensors

BIN_SECONDS = 15.0
FEW = 5
"""A last step with this many times fewer signals than the one before is no step of its own."""
LAST_SHARE = 0.2
REALISTIC_LEARNING_RATE = 1e-6
"""Of RL runs on models of billions of parameters; over 98% of their bfloat16 weights do not change in a step."""
_ROUND_HALF = 0x7FFF


class Bin(NamedTuple):
    """Signals of a stretch of time. `seconds`: its end, since the first signal."""

    seconds: float
    num_signals: int
    accepted: float
    """Share of the signals that were positive."""
    gate: float | None
    """Share of sentinels that the version then live answered right; None if it was not judged yet."""
    own: float | None = None
    """Share of the answers that the own model gave; None without a provider."""


def acceptance_curve(clients: Sequence[Mapping[str, Any]], verdicts: Sequence[tuple[float, float]]) -> list[Bin]:
    """Acceptance in steps of BIN_SECONDS.

    Args:
        clients: the users' own list.
        verdicts: time and accuracy of each accepted verdict, in order.
    """
    signals = _signals(clients)
    if not signals:
        return []
    first, found = float(signals[0]["at"]), list[Bin]()
    made = [item for item in clients if item["kind"] == "generation"]
    is_shared = any(item.get("provided") for item in made)
    for start in np.arange(first, float(signals[-1]["at"]) + 1e-9, BIN_SECONDS).tolist():
        inside = [item for item in signals if start <= float(item["at"]) < start + BIN_SECONDS]
        judged = [accuracy for at, accuracy in verdicts if at <= start + BIN_SECONDS]
        if inside:
            gate = judged[-1] if judged else None
            by = [
                not item["provided"] for item in made if is_shared and start <= float(item["at"]) < start + BIN_SECONDS
            ]
            own = sum(by) / len(by) if by else None
            found.append(Bin(start + BIN_SECONDS - first, len(inside), positive_share(inside) or 0.0, gate, own))
    return _with_stragglers(found)


def _with_stragglers(found: list[Bin]) -> list[Bin]:
    """The last few signals count in the step before: a share of four signals says nothing."""
    if len(found) <= 1 or found[-1].num_signals * FEW > found[-2].num_signals:
        return found
    *others, full, last = found
    num = full.num_signals + last.num_signals
    accepted = (full.accepted * full.num_signals + last.accepted * last.num_signals) / num
    return [*others, full._replace(num_signals=num, accepted=accepted)]


def last_acceptance(clients: Sequence[Mapping[str, Any]], num_seconds: float) -> tuple[float | None, int]:
    """Acceptance in the last fifth of the users' time, and the number of its signals."""
    late = _late(clients, num_seconds)
    return positive_share(late), len(late)


def _late(clients: Sequence[Mapping[str, Any]], num_seconds: float) -> list[Mapping[str, Any]]:
    """The signals of the last fifth."""
    signals = _signals(clients)
    since = float(signals[0]["at"]) + (1 - LAST_SHARE) * num_seconds if signals else 0.0
    return [item for item in signals if float(item["at"]) >= since]


def base_acceptance(clients: Sequence[Mapping[str, Any]]) -> float | None:
    """Acceptance of the answers of the base policy."""
    of_base = {item["key"] for item in clients if item["kind"] == "generation" and item["version"] == 0}
    return positive_share([item for item in _signals(clients) if item["key"] in of_base])


def exploring_acceptance(
    clients: Sequence[Mapping[str, Any]], share: float, num_seconds: float
) -> dict[str, float | None]:
    """Acceptance of exploring and of other answers in the last fifth of the users' time, and what exploring costs in points."""
    late = _late(clients, num_seconds)
    is_wide = [is_exploring(parse_sample_key(str(item["key"]))[0], share) for item in late]
    wide = positive_share([item for item, explores in zip(late, is_wide, strict=True) if explores])
    sharp = positive_share([item for item, explores in zip(late, is_wide, strict=True) if not explores])
    every = positive_share(late)
    cost = None if sharp is None or every is None else 100 * (sharp - every)
    return {"exploring": wide, "others": sharp, "cost_points": cost}


def positive_share(signals: Sequence[Mapping[str, Any]]) -> float | None:
    """None without signals. A spammer's rejection of a right answer counts as negative."""
    return sum(bool(item["positive"]) for item in signals) / len(signals) if signals else None


def realistic_delta(checkpoints: Path, learning_rate: float) -> dict[str, float] | None:
    """Density and ratio of the newest version's delta if each float32 weight had moved as at REALISTIC_LEARNING_RATE.

    The moves between the checkpoints of the two newest versions are scaled by the two rates: AdamW's steps are proportional to
    its rate. None without two such checkpoints.
    """
    try:
        versions = {
            version: name
            for name in names_in(checkpoints)
            if (version := read_manifest(checkpoints, name).version) is not None
        }
    except WeightsRefused:
        return None
    if len(versions) < 2:  # noqa: PLR2004 a version and the one before it
        return None
    old, new = (
        read_safetensors(checkpoints / versions[number] / "weights.safetensors") for number in sorted(versions)[-2:]
    )
    scale = REALISTIC_LEARNING_RATE / learning_rate
    moved = {name: _floats(old[name]) + scale * (_floats(new[name]) - _floats(old[name])) for name in old}
    base = {name: _bfloat16(_floats(tensor), tensor.shape) for name, tensor in old.items()}
    encoded = encode(base, {name: _bfloat16(values, old[name].shape) for name, values in moved.items()})
    return {
        "learning_rate": REALISTIC_LEARNING_RATE,
        "density": encoded.num_changed / encoded.num_weights,
        "ratio": encoded.full_bytes / len(encoded.payload),
    }


def _signals(clients: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted((item for item in clients if item["kind"] == "signal"), key=lambda item: float(item["at"]))


def _floats(tensor: Tensor) -> np.ndarray:
    return np.frombuffer(tensor.data, "<f4")


def _bfloat16(values: np.ndarray, shape: tuple[int, ...]) -> Tensor:
    """The nearest bfloat16, ties to even, of finite values."""
    bits = values.astype("<f4").view("<u4")
    words = ((bits + _ROUND_HALF + (bits >> 16 & 1)) >> 16).astype("<u2")
    return Tensor("BF16", shape, words.view(np.uint8))
