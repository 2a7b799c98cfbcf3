from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from contracts.errors import InvalidValue
from policy.deltas import kernels as delta_kernels
from policy.deltas import passes as delta_passes
from policy.deltas.encode import encode_on_device, tensor_of
from policy.deltas.history import DeviceHistory
from policy.deltas.passes import Factors, Held
from weights.codec import coder, kernels
from weights.codec.container import DENSE, RAW, SPARSE, UNCHANGED, TensorHead, layout_of, split_payload
from weights.codec.contexts import NUM_CONTEXTS, PLAIN, SPECS
from weights.codec.delta import Encoded, encode
from weights.codec.factors import NO_FACTORS
from weights.codec.history import History
from weights.codec.sparse import BLOCK
from weights.tensors import Tensors

ROOT = Path(__file__).parents[3]
NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NEEDS_CUDA])]
FLOATS = [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2]
ALL = [*FLOATS, torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.bool]
STATES = [
    down << 7 | remembered << 3 | streak for down in (0, 1) for remembered in range(1, 16) for streak in range(1, 8)
]
WIDTHS = {torch.int8: 1, torch.int16: 2, torch.int32: 4}

Policy = dict[str, torch.Tensor]


def weights(seed: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if not dtype.is_floating_point:
        return torch.randint(0, 100, shape, generator=generator).to(dtype)
    return (torch.randn(shape, generator=generator) * 0.02).to(dtype)


def moved(tensor: torch.Tensor, density: float, seed: int) -> torch.Tensor:
    """Some elements one to 300 units in the last place away, in bits."""
    generator = torch.Generator().manual_seed(seed)
    words = delta_passes.words_of(tensor).clone()
    chosen = torch.rand(words.shape, generator=generator) < density
    steps = torch.tensor([1, -1, 1, -1, 2, -2, 300]).to(words.dtype)
    steps = steps[torch.randint(0, steps.numel(), words.shape, generator=generator)]
    changed = words ^ 1 if tensor.dtype == torch.bool else words + steps
    return torch.where(chosen, changed, words).view(tensor.dtype).view(tensor.shape)


def ranked(tensor: torch.Tensor, density: float, seed: int) -> torch.Tensor:
    """Which elements of a matrix move, and where to, is an outer product's doing."""
    generator = torch.Generator().manual_seed(seed)
    outer = torch.randn(tensor.shape[0], 1, generator=generator) * torch.randn(1, tensor.shape[1], generator=generator)
    chosen = torch.rand(tensor.shape, generator=generator) < density * outer.abs() / outer.abs().mean()
    words = tensor.view(torch.int16)
    steps = (outer.sign() * torch.where(words < 0, -1, 1)).to(torch.int16)
    return torch.where(chosen, words + steps, words).view(tensor.dtype)


def policy(seed: int) -> Policy:
    made = {str(dtype): weights(seed, dtype, 48, 33) for dtype in [*ALL, torch.float64, torch.int64]}
    made |= {"blocks": weights(seed, torch.bfloat16, 701, 1031), "empty": torch.empty(0, 4), "one": torch.tensor(0.5)}
    return made | {"still": weights(seed, torch.bfloat16, 7, 9), "norm": weights(seed, torch.float32, 1033)}


def next_version(before: Policy, seed: int) -> Policy:
    after = {name: moved(tensor, 0.04, seed) for name, tensor in before.items() if name != "still"}
    return after | {"still": before["still"].clone(), "blocks": ranked(before["blocks"], 0.03, seed)}


def on(device: str, tensors: Policy) -> Policy:
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def on_host(tensors: Policy) -> Tensors:
    return {name: tensor_of(tensor) for name, tensor in tensors.items()}


def assert_same(found: Encoded, wanted: Encoded) -> None:
    assert found.payload == wanted.payload
    assert found._replace(payload=b"", moves={}) == wanted._replace(payload=b"", moves={})
    assert found.moves.keys() == wanted.moves.keys()
    for name, moves in wanted.moves.items():
        assert found.moves[name].num_weights == moves.num_weights
        np.testing.assert_array_equal(found.moves[name].places, moves.places)
        np.testing.assert_array_equal(found.moves[name].moved_down, moves.moved_down)


def heads(encoded: Encoded, base: Policy) -> dict[str, TensorHead]:
    header, layout, _ = split_payload(encoded.payload, layout_of(on_host(base)))
    return {name: head for (name, _, _), head in zip(layout, header.tensors, strict=True)}


@pytest.mark.parametrize("device", DEVICES)
def test_payloads_of_a_chain_are_those_of_the_host(device: str) -> None:
    history, known, base = History(), DeviceHistory(device), policy(1)
    for version in range(4):
        target = next_version(base, 10 + version)
        wanted = encode(on_host(base), on_host(target), history)
        found = encode_on_device(on(device, base), on(device, target), known)
        assert_same(found, wanted)
        history.advance(wanted.moves, wanted.target_root)
        known.advance(found.moves, found.target_root)
        assert known.to_host().to_bytes() == history.to_bytes()
        ways = heads(found, base)
        assert ways["blocks"].levels, "the factors are tested too"
        assert len(ways["blocks"].changes) > 1
        assert ways["still"].way == ways["empty"].way == UNCHANGED
        assert {ways[str(dtype)].way for dtype in FLOATS} == {SPARSE}
        base = target


@pytest.mark.parametrize("device", DEVICES)
def test_versions_larger_than_the_sample(device: str) -> None:
    base = {"a": weights(1, torch.bfloat16, 1500, 1025), "b": weights(2, torch.bfloat16, 1030, 1024)}
    target = {"a": ranked(base["a"], 0.02, 3), "b": moved(base["b"], 0.01, 4)}
    found = encode_on_device(on(device, base), on(device, target))
    assert_same(found, encode(on_host(base), on_host(target)))
    assert heads(found, base)["a"].levels
    assert not heads(found, base)["b"].levels


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("density", [0.0, 1e-4, 0.1, 0.2, 0.29, 0.6, 1.0])
def test_every_density_and_type(device: str, density: float) -> None:
    base = {str(dtype): weights(3, dtype, 61, 67) for dtype in ALL}
    target = {name: moved(tensor, density, 5) for name, tensor in base.items()}
    found = encode_on_device(on(device, base), on(device, target))
    assert_same(found, encode(on_host(base), on_host(target)))
    ways = {head.way for head in heads(found, base).values()}
    assert ways <= ({UNCHANGED} if density == 0 else {UNCHANGED, SPARSE} if density <= 0.1 else {SPARSE, DENSE, RAW})


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_come_go_and_change_shape(device: str) -> None:
    base = {name: weights(1, torch.bfloat16, 16, 8) for name in ("gone", "kept", "reshaped", "retyped")}
    target = {
        "added": weights(2, torch.bfloat16, 5),
        "kept": moved(base["kept"], 0.1, 1),
        "reshaped": base["reshaped"].view(8, 16),
        "retyped": base["retyped"].view(torch.float16),
    }
    for old in (base, None, {}):
        found = encode_on_device(None if old is None else on(device, old), on(device, target))
        assert_same(found, encode(None if old is None else on_host(old), on_host(target)))


@pytest.mark.parametrize("device", DEVICES)
def test_any_bits_and_any_memory(device: str) -> None:
    words = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    other = words[torch.randperm(2**16, generator=torch.Generator().manual_seed(0))]
    few = torch.where(torch.arange(2**16) % 50 == 0, other, words)
    base = {"few": words, "turned": weights(1, torch.float32, 40, 30).t(), "shifted": words.clone()[3:]}
    target = {"few": few, "turned": moved(base["turned"], 0.05, 2), "shifted": few.clone()[3:]}
    views = [
        {name: tensor.view(torch.bfloat16) if tensor.dtype == torch.int16 else tensor for name, tensor in each.items()}
        for each in (on(device, base), on(device, target))
    ]
    assert_same(encode_on_device(views[0], views[1]), encode(on_host(views[0]), on_host(views[1])))


def test_a_type_without_a_name_is_refused() -> None:
    strange = {"a": torch.zeros(4, dtype=torch.complex64)}
    with pytest.raises(InvalidValue, match="complex64 has no name"):
        encode_on_device(strange, strange)


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("is_float", [True, False])
@pytest.mark.parametrize("has_factors", [True, False])
def test_random_words_and_states_are_described_alike(dtype: torch.dtype, is_float: bool, has_factors: bool) -> None:
    size, random = 20_000, np.random.default_rng(0)
    limit, unsigned = 1 << 8 * WIDTHS[dtype], f"<u{WIDTHS[dtype]}"
    old = random.integers(0, limit, size).astype(unsigned)
    new = old ^ random.integers(1, limit, size).astype(unsigned)
    states = random.choice(np.array([0, *STATES], np.uint8), size)
    codes = [random.integers(0, 16, sides).astype(np.uint8) for sides in (100, 200)] if has_factors else [*NO_FACTORS]
    directions, extras = np.empty(size, np.uint16), np.empty(size, np.uint32)
    moved_down, agrees, tokens, num_extras = np.empty((4, size), np.uint8)
    coder.describe_changes(
        old, new, states, is_float, np.arange(size, dtype=np.uint32), codes[0], codes[1],
        directions, moved_down, agrees, tokens, extras, num_extras,
    )  # fmt: skip
    found = delta_passes.describe_values(*(torch.tensor(words).view(dtype) for words in (old, new)), is_float=is_float)
    for values, wanted in zip(found, (moved_down, tokens, extras, num_extras), strict=True):
        np.testing.assert_array_equal(values.numpy(), wanted)
    factors = Factors(*(torch.tensor(sides) for sides in codes)) if has_factors else None
    where, expected = delta_passes.describe_directions(torch.arange(size), torch.tensor(states).int(), factors)
    np.testing.assert_array_equal(where.numpy(), directions)
    np.testing.assert_array_equal((expected == found.moved_down).numpy(), agrees)


def test_every_state_ages_and_moves_alike() -> None:
    wanted = np.repeat(np.array([0, *STATES], np.uint8), 2)
    states, places = torch.tensor(wanted), np.arange(0, wanted.size, 3, dtype=np.uint32)
    moved_down = (places // 3 % 2).astype(np.uint8)
    for _ in range(kernels.FRESH + 1):
        kernels.age(wanted)
        delta_passes.age(states)
        np.testing.assert_array_equal(states.numpy(), wanted)
        kernels.note_moves(wanted, places, moved_down)
        delta_passes.note_moves(states, torch.tensor(places.astype(np.int64)), torch.tensor(moved_down))
        np.testing.assert_array_equal(states.numpy(), wanted)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "F8_E4M3", "I8"])
