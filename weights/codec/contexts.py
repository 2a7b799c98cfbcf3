"""The model of the context coder: how soon each kind of weight changes, which way, how far. Pure.

A kind, or context, is the class of a weight (for floats the exponent: small weights change often) and the state of its history.
Tables are estimated from the version itself and travel with it; a context with too little evidence falls back to a coarser one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from contracts.errors import WeightsRefused
from weights.codec.kernels import CLASS_BITS, NUM_CLASSES, NUM_DIRECTIONS, NUM_STATES, NUM_TOKENS, TABLE_BITS, TIME_BITS

NUM_CONTEXTS = NUM_CLASSES << CLASS_BITS
ANY = 1
"""Stands for every state but 0. No weight ever has the state 1, because a state that remembers nothing is 0."""
_WHOLE = 1 << TABLE_BITS
_LONGEST = 8 << TIME_BITS
_CODE_OF_ONE = 160
_LAST_CODE = _CODE_OF_ONE + 24
_EIGHTHS = (1073741824, 1170923761, 1276901416, 1392470868, 1518500249, 1655936264, 1805811301, 1969251187)
"""2 ** (k / 8) in 30 bits: integers, so that every machine has the same tables."""
LARGEST_SCALE = 96
_LAST_SHARE = 255
_ENTRY_BITS = 14.0
"""The approximate cost of a table's entry, in bits: it is written only if it saves more."""

_WORTH_STATES = 1.12
"""Classes alone are several times as fast to code. States tell how soon a weight changes only where positions cost so much more without."""

Floats = npt.NDArray[np.float64]


class Spec(NamedTuple):
    """How a type of element is read."""

    shift: int
    mask: int
    """A word's class is word >> shift & mask."""
    is_float: int
    """1: sign and magnitude; 0: two's complement or none."""


# The class leaves out the sign: a weight moves up as often as down.
SPECS = {
    "BF16": Spec(7, 255, 1),
    "F16": Spec(10, 31, 1),
    "F32": Spec(23, 255, 1),
    "F8_E4M3": Spec(0, 127, 1),
    "F8_E5M2": Spec(0, 127, 1),
}
PLAIN = Spec(0, 0, 0)
"""Integers and exotic types have one class."""


class Tables(msgspec.Struct, array_like=True, frozen=True):
    """The model as it is sent. The rate columns have one byte per entry."""

    rate_classes: bytes
    rate_states: bytes
    """0: all states of the class; ANY: all but 0; else that state alone. The most specific entry wins."""
    rate_codes: bytes
    """A hazard is 2 ** ((code - 160) / 8). Contexts that are not listed have 2 ** -16."""
    directions: tuple[tuple[int, int], ...]
    """(context, code): a change goes where it is expected with probability code / 256; code 1 to 255.

    The context ANY stands for every state but 0, and comes first. Not listed: 128.
    """
    tokens: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
    """(class, ((token, frequency), ...)); the first is for every class that is not listed. Frequencies add up to 4096."""


class Model(NamedTuple):
    """The model in the form that the compiled loops use."""

    class_bits: int
    """CLASS_BITS; or 0, where states say nothing about how soon a weight changes: then a context is a class alone."""
    hazards: npt.NDArray[np.uint32]
    """Units of time per context [NUM_CLASSES << class_bits]."""
    listed: npt.NDArray[np.int64]
    """The contexts whose hazard is not the least one."""
    agreement: npt.NDArray[np.uint16]
    """[NUM_DIRECTIONS], of 2 ** TABLE_BITS."""
    tokens: npt.NDArray[np.uint16]
    """Cumulative [NUM_CLASSES, NUM_TOKENS + 1]."""


class ChangeCounts(NamedTuple):
    """Counts of a version's changes, summed over its tensors."""

    seen: Floats
    """Weights per context [NUM_CLASSES, NUM_STATES]."""
    changed: Floats
    """Changes per context, likewise."""
    agreed: Floats
    """Per direction context: changes against [0] and along [1] the expected direction [2, NUM_DIRECTIONS]."""
    tokens: Floats
    """[NUM_CLASSES, NUM_TOKENS]."""


def fit(evidence: ChangeCounts) -> Tables:
    """Tables that make the payload small; the size of the tables counts."""
    classes, states, codes = _fit_rates(evidence)
    return Tables(classes, states, codes, _fit_directions(evidence.agreed), _fit_tokens(evidence.tokens))


