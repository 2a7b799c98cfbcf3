"""Payloads that their manifests vouch for and that are no payloads: refused by name, without harm to the process."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
import zstandard

from contracts.errors import WeightsRefused
from tests.unit.weights import golden
from tests.unit.weights.examples import bf16_policy, refused, same, stepped, tensor_of
from tests.unit.weights.sealed import close_payload, manifest_of, open_payload, resealed
from tests.worlds.versions import decode
from weights.codec.delta import encode, stage
from weights.codec.history import History
from weights.tensors import Tensor, root_of
from weights.versions.manifest import Manifest

WEIGHT = 0
"""Place of `attention.weight`, which has factors, in the layout of the golden step."""


class Case:
    """The golden step with factors, made anew, and what both ends hold before it."""

    def __init__(self) -> None:
        versions = golden.make_versions()
        self.history = History()
        for old, new in pairwise(versions[:3]):
            encoded = encode(old, new, self.history)
            self.history.advance(encoded.moves, encoded.target_root)
        self.base, self.target = versions[2], versions[3] | {"norm": _noise(versions[3]["norm"])}
        self.target["places"] = versions[1]["places"]
        self.encoded = encode(self.base, self.target, self.history)
        self.manifest: Manifest = manifest_of(self.base, self.encoded, self.history)
        self.header, self.bodies = open_payload(self.encoded.payload)
        assert {head[0] for head in self.header[2]} == {0, 1, 2, 3}
        assert self.header[2][WEIGHT][5] > 0

    def refused(self, payload: bytes) -> WeightsRefused:
        with pytest.raises(WeightsRefused) as refused:
            self.stage(payload)
        return refused.value

    def stage(self, payload: bytes) -> None:
        manifest = resealed(self.manifest, payload)
        stage(self.base, manifest, payload, self.history, base_root=manifest.base_root)

    def with_header(self, change: Callable[[Any], object]) -> bytes:
        header = msgspec.msgpack.decode(msgspec.msgpack.encode(self.header))
        change(header)
        return close_payload(header, self.bodies)


def _noise(tensor: Tensor) -> Tensor:
    data = np.random.default_rng(5).integers(0, 256, tensor.data.size)
    return tensor._replace(data=data.astype(np.uint8))


@pytest.fixture(scope="module")
def case() -> Case:
    return Case()


def test_the_case_itself_is_taken(case: Case) -> None:
    decoded = decode(case.base, case.manifest, case.encoded.payload, case.history)
    assert same(decoded, case.target)
    case.stage(case.with_header(lambda _: None))


def test_payloads_that_end_too_early_or_too_late(case: Case) -> None:
    payload = case.encoded.payload
    for kept in (0, 1, 3, 4, 7, 8, 9, 50, len(payload) // 2, len(payload) - 4, len(payload) - 1):
        assert case.refused(payload[:kept]).code == "corrupt_payload"
    assert case.refused(payload + b"\0").code == "corrupt_payload"
    assert case.refused(b"").code == "corrupt_payload"


@pytest.mark.slow
def test_flipped_bits_anywhere_never_give_other_weights(case: Case) -> None:
    chance, root = random.Random(2), root_of(case.base)
    text = msgspec.msgpack.encode(case.header)
    codes = []
    for number in range(600):
        content = bytearray((case.encoded.payload, case.bodies, text)[number % 3])
        for _ in range(chance.choice([1, 1, 3])):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        # Whole, or behind the compression of the header, which would hide most faults from the decoder.
        payload = (
            bytes(content)
            if number % 3 == 0
            else close_payload(case.header, bytes(content))
            if number % 3 == 1
            else close_payload(bytes(content), case.bodies)
        )
        try:
            case.stage(payload)  # some bits mean nothing: then it leads to the very same weights
        except WeightsRefused as refused:
            codes.append(refused.code)
    assert set(codes) == {"corrupt_payload", "target_root"}
    assert len(codes) > 500
    assert root_of(case.base) == root


def test_bytes_that_are_missing_doubled_or_swapped(case: Case) -> None:
    chance = random.Random(3)
    for _ in range(200):
        bodies = bytearray(case.bodies)
        start, length = chance.randrange(len(bodies) - 64), chance.randrange(1, 64)
        match chance.randrange(3):
            case 0:
                bodies[start : start + length] = chance.randbytes(length)
            case 1:
                bodies[start : start + length] = bytes(length)
            case _:
                other = chance.randrange(len(bodies) - 64)
                bodies[start : start + length] = bodies[other : other + length]
        if bodies != case.bodies:
            assert case.refused(close_payload(case.header, bytes(bodies))).code in {"corrupt_payload", "target_root"}


HUGE: list[Any] = [
    -1,
    0,
    1,
    2,
    5,
    7,
    8,
    97,
    2**18,
    2**31,
    2**32,
    2**63,
    2**64 - 1,
    -(2**63),
    0.5,
    None,
    "",
    b"",
    [],
    [0],
    [2**40],
    {},
]


def leaves_of(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(leaf for key, value in items for leaf in leaves_of(value, (*path, key)))]


def test_any_part_of_the_header_replaced_by_anything(case: Case) -> None:
    chance = random.Random(4)
    paths, codes = [path for path in leaves_of(case.header) if path], []
    for _ in range(600):
        *path, key = chance.choice(paths)

        def change(header: Any, path: list[Any] = path, key: Any = key) -> None:
            for step in path:
                header = header[step]
            if chance.random() < 0.2:
                del header[key]
            else:
                header[key] = chance.choice(HUGE)

        payload = case.with_header(change)
        try:
            case.stage(payload)  # a number may be replaced by itself, or by one that nobody reads
        except WeightsRefused as refused:
            codes.append(refused.code)
    assert set(codes) <= {"corrupt_payload", "target_root"}
    assert len(codes) > 400


def head(**changes: Any) -> Callable[[Any], None]:
    """Change the head of `attention.weight`."""
    names = ("way", "num_bytes", "scale", "changes", "words", "factor_bytes", "levels")

    def change(header: Any) -> None:
        for name, value in changes.items():
            header[2][WEIGHT][names.index(name)] = value

    return change


def tables(number: int, value: Any) -> Callable[[Any], None]:
    def change(header: Any) -> None:
        header[1]["BF16"][number] = value

    return change


OUT_OF_RANGE = {
    "a way that does not exist": head(way=4),
    "a scale out of range": head(scale=97),
    "a level out of range": head(levels=[200] * 8),
    "levels too few": head(levels=[0] * 7),
    "levels too many": head(levels=[0] * 9),
    "levels without factors": head(factor_bytes=0),
    "factors without levels": head(levels=[]),
    "more changes than words": head(changes=[2**40]),
    "fewer changes than coded": head(changes=[1]),
    "no changes": head(changes=[0]),
    "changes below nothing": head(changes=[-1]),
    "a block too many": head(changes=[1, 1], words=[1, 1]),
    "more words than bytes": head(words=[2**40]),
    "words below nothing": head(words=[-5]),
    "factors below nothing": head(factor_bytes=-4),
    "factors longer than the body": head(factor_bytes=2**30),
    "unchanged with a body": head(way=0),
    "dense without its words": head(way=2),
    "dense of other words": head(way=2, words=[30719, 2]),
    "dense of words of no width": head(way=2, words=[30720, 0]),
    "dense of words of three bytes": head(way=2, words=[20480, 3]),
    "a class without its state": tables(0, b"\0\0"),
    "a state out of range": tables(1, b"\x80" * 14),
    "a rate out of range": tables(2, b"\xb9" * 14),
    "a direction out of range": tables(3, [[384, 128]]),
    "a direction below nothing": tables(3, [[-1, 128]]),
    "a direction that is certain": tables(3, [[1, 256]]),
    "a direction that never is": tables(3, [[1, 0]]),
    "no tokens": tables(4, []),
    "an empty row of tokens": tables(4, [[0, []]]),
    "a token out of range": tables(4, [[0, [[64, 4096]]]]),
    "a class of tokens out of range": tables(4, [[256, [[0, 4096]]]]),
    "frequencies that are too many": tables(4, [[0, [[0, 4096], [1, 1]]]]),
    "a frequency below nothing": tables(4, [[0, [[0, 8192], [1, -4096]]]]),
    "tables of a type that the base lacks": lambda header: header[1].update({"F99": header[1]["BF16"]}),
    "no tables": lambda header: header[1].clear(),
    "a tensor too few": lambda header: header[2].pop(),
    "no layout": lambda header: header.pop(),
}


@pytest.mark.parametrize("what", OUT_OF_RANGE)
def test_out_of_range(case: Case, what: str) -> None:
    assert case.refused(case.with_header(OUT_OF_RANGE[what])).code == "corrupt_payload"


@pytest.mark.parametrize(
    "codes",
    [b"", bytes(351), bytes(353), b"\x10" + bytes(351), b"\xff" * 352, None],
    ids=["none", "too few", "too many", "out of range", "all out of range", "no frame"],
)
def test_factors_that_are_none(case: Case, codes: bytes | None) -> None:
    packed = b"no frame" if codes is None else zstandard.compress(codes)
    old = case.header[2][WEIGHT]
    payload = close_payload(
        with_head(case.header, [1, old[1] - old[5] + len(packed), old[2], old[3], old[4], len(packed), old[6]]),
        packed + case.bodies[old[5] :],
    )
    assert case.refused(payload).code == "corrupt_payload"


def with_head(header: Any, new: list[Any]) -> list[Any]:
    return [header[0], header[1], [new, *header[2][1:]]]


@pytest.mark.slow
def test_other_factors_codes_and_tables_only_lead_elsewhere(case: Case) -> None:
    """Everything in range and nothing right: the loops must stay within their arrays."""
    chance = random.Random(6)
    for number in range(60):
        old = case.header[2][WEIGHT]
        packed = zstandard.compress(bytes(chance.randrange(16) for _ in range(352)))
        words = chance.randbytes(4 * old[4][0]) if number % 2 else case.bodies[old[5] : old[1]]
        levels = [chance.randrange(-96, 97) for _ in range(8)]
        new = [1, len(packed) + len(words), 0, [chance.choice([1, 3000, 30720])], old[4], len(packed), levels]
        table = [
            bytes(chance.randrange(256) for _ in range(900)),
            bytes(chance.randrange(128) for _ in range(900)),
            bytes(chance.randrange(185) for _ in range(900)),
            [[chance.randrange(384), chance.randrange(1, 256)] for _ in range(500)],
            [[kind, [[chance.randrange(63), 1000], [63, 3096]]] for kind in range(256)],
        ]
        header = [case.header[0], case.header[1] | {"BF16": table}, [new, *case.header[2][1:]]]
        payload = close_payload(header, packed + words + case.bodies[old[1] :])
        assert case.refused(payload).code in {"corrupt_payload", "target_root"}


def test_escapes_without_end(case: Case) -> None:
    """Code words of ones only: every symbol is an escape, and the block must end all the same."""
    old = case.header[2][WEIGHT]
    words = b"\xff" * 4 * 5000
    new = [1, len(words), -96, [30720], [5000], 0, []]
    payload = close_payload(with_head(case.header, new), words + case.bodies[old[1] :])
    assert case.refused(payload).code == "corrupt_payload"


def test_a_block_with_fewer_words_than_it_begins_with(case: Case) -> None:
    old = case.header[2][WEIGHT]
    payload = close_payload(with_head(case.header, [1, 4, 0, [1], [1], 0, []]), case.bodies[:4] + case.bodies[old[1] :])
    assert case.refused(payload).code == "corrupt_payload"


def test_words_of_eight_bytes_do_not_travel_as_changes() -> None:
    base = {"wide": Tensor("F64", (64,), np.zeros(512, np.uint8))}
    changed = base["wide"].data.copy()
    changed[8] = 1
    encoded = encode(base, {"wide": base["wide"]._replace(data=changed)})
    table = [b"", b"", b"", [], [[0, [[0, 4096]]]]]
    body = (2**31).to_bytes(8, "little")
    payload = close_payload([None, {"F64": table}, [[1, 8, 0, [0], [2], 0, []]]], body)
    with refused("corrupt_payload", "does not travel as changes"):
        stage(base, resealed(manifest_of(base, encoded), payload), payload)


def dense(shape: list[int], words: list[int], body: bytes) -> bytes:
    return close_payload([[["weight", "F64", shape]], {}, [[2, len(body), 0, [], words, 0, []]]], body)


TABLE = [b"", b"", b"", [], [[0, [[0, 4096]]]]]
BOMBS: dict[str, Callable[[], bytes]] = {
    "a header of zeros": lambda: close_payload(bytes(2**27), b""),
    "a header of empty heads": lambda: close_payload([None, {}, [[]] * 1_200_000], b""),
    "a header of tables": lambda: close_payload([None, {str(number): TABLE for number in range(9000)}, [[]]], b""),
    "levels": lambda: close_payload([None, {"BF16": TABLE}, [[1, 0, 0, [0], [0], 0, [0] * 500_000]]], b""),
    "a dense body of zeros": lambda: dense([256], [256, 8], zstandard.compress(bytes(2**27))),
    "a dense body of an absurd size": lambda: dense([2**62] * 2, [2**63, 8], zstandard.compress(bytes(2**20))),
    "a shape of many sizes": lambda: dense([2**63] * 100_000, [1, 8], b"0"),
    "boxes in boxes": lambda: close_payload(b"\x93\xc0\x80" + b"\x91" * 100_000 + b"\xc0", b""),
    "boxes that nobody reads": lambda: close_payload(b"\x94\xc0\x80\x90" + b"\x91" * 100_000 + b"\xc0", b""),
}
"""A few kilobytes that ask for gigabytes."""


@pytest.mark.parametrize("what", BOMBS)
@pytest.mark.slow
def test_a_small_payload_cannot_fill_the_memory(what: str) -> None:
    base = {"weight": bf16_policy()["embed"]}
    encoded = encode(base, stepped(base, 0.05))
    payload = BOMBS[what]()
    assert len(payload) < 2**18
    tracemalloc.start()
    try:
        with pytest.raises(WeightsRefused) as refused:
            stage(base, resealed(manifest_of(base, encoded), payload), payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused.value.code == "corrupt_payload"
    assert peak < 2**27


def test_names_that_are_no_text_or_not_in_order() -> None:
    target = {"a": tensor_of(np.arange(4, dtype="<u2")), "b": tensor_of(np.arange(4, dtype="<u2"))}
    encoded = encode(None, target)
    header, bodies = open_payload(encoded.payload)
    text = msgspec.msgpack.encode(header)
    assert text.count(b"\xa1a") == 1
    for other in (b"\xa1\xff", b"\xa1b", b"\xa1c"):
        payload = close_payload(text.replace(b"\xa1a", other), bodies)
        with refused("corrupt_payload"):
            stage(None, resealed(manifest_of(None, encoded), payload), payload)


@pytest.mark.parametrize(("shape", "num_bytes"), [((3,), 7), ((0,), 4), ((2, 2), 4)])
def test_bytes_that_do_not_fit_type_and_shape_are_served_by_nobody(shape: tuple[int, ...], num_bytes: int) -> None:
    target = {"w": Tensor("BF16", shape, np.arange(num_bytes, dtype=np.uint8))}
    encoded = encode(None, target)
    with refused("corrupt_payload", "bytes are not a BF16 tensor of shape"):
        stage(None, manifest_of(None, encoded), encoded.payload)