def test_contexts_and_gaps_are_those_of_the_host(dtype: str) -> None:
    held, new, hazards, _ = tensor_with_changes(dtype, 2 * BLOCK + 12_345, has_factors=False, spread=3000)
    (found,) = delta_passes.find_changes([held], [new])
    assert held.states is not None
    old, spec = held.words.numpy(), SPECS.get(dtype, PLAIN)
    contexts, gaps = np.empty(old.size, np.uint16), np.empty(found.places.numel(), np.uint64)
    unsigned = old.view(f"<u{old.itemsize}")
    kernels.find_contexts(unsigned, held.states.numpy(), spec.up, spec.down, spec.mask, contexts)
    np.testing.assert_array_equal(delta_passes.find_contexts(held.words, held.states, dtype).numpy(), contexts)
    kernels.measure_gaps(
        contexts, hazards.numpy().astype(np.uint32), found.places.numpy().astype(np.uint32), BLOCK, gaps
    )
    np.testing.assert_array_equal(delta_passes.measure_gaps([held], [found], [hazards], [None])[0].numpy(), gaps)
    assert gaps.max() > kernels.LIMIT
    for stride in (1, 7):
        counts = np.zeros(NUM_CONTEXTS, np.int64)
        kernels.count_contexts(contexts, stride, counts)
        np.testing.assert_array_equal(delta_passes.count_contexts(held, stride).numpy(), counts)


