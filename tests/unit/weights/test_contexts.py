import math
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from contracts.errors import WeightsRefused
from tests.each_case import each_case
from tests.unit.weights import format_coder
from tests.unit.weights.bits import WIDTHS, tensor_like
from tests.unit.weights.examples import refused
from weights.codec import kernels
from weights.codec.contexts import (
    ANY,
    LARGEST_SCALE,
    PLAIN,
    SPECS,
    ChangeCounts,
    Model,
    Tables,
    check_scale,
    fit,
    model_of,
    scale_of,
    scaled,
)
from weights.codec.kernels import (
    CLASS_BITS,
    NUM_CLASSES,
    NUM_DIRECTIONS,
    NUM_STATES,
    NUM_TOKENS,
    TABLE_BITS,
    TIME_BITS,
)
from weights.tensors import Tensor, words_of

TOKENS = ((0, ((0, 4096),)),)
EMPTY = Tables(b"", b"", b"", (), TOKENS)


def no_evidence() -> ChangeCounts:
    return ChangeCounts(
        np.zeros((NUM_CLASSES, NUM_STATES)),
        np.zeros((NUM_CLASSES, NUM_STATES)),
        np.zeros((2, NUM_DIRECTIONS)),
        np.zeros((NUM_CLASSES, NUM_TOKENS)),
    )


def hazard(model: Model, kind: int, state: int) -> int:
    return int(model.hazards[kind << model.class_bits | (state if model.class_bits else 0)])


def contexts_of(dtype: str, words: npt.NDArray[Any], states: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint16]:
    spec, contexts = SPECS.get(dtype, PLAIN), np.empty(words.size, np.uint16)
    kernels.find_contexts(words, states, np.uint32(spec.shift), np.uint32(spec.mask), contexts)
    return contexts


@each_case("dtype", [*(dtype for dtype, width in WIDTHS.items() if width in {1, 2, 4}), "U16"])
def test_the_class_of_a_float_is_its_exponent_and_the_sign_does_not_count(dtype: str) -> None:
    tensor = (
        tensor_like(dtype, (500,), 3) if dtype in WIDTHS else Tensor(dtype, (500,), tensor_like("F32", (250,), 3).data)
    )
    words = words_of(tensor)
    states = np.random.default_rng(0).integers(0, 256, words.size).astype(np.uint8)
    contexts = contexts_of(dtype, words, states)
    assert (contexts >> CLASS_BITS).tolist() == [format_coder.class_of(dtype, word) for word in words.tolist()]
    assert (contexts & (NUM_STATES - 1)).tolist() == (states & 127).tolist()
    flipped = words ^ words.dtype.type(1 << 8 * words.itemsize - 1)
    other = contexts_of(dtype, flipped, states)
    assert np.array_equal(contexts, other)
    assert (dtype in SPECS) == bool((contexts >> CLASS_BITS).any())