def model_of(tables: Tables) -> Model:
    """Fill the tables' gaps. Raises WeightsRefused: `corrupt_payload`, the tables are invalid."""
    columns = (tables.rate_classes, tables.rate_states, tables.rate_codes)
    classes, states, codes = (np.frombuffer(column, np.uint8) for column in columns)
    if not classes.size == states.size == codes.size:
        raise _corrupt("their columns differ in length")
    if states.max(initial=0) >= NUM_STATES or codes.max(initial=0) > _LAST_CODE:
        raise _corrupt("a state or a rate is out of range")
    hazards = np.ones((NUM_CLASSES, NUM_STATES), dtype=np.uint32)
    # The general ones first.
    for number in np.argsort(np.where(states == 0, 0, np.where(states == ANY, 1, 2)), kind="stable"):
        state, units = states[number], _two_to(int(codes[number]) - _CODE_OF_ONE, TIME_BITS)
        which = slice(None) if state == 0 else slice(1, None) if state == ANY else slice(state, state + 1)
        hazards[classes[number], which] = max(1, min(units, _LONGEST))
    agreement = np.full(NUM_DIRECTIONS, 1 << (TABLE_BITS - 1), dtype=np.uint16)
    for context, code in tables.directions:
        if not (0 <= context < NUM_DIRECTIONS and 1 <= code <= _LAST_SHARE):
            raise _corrupt("a direction is out of range")
        which = slice(1, NUM_STATES) if context == ANY else slice(context, context + 1)
        agreement[which] = code << (TABLE_BITS - 8)
    class_bits = 0 if (hazards == hazards[:, :1]).all() else CLASS_BITS
    flat = hazards.reshape(-1) if class_bits else hazards[:, 0].copy()
    return Model(class_bits, flat, np.flatnonzero(flat > 1), agreement, _token_rows(tables.tokens))


def scaled(model: Model, scale: int) -> npt.NDArray[np.uint32]:
    """The hazards of a tensor whose weights change 2 ** (scale / 8) times as often as their kind does elsewhere."""
    if scale == 0:
        return model.hazards
    factor = _two_to(scale, 16)
    hazards = np.full(model.hazards.size, min(max(factor >> 16, 1), _LONGEST), dtype=np.uint32)
    known = model.hazards[model.listed].astype(np.uint64) * np.uint64(factor) >> np.uint64(16)
    hazards[model.listed] = np.clip(known, 1, _LONGEST)
    return hazards


def scale_of(changes: int, expected: float) -> int:
    """The scale, eighths of an octave, at which a tensor is expected to change as often as it did."""
    scale = round(8 * math.log2(changes / expected)) if changes and expected else 0
    return max(-LARGEST_SCALE, min(scale, LARGEST_SCALE))


def check_scale(scale: int) -> None:
    """Refuse (`corrupt_payload`) a scale that `scale_of` never gives."""
    if abs(scale) > LARGEST_SCALE:
        raise _corrupt(f"a tensor is scaled by {scale}")


def _fit_rates(evidence: ChangeCounts) -> tuple[bytes, bytes, bytes]:
    # A class without changes stays at the least hazard.
    classes = np.flatnonzero(evidence.changed.sum(1))
    changed = evidence.changed[classes]
    seen = np.maximum(evidence.seen[classes], changed)
    alone = _codes(seen.sum(1), changed.sum(1))[:, None]
    still, moved = _codes(seen[:, 0], changed[:, 0]), _codes(seen[:, 1:].sum(1), changed[:, 1:].sum(1))
    own = _codes(seen, changed)
    # The entry of state 0 is the default of the other states.
    still = np.where(changed[:, 0] == 0, np.minimum(still, moved), still)
    use_moved = _saving(seen[:, 1:], changed[:, 1:], still[:, None], moved[:, None]).sum(1) > _ENTRY_BITS
    fallback = np.where(use_moved, moved, still)[:, None]
    use_own = _saving(seen, changed, fallback, own) > _ENTRY_BITS
    use_own[:, [0, ANY]] = False
    chosen = np.where(use_own, own, fallback)
    chosen[:, 0] = still
    least = _bits(seen, changed, chosen).sum()
    if _bits(seen, changed, alone).sum() < _WORTH_STATES * (least + _ENTRY_BITS * (use_moved.sum() + use_own.sum())):
        entries = [(classes[row], 0, alone[row, 0]) for row in range(classes.size)]
    else:
        entries = [(classes[row], 0, still[row]) for row in range(classes.size)]
        entries += [(classes[row], ANY, moved[row]) for row in np.flatnonzero(use_moved)]
        entries += [(classes[row], state, own[row, state]) for row, state in np.argwhere(use_own)]
    first, second, third = np.array(entries, dtype=np.uint8).reshape(-1, 3).T
    return first.tobytes(), second.tobytes(), third.tobytes()