@pytest.mark.slow
def test_the_kernels_interpreted_equal_torch() -> None:
    """Triton reads its mode when it is first imported, hence a process of its own."""
    pytest.importorskip("triton")
    answer = subprocess.run(
        [sys.executable, "-c", "from tests.unit.policy import test_deltas as t; t.check_interpreted()"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr


def test_the_kernels_compile_for_a_device_that_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = pytest.importorskip("triton.compiler")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    tile, spec = {"tile_size": delta_kernels.TILE}, SPECS["BF16"]
    codes = {"up": spec.up, "down": spec.down, "mask": spec.mask, "has_states": True}
    marks = {"bits": "*i32", "starts": "*i64", "first": "i64"}
    words = {"old": "*i16", "new": "*i16"}
    clock = {"hazards": "*i32", "rows": "*u8", "columns": "*u8", "num_columns": "i32"}
    changes = {"places": "*i64", "contexts": "*i32", "before": "*i16", "after": "*i16"}
    times = {"before": "*i32", "own": "*i32", "totals": "*i32", "size": "i64"}
    for kernel, types, constants in (
        (delta_kernels._mark, words | {"bits": "*i32", "counts": "*i32", "size": "i64"}, tile),
        (delta_kernels._list, words | {"states": "*u8"} | marks | changes, codes | tile),
        (delta_kernels._time, {"old": "*i16", "states": "*u8"} | marks | clock | times,
         codes | {"has_factors": True} | tile),
    ):  # fmt: skip
        signature = types | dict.fromkeys(constants, "constexpr")
        compiled = compiler.compile(compiler.ASTSource(kernel, signature, constants), target=target)
        assert "cubin" in compiled.asm


def check_interpreted() -> None:
    """Whether the kernels compute the right thing; not whether they compile."""
    cases = [
        ("BF16", BLOCK + 3333, True), ("BF16", 9000, False), ("BF16", 0, False), ("F8_E5M2", 9000, True), ("F32", 50, False),
    ]  # fmt: skip
    assert_kernels_equal_torch([tensor_with_changes(*case) for case in cases])
    dense = tensor_with_changes("I8", 5000, has_factors=False, spread=2)
    (found,) = delta_passes.find_changes([dense.held], [dense.new], most=0.3, with_kernels=True)
    assert (found.num_changes, found.places.numel()) == (int((dense.held.words != dense.new).sum()), 0)


@pytest.mark.gpu
@NEEDS_CUDA
def test_the_kernels_equal_torch() -> None:
    cases = [(dtype, 3 * BLOCK + 999, dtype != "I8") for dtype in ("BF16", "F16", "F32", "F8_E4M3", "F8_E5M2", "I8")]
    made = [tensor_with_changes(*case).to("cuda") for case in cases]
    assert delta_passes.uses_kernels(made[0].held.words), "Triton is missing: this would compare torch with itself"
    assert_kernels_equal_torch(made)


class Made(NamedTuple):
    held: Held
    new: torch.Tensor
    hazards: torch.Tensor
    factors: Factors | None

    def to(self, device: str) -> Made:
        states = None if self.held.states is None else self.held.states.to(device)
        factors = None if self.factors is None else Factors(*(codes.to(device) for codes in self.factors))
        held = Held(self.held.words.to(device), states, self.held.dtype)
        return Made(held, self.new.to(device), self.hazards.to(device), factors)


def assert_kernels_equal_torch(made: list[Made]) -> None:
    held, new, hazards, factors = (list(column) for column in zip(*made, strict=True))
    for each in (held, [one._replace(states=None) for one in held[1:]]):
        last = -len(each)
        found = [delta_passes.find_changes(each, new[last:], with_kernels=flag) for flag in (True, False)]
        for ours, wanted in zip(*found, strict=True):
            assert ours.num_changes == wanted.num_changes
            assert all(torch.equal(left, right) for left, right in zip(ours[1:5], wanted[1:5], strict=True))
        assert sum(one.num_changes for one in found[0]) > 100
        gaps = [delta_passes.measure_gaps(each, part, hazards[last:], factors[last:]) for part in found]
        assert all(torch.equal(left, right) for left, right in zip(*gaps, strict=True))


def tensor_with_changes(dtype: str, size: int, has_factors: bool, spread: int = 90) -> Made:
    """Random bits and states, a change every `spread` weights about, hazards up to the longest."""
    generator = torch.Generator().manual_seed(size)
    width = {"F32": 4, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1}.get(dtype, 2)
    integers = delta_passes.INTEGERS[width]
    limits = torch.iinfo(integers)
    words = torch.randint(limits.min, limits.max, (size,), generator=generator).to(integers)
    states = torch.randint(0, 256, (size,), generator=generator).to(torch.uint8)
    chosen = torch.rand(size, generator=generator) < 1 / spread
    num_hazards = kernels.NUM_LEVELS << kernels.LEVEL_BITS
    hazards = torch.randint(1, (8 << kernels.TIME_BITS) + 1, (num_hazards,), generator=generator).to(torch.int32)
    rows, columns = (torch.randint(0, 16, (sides,), generator=generator) for sides in (size // 1000 + 1, 1000))
    factors = Factors(rows.to(torch.uint8), columns.to(torch.uint8)) if has_factors else None
    return Made(Held(words, states, dtype), torch.where(chosen, words + 1, words), hazards, factors)