def test_the_more_special_rate_wins_whatever_the_order() -> None:
    tables = msgspec.structs.replace(
        EMPTY,
        rate_classes=bytes([7, 7, 7, 9]),
        rate_states=bytes([5, ANY, 0, 0]),
        rate_codes=bytes([160, 152, 144, 168]),
    )
    model = model_of(tables)
    one = 1 << TIME_BITS
    assert (hazard(model, 7, 5), hazard(model, 7, 6), hazard(model, 7, 0)) == (one, one // 2, one // 4)
    assert {hazard(model, 9, state) for state in (0, 1, 5, 127)} == {2 * one}
    assert {hazard(model, 8, state) for state in (0, 5)} == {1}


def test_directions_fall_back_to_that_of_every_state() -> None:
    model = model_of(msgspec.structs.replace(EMPTY, directions=((ANY, 200), (5, 10), (300, 255))))
    assert [int(model.agreement[context]) for context in (0, 4, 5, 127, 128, 300)] == [
        2048, 200 << 4, 10 << 4, 200 << 4, 2048, 255 << 4,
    ]  # fmt: skip


def test_tokens_of_the_first_row_are_for_every_class() -> None:
    model = model_of(msgspec.structs.replace(EMPTY, tokens=((3, ((0, 96), (9, 4000))), (7, ((63, 4096),)))))
    assert np.diff(model.tokens[0].astype(int))[[0, 9]].tolist() == [96, 4000]
    assert np.array_equal(model.tokens[3], model.tokens[200])
    assert np.diff(model.tokens[7].astype(int)).tolist() == [0] * 63 + [4096]


@each_case("scale", [-96, -17, -8, -1, 0, 1, 5, 8, 96])
def test_hazards_are_scaled_by_eighths_of_octaves_within_limits(scale: int) -> None:
    codes = bytes([0, 33, 80, 144, 160, 184])
    tables = msgspec.structs.replace(EMPTY, rate_classes=bytes(range(6)), rate_states=bytes(6), rate_codes=codes)
    model = model_of(tables)
    after = scaled(model, scale)
    for kind in range(7):
        before = hazard(model, kind, 3)
        exact = min(max(before * 2 ** (scale / 8), 1), 8 << TIME_BITS)
        assert exact * 0.9999 - 1 <= after[kind] <= exact
    assert [after.tolist()] == format_coder.scaled([model.hazards.tolist()], scale)


def test_a_scale_says_how_often_something_happened_that_was_expected() -> None:
    assert [scale_of(changes, 10.0) for changes in (10, 20, 5, 11)] == [0, 8, -8, 1]
    assert (scale_of(0, 10.0), scale_of(10, 0.0)) == (0, 0)
    assert (scale_of(10**9, 1e-9), scale_of(1, 1e30)) == (LARGEST_SCALE, -LARGEST_SCALE)
    check_scale(-LARGEST_SCALE)
    with pytest.raises(WeightsRefused):
        check_scale(LARGEST_SCALE + 1)


@each_case(
    "fault",
    [
        {"rate_codes": b"\0"},
        {"rate_classes": b"\0", "rate_states": b"\0", "rate_codes": b"\xb9"},
        {"rate_classes": b"\0", "rate_states": b"\x80", "rate_codes": b"\0"},
        {"directions": ((NUM_DIRECTIONS, 1),)},
        {"directions": ((-1, 1),)},
        {"directions": ((1, 0),)},
        {"directions": ((1, 256),)},
        {"tokens": ()},
        {"tokens": ((0, ()),)},
        {"tokens": ((0, ((0, 4095),)),)},
        {"tokens": ((256, ((0, 4096),)),)},
        {"tokens": ((0, ((64, 4096),)),)},
        {"tokens": ((0, ((0, 4096), (1, 0))),)},
    ],
)
def test_tables_that_are_none_are_refused(fault: dict[str, Any]) -> None:
    with refused("corrupt_payload"):
        model_of(msgspec.structs.replace(EMPTY, **fault))


def test_tables_are_fitted_to_what_was_seen() -> None:
    evidence = no_evidence()
    evidence.seen[100, 0], evidence.changed[100, 0] = 1e6, 2e4
    evidence.seen[101, 0], evidence.changed[101, 0] = 1e6, 1e3
    evidence.seen[100, 64:80], evidence.changed[100, 64:80] = 1e4, 3e3
    evidence.seen[100, 121], evidence.changed[100, 121] = 1e3, 9e2
    evidence.agreed[:, 121] = 9, 891
    evidence.tokens[100, 0], evidence.tokens[101, [0, 4]] = 5e4, (500, 500)
    tables = fit(evidence)
    model = model_of(tables)
    for kind, state, share in ((100, 0, 0.02), (101, 0, 0.001), (100, 70, 0.3), (100, 121, 0.9)):
        told = -math.expm1(-hazard(model, kind, state) / (1 << TIME_BITS))
        assert told == pytest.approx(share, rel=0.1)
    assert hazard(model, 50, 0) == 1
    assert int(model.agreement[121]) / (1 << TABLE_BITS) == pytest.approx(0.99, abs=0.01)
    assert np.diff(model.tokens[101].astype(int))[[0, 4]].tolist() == [2048, 2048]
    # Sixteen states that say the same cost one entry.
    assert len(tables.rate_codes) <= 5


@each_case(("often", "is_worth"), [(0.02, False), (0.03, False), (0.5, True)])
def test_states_tell_how_soon_a_weight_changes_only_where_that_saves_much(often: float, *, is_worth: bool) -> None:
    evidence = no_evidence()
    evidence.seen[100, 0], evidence.changed[100, 0] = 1e6, 2e4
    evidence.seen[100, 121], evidence.changed[100, 121] = 1e5, often * 1e5
    evidence.tokens[100, 0] = 1e4
    model = model_of(fit(evidence))
    assert model.class_bits == (CLASS_BITS if is_worth else 0)
    assert model.hazards.size == NUM_CLASSES << model.class_bits
    shares = [-math.expm1(-hazard(model, 100, state) / (1 << TIME_BITS)) for state in (0, 121)]
    together = (2e4 + often * 1e5) / 1.1e6
    assert shares == pytest.approx([0.02, often] if is_worth else [together, together], rel=0.1)


def test_nothing_seen_is_nothing_told() -> None:
    tables = fit(no_evidence())
    assert tables.rate_codes == b""
    assert set(model_of(tables).hazards.tolist()) == {1}


def test_frequencies_add_up_however_uneven() -> None:
    evidence = no_evidence()
    evidence.tokens[5] = 1
    evidence.tokens[5, 7] = 1e9
    evidence.tokens[6, :3] = 1 / 3
    for _, row in fit(evidence).tokens:
        assert sum(frequency for _, frequency in row) == 1 << TABLE_BITS
        assert min(frequency for _, frequency in row) >= 1