def _fit_directions(agreed: Floats) -> tuple[tuple[int, int], ...]:
    against, along = agreed
    pooled = _share(against[1:NUM_STATES].sum(), along[1:NUM_STATES].sum())
    entries = [(ANY, pooled)]
    for context in np.flatnonzero(along + against):
        share = _share(against[context], along[context])
        other = pooled if 0 < context < NUM_STATES else 128
        saving = along[context] * math.log2(share / other) + against[context] * math.log2((256 - share) / (256 - other))
        if saving > _ENTRY_BITS:
            entries.append((int(context), share))
    return tuple(entries)


def _fit_tokens(counts: Floats) -> tuple[tuple[int, tuple[tuple[int, int], ...]], ...]:
    pooled = _normalised(counts.sum(0))
    rows = [(0, pooled)]
    shares = np.zeros(NUM_TOKENS)
    for token, frequency in pooled:
        shares[token] = frequency
    for kind in np.flatnonzero(counts.sum(1) >= 1):
        row = _normalised(counts[kind])
        saving = sum(counts[kind, token] * math.log2(frequency / shares[token]) for token, frequency in row)
        if saving > _ENTRY_BITS * (1 + len(row)):
            rows.append((int(kind), row))
    return tuple(rows)


def _normalised(counts: Floats) -> tuple[tuple[int, int], ...]:
    """Frequencies of the tokens that occur, at least 1 each, that add up to 4096."""
    tokens = np.flatnonzero(counts)
    if tokens.size == 0:
        return ((0, _WHOLE),)
    frequencies = np.maximum(1, np.floor(counts[tokens] / counts.sum() * _WHOLE)).astype(int)
    frequencies[np.argmax(frequencies)] += _WHOLE - frequencies.sum()
    return tuple((int(token), int(frequency)) for token, frequency in zip(tokens, frequencies, strict=True))


def _token_rows(rows: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]) -> npt.NDArray[np.uint16]:
    table = np.zeros((NUM_CLASSES, NUM_TOKENS + 1), dtype=np.uint16)
    for number, (kind, row) in enumerate(rows):
        frequencies = np.zeros(NUM_TOKENS, dtype=np.int64)
        for token, frequency in row:
            if not (0 <= kind < NUM_CLASSES and 0 <= token < NUM_TOKENS and 0 < frequency <= _WHOLE):
                raise _corrupt("a distance is out of range")
            frequencies[token] = frequency
        if frequencies.sum() != _WHOLE:
            raise _corrupt("the probabilities of distances do not add up")
        table[slice(None) if number == 0 else kind, 1:] = np.cumsum(frequencies)
    if not rows:
        raise _corrupt("there is no table of distances")
    return table


def _codes(seen: Floats, changed: Floats) -> npt.NDArray[np.int64]:
    share = np.minimum((changed + 0.02) / (seen + 0.04), 0.9997)
    codes = np.clip(np.rint(8 * np.log2(-np.log1p(-share))) + _CODE_OF_ONE, 32, _LAST_CODE)
    return np.asarray(codes, dtype=np.int64)


def _saving(seen: Floats, changed: Floats, fallback: Any, own: Any) -> Floats:
    return _bits(seen, changed, fallback) - _bits(seen, changed, own)


def _bits(seen: Floats, changed: Floats, codes: Any) -> Floats:
    hazard = np.exp2((np.asarray(codes) - _CODE_OF_ONE) / 8)
    bits: Floats = (seen - changed) * hazard / math.log(2) - changed * np.log2(-np.expm1(-hazard))
    return bits


def _share(against: float, along: float) -> int:
    return int(min(max(round(256 * (along + 0.5) / (along + against + 1.0)), 1), 255))


def _two_to(eighths: int, bits: int) -> int:
    """2 ** (eighths / 8) in units of 2 ** -bits, rounded down."""
    octave, within = eighths // 8 + bits - 30, _EIGHTHS[eighths % 8]
    return within << octave if octave >= 0 else within >> -octave


def _corrupt(reason: str) -> WeightsRefused:
    return WeightsRefused("corrupt_payload", f"the tables of the payload cannot be used: {reason}")
