import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import process_time

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.deltas.peers import DeltaPeer, Words, missing_peers, peers
from benchmarks.deltas.tools import TOOLS, apply_patch, cpu_seconds, make_patch, missing
from contracts.errors import InvalidValue
from tests.each_case import each_case

NOTHING_INSTALLED = "/nonexistent"
FORMATS = {peer.name: peer for peer in peers(NOTHING_INSTALLED)}
NEMO = "u16 gaps + XOR values + zstd-1 (NeMo-RL)"
SPECIALS = [0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0x7FC1, 0xFFFF, 0x7F81, 0x0001, 0x8001, 0x3F80]
LONG = 300_000


def words(*values: int) -> Words:
    return np.array(values, dtype=np.uint16)


def noise(size: int, seed: int = 0) -> Words:
    return np.random.default_rng(seed).integers(0, 2**16, size, dtype=np.uint16)


def changed_at(*places: int) -> tuple[Words, Words]:
    base = noise(LONG)
    target = base.copy()
    target[list(places)] ^= 1
    return base, target


def trained(density: float, size: int = 100_000) -> tuple[Words, Words]:
    """Weights like a trained model's, some of them moved by one unit in the last place."""
    generator = np.random.default_rng(0)
    base = (generator.normal(0, 0.02, size).astype("<f4").view("<u4") >> 16).astype(np.uint16)
    return base, base + (generator.random(size) < density).astype(np.uint16)


def round_trip(peer: DeltaPeer, base: Words, target: Words) -> bytes:
    before = base.copy(), target.copy()
    payload = peer.encode(base, target)
    found = peer.decode(base, payload)
    assert found.dtype == np.uint16
    assert np.array_equal(found, target)
    assert np.array_equal(base, before[0])
    assert np.array_equal(target, before[1])
    assert found.flags.writeable
    assert not np.shares_memory(found, base)
    return payload


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Words, Words]:
    word = st.one_of(st.sampled_from(SPECIALS), st.integers(0, 0xFFFF))
    base = draw(st.lists(word, max_size=60))
    target = [draw(word) if draw(st.booleans()) else value for value in base]
    return words(*base), words(*target)


@pytest.mark.parametrize("name", FORMATS)
@given(pair=pairs())
@settings(max_examples=20, deadline=None)
def test_any_words_survive(name: str, pair: tuple[Words, Words]) -> None:
    round_trip(FORMATS[name], *pair)


CASES: dict[str, Callable[[], tuple[Words, Words]]] = {
    "no words": lambda: (words(), words()),
    "nothing changed": lambda: (noise(1000), noise(1000)),
    "everything changed": lambda: (noise(1000), noise(1000) ^ np.uint16(0xFFFF)),
    "the only word": lambda: (words(0x3F80), words(0x3F81)),
    "the first word": lambda: changed_at(0),
    "the last word": lambda: changed_at(LONG - 1),
    "first and last": lambda: changed_at(0, LONG - 1),
    "neighbours": lambda: changed_at(7, 8, 9),
    "zero to minus zero": lambda: (words(0, 0x8000, 0), words(0x8000, 0, 0)),
    "every special to every other": lambda: (np.repeat(words(*SPECIALS), 11), np.tile(words(*SPECIALS), 11)),
    **{f"first after {gap}": partial(changed_at, gap) for gap in (65534, 65535, 65536, 131069, 131070, 131071)},
    **{f"a gap of {gap}": partial(changed_at, 5, 6 + gap, 7 + gap) for gap in (65534, 65535, 65536, 131070, 262140)},
    "a change that looks like an escape": lambda: (words(0, 0, 0), words(0xFFFF, 0, 0xFFFF)),
    "a policy's step": lambda: trained(0.02),
}


@each_case("case", CASES)
@each_case("name", FORMATS)
def test_the_edges_survive(name: str, case: str) -> None:
    round_trip(FORMATS[name], *CASES[case]())


@pytest.mark.parametrize(
    "case", ["nothing changed", "every special to every other", "first and last", "a policy's step"]
)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(tool.name, marks=pytest.mark.skipif(missing(tool) is not None, reason=str(missing(tool))))
        for tool in TOOLS
    ],
)
def test_the_edges_survive_a_program(name: str, case: str) -> None:
    peer = next(peer for peer in peers() if peer.name == name)
    assert peer.is_slow
    base, target = CASES[case]()
    payload = round_trip(peer, base[-20_000:], target[-20_000:])
    assert case == "every special to every other" or len(payload) < 20_000


BASE, TARGET = words(1, 2, 3, 4), words(1, 7, 3, 5)


def test_raw_is_positions_then_words() -> None:
    expected = np.array([1, 3], "<i4").tobytes() + np.array([7, 5], "<u2").tobytes()
    assert FORMATS["raw int32 + bf16 (TRL, verl, vLLM)"].encode(BASE, TARGET) == expected


