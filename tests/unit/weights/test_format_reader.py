"""The golden files, and the reader that knows nothing but docs/weight-format.md."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from blake3 import blake3

from contracts.errors import WeightsRefused
from tests.unit.weights import format_coder, format_reader, golden
from tests.unit.weights.examples import same
from tests.unit.weights.sealed import manifest_of, open_payload
from tests.worlds.versions import decode
from weights.codec import coder
from weights.codec.delta import encode
from weights.codec.history import History
from weights.tensors import Tensor, Tensors, root_of, words_of
from weights.versions.manifest import Manifest, parse_manifest
from weights.versions.signing import signed_bytes

EDGES = [(None, 0), (0, 1), (1, 2), (2, 3), (3, 4), (golden.FOLDED_FROM, golden.LAST)]
DOCUMENT = Path(__file__).parents[3] / "docs" / "weight-format.md"


def opened(base_version: int | None, version: int) -> tuple[bytes, Manifest, bytes]:
    text, payload = golden.files_of(base_version, version)
    return text.read_bytes(), parse_manifest(text.read_bytes()), payload.read_bytes()


def held() -> list[tuple[Tensors, History]]:
    """Each golden version and the history after it, decoded from the files by the codec."""
    states: list[tuple[Tensors, History]] = [({}, History())]
    for base_version, version in EDGES[: golden.LAST + 1]:
        base, history = states[-1]
        _, manifest, payload = opened(base_version, version)
        tensors, after = decode(base, manifest, payload, history), History()
        if version:
            after = history.copy()
            after.advance(encode(base, tensors, history).moves, manifest.target_root)
            assert after.digest == manifest.history_after
        states.append((tensors, after))
    return states[1:]


def test_golden_files_lead_to_the_weights_they_were_made_of() -> None:
    versions = [tensors for tensors, _ in held()]
    for version, tensors in enumerate(versions):
        _, manifest, _ = opened(version - 1 if version else None, version)
        assert root_of(tensors) == manifest.target_root
    _, fold, payload = opened(*EDGES[-1])
    assert same(decode(versions[golden.FOLDED_FROM], fold, payload), versions[golden.LAST])


def test_today_s_codec_leads_to_the_same_weights_in_about_as_many_bytes() -> None:
    """The golden files stand for what is in stores. A writer may choose other tables; a reader must read both."""
    states = held()
    for base_version, version in EDGES:
        _, manifest, payload = opened(base_version, version)
        base, history = (None, None) if base_version is None else states[base_version]
        encoded = encode(base, states[version][0], None if manifest.history is None else history)
        assert encoded.target_root == manifest.target_root
        assert len(encoded.payload) < 1.02 * len(payload)


def test_the_golden_files_hold_every_way_that_a_tensor_can_travel() -> None:
    heads = [format_coder.Head(*head) for edge in EDGES for head in open_payload(opened(*edge)[2])[0][2]]
    assert {head.way for head in heads} == {0, 1, 2, 3}
    assert any(head.factor_bytes for head in heads)
    assert any(len(head.changes) > 1 for head in heads)
    assert any(head.scale for head in heads)
    assert {opened(*edge)[1].kind for edge in EDGES} == {"full", "step", "fold"}
    assert [opened(*edge)[1].history for edge in EDGES[:2]] == [None, "0"]
    assert sum(path.stat().st_size for path in golden.FOLDER.iterdir()) < 200_000


@pytest.mark.slow
def test_a_stranger_reads_the_golden_files() -> None:
    ours, theirs = held(), format_reader.Read({}, "0", {})
    for base_version, version in EDGES[: golden.LAST + 1]:
        text, _, payload = opened(base_version, version)
        theirs = format_reader.read_version(text, payload, theirs.tensors, theirs.digest, theirs.states)
        tensors, history = ours[version]
        assert same(theirs.tensors, tensors)
        assert theirs.digest == history.digest
        assert_same_states(theirs, history)
    text, _, payload = opened(*EDGES[-1])
    folded = format_reader.read_version(text, payload, ours[golden.FOLDED_FROM][0])
    assert same(folded.tensors, ours[golden.LAST][0])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_stranger_reads_what_we_write(seed: int) -> None:
    random = np.random.default_rng(seed)
    base = anything(random)
    history, theirs = History(), format_reader.Read(base, "0", {})
    for version in range(1, 4):
        target = moved(random, base)
        encoded = encode(base, target, history)
        assert version > 1 or open_payload(encoded.payload)[0][2][0][5] > 0, "the matrix has factors"
        manifest = manifest_of(base, encoded, history, version=version, base_version=version - 1)
        text = msgspec.json.encode(manifest)
        theirs = format_reader.read_version(text, encoded.payload, theirs.tensors, theirs.digest, theirs.states)
        assert same(theirs.tensors, target)
        assert same(decode(base, manifest, encoded.payload, history), target)
        history.advance(encoded.moves, encoded.target_root)
        assert theirs.digest == history.digest
        assert_same_states(theirs, history)
        base = target


def test_a_stranger_refuses_another_history_base_and_damage() -> None:
    (base, history), (text, _, payload) = held()[1], opened(1, 2)
    states = {name: history.states(name, words_of(tensor).size).tolist() for name, tensor in base.items()}
    for code, given in (
        ("wrong_base", (payload, {}, history.digest, states)),
        ("wrong_history", (payload, base, "0", {})),
        ("payload_hash", (payload[:-1] + bytes([payload[-1] ^ 1]), base, history.digest, states)),
        ("target_root", (payload, base, history.digest, states | {"attention.weight": [0] * 30720})),
    ):
        with pytest.raises(WeightsRefused) as refused:
            format_reader.read_version(text, *given)
        assert refused.value.code == code or (code, refused.value.code) == ("target_root", "corrupt_payload")


def test_a_stranger_signs_the_same_bytes_and_finds_the_same_root() -> None:
    for edge in EDGES:
        text, manifest, _ = opened(*edge)
        assert format_reader.signed_bytes(text) == signed_bytes(manifest)
    named = msgspec.structs.replace(
        opened(0, 1)[1], run='é "\\\n\t\x01\x7f😀', key="k", signature="s", created_at=1000.0
    )
    assert format_reader.signed_bytes(msgspec.json.encode(named)) == signed_bytes(named)
    weights = {
        name: Tensor("U8", (1,), np.zeros(1, np.uint8)) for name in ("a", "é", "😀", "", '"', "\n", "\uffff", "Z")
    }
    assert format_reader.root(weights) == root_of(weights)


def test_the_document_names_the_numbers_of_the_code() -> None:
    text = DOCUMENT.read_text()
    assert coder.BOUNDS.tolist() == format_coder.BOUNDS
    assert f"B[1] = {coder.BOUNDS[1]}, B[64] = {coder.BOUNDS[64]}" in text
    leaf = [["a", "U8", [1], blake3(b"\0").hexdigest()]]
    assert msgspec.json.encode(leaf).decode() in text


def assert_same_states(theirs: format_reader.Read, history: History) -> None:
    for name, states in theirs.states.items():
        assert history.states(name, len(states)).tolist() == states


def anything(random: np.random.Generator) -> Tensors:
    """Tensors of all kinds of bits and shapes; one is longer than a block."""
    shapes = {"BF16": (2, (160, 192)), "F16": (2, (300,)), "F32": (4, (9, 40)), "F8_E4M3": (1, (17, 19)), "U16": (2, (200,)),
              "F8_E5M2": (1, (99,)), "I8": (1, (30, 3)), "F64": (8, (5,)), "F4": (1, (61,)), "BOOL": (1, ())}  # fmt: skip
    result = {}
    for name, (width, shape) in shapes.items():
        size = max(1, int(np.prod(shape))) * width if name != "F4" else 31
        result[name] = Tensor(name, shape, random.integers(0, 256, size).astype(np.uint8))
    weight = (random.normal(0, 0.02, (160, 192)).astype("<f4").view("<u4") >> 16).astype("<u2")
    result["BF16"] = result["BF16"]._replace(data=weight.view(np.uint8).reshape(-1))
    long = np.zeros(2**18 + 5, np.uint8)
    return result | {"long": Tensor("U8", (long.size,), long)}


def moved(random: np.random.Generator, base: Tensors) -> Tensors:
    """A fraction of everything moves by anything from one place to all bits; the matrix in one rank."""
    target = {name: tensor._replace(data=tensor.data.copy()) for name, tensor in base.items()}
    for name, tensor in target.items():
        words = words_of(tensor)
        density = {"long": 4e-5, "BF16": 0.005}.get(name, random.choice([0.0, 0.02, 0.2]))
        some = random.random(words.size) < density
        far = random.integers(0, 256, words.nbytes).astype(np.uint8).view(words.dtype)
        near = random.choice(np.array([1, 2, 3, -1, -7]), words.size).astype(words.dtype)
        words[some] += np.where(random.random(words.size) < 0.7, near, far)[some]
    words = words_of(target["BF16"]).reshape(160, 192)
    pulls = np.outer(random.normal(0, 1, 160), random.normal(0, 1, 192))
    pulled = random.random((160, 192)) < np.abs(pulls) * 0.18
    words[pulled] += np.where((pulls < 0) ^ (words >> 15 == 1), 0xFFFF, 1).astype("<u2")[pulled]
    return target