def test_raw_costs_48_bits_a_change() -> None:
    base, target = trained(0.02)
    payload = FORMATS["raw int32 + bf16 (TRL, verl, vLLM)"].encode(base, target)
    assert len(payload) == 6 * np.count_nonzero(base != target)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("PULSE v2", np.array([1, 2], "<i4").tobytes() + np.array([7, 5], "<u2").tobytes()),
        ("PULSE v2, gaps in 16 bits", (2).to_bytes(8, "little") + np.array([1, 1, 7, 5], "<u2").tobytes()),
        ("XOR + zstd-1 (slime, Stitch)", np.array([0, 5, 0, 1], "<u2").tobytes()),
        (NEMO, (2).to_bytes(8, "little") + np.array([1, 1, 5, 1], "<u2").tobytes()),
    ],
)
def test_what_zstd_gets(name: str, plain: bytes) -> None:
    assert FORMATS[name].encode(BASE, TARGET) == zstandard.ZstdCompressor(level=1).compress(plain)


def test_zstd_runs_at_level_1() -> None:
    base, target = trained(0.02)
    payload = FORMATS["XOR + zstd-1 (slime, Stitch)"].encode(base, target)
    levels = {level: zstandard.ZstdCompressor(level=level).compress((base ^ target).tobytes()) for level in (1, 3)}
    assert payload == levels[1] != levels[3]


@pytest.mark.parametrize(("gap", "gap_words"), [(65534, [65534]), (65535, [65535, 0]), (131071, [65535, 65535, 1])])
def test_a_long_gap_is_an_escape(gap: int, gap_words: list[int]) -> None:
    plain = zstandard.ZstdDecompressor().decompress(FORMATS[NEMO].encode(*changed_at(gap)))
    assert plain == len(gap_words).to_bytes(8, "little") + np.array([*gap_words, 1], "<u2").tobytes()


def test_the_formats_rank_as_published() -> None:
    base, target = trained(0.02)
    sizes = [len(peer.encode(base, target)) for peer in FORMATS.values()]
    assert sizes == sorted(sizes, reverse=True)


@each_case("peer", FORMATS.values())
@each_case("target", [noise(9), noise(10).reshape(2, 5), noise(10).astype(np.uint32)])
def test_words_that_do_not_fit_are_refused(peer: DeltaPeer, target: Words) -> None:
    with pytest.raises(InvalidValue, match="flat uint16 arrays of one length"):
        peer.encode(noise(10), target)


@pytest.mark.parametrize("peer", FORMATS.values(), ids=FORMATS)
def test_more_words_than_positions_reach_are_refused(peer: DeltaPeer) -> None:
    endless = np.broadcast_to(words(0), 2**31)
    with pytest.raises(InvalidValue, match="2147483648 words"):
        peer.encode(endless, endless)


def test_without_programs_each_is_named_with_what_to_install() -> None:
    assert missing_peers(NOTHING_INSTALLED) == {
        "zstd -3 --patch-from --single-thread": "zstd not on PATH: apt-get install zstd",
        "zstd -19 --patch-from --long=31": "zstd not on PATH: apt-get install zstd",
        "xdelta3 -9": "xdelta3 not on PATH: apt-get install xdelta3",
        "bsdiff": "bsdiff and bspatch not on PATH: apt-get install bsdiff",
    }
    assert len(FORMATS) == 5
    assert not any(peer.is_slow for peer in FORMATS.values())


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(stat.S_IRWXU)


def test_half_a_tool_is_missing(tmp_path: Path) -> None:
    program(tmp_path, "bsdiff", "exit 0")
    program(tmp_path, "xdelta3", "exit 0")
    found = str(tmp_path)
    assert missing_peers(found)["bsdiff"] == "bspatch not on PATH: apt-get install bsdiff"
    assert [peer.name for peer in peers(found) if peer.is_slow] == ["xdelta3 -9"]
    names = [peer.name for peer in peers(found)] + list(missing_peers(found))
    assert sorted(names) == sorted([*FORMATS, *(tool.name for tool in TOOLS)])


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo out of memory >&2; exit 3", "ended with 3 and said: out of memory"),
        ("exit 0", "ended with 0 and said: nothing"),
    ],
)
def test_a_program_that_fails_is_an_error(tmp_path: Path, script: str, message: str) -> None:
    program(tmp_path, "xdelta3", script)
    peer = next(peer for peer in peers(str(tmp_path)) if peer.is_slow)
    for call in (lambda: peer.encode(BASE, TARGET), lambda: peer.decode(BASE, b"patch")):
        with pytest.raises(InvalidValue, match=message):
            call()


def test_a_missing_program_is_an_error() -> None:
    for call in (make_patch, apply_patch):
        with pytest.raises(InvalidValue, match="apt-get install bsdiff"):
            call(TOOLS[-1], b"base", b"other", NOTHING_INSTALLED)


def test_the_work_of_a_program_is_counted(tmp_path: Path) -> None:
    program(tmp_path, "xdelta3", "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; : > patch.bin")
    peer = next(peer for peer in peers(str(tmp_path)) if peer.is_slow)
    ours, everything = process_time(), cpu_seconds()
    peer.encode(BASE, TARGET)
    everything, ours = cpu_seconds() - everything, process_time() - ours
    assert everything > ours
