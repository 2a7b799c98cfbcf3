from __future__ import annotations

from typing import Any

import msgspec
import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import WeightsRefused
from tests.each_case import each_case
from tests.unit.weights.examples import refused
from weights.versions.manifest import Chunk, Manifest, parse_manifest
from weights.versions.signing import Keyring, Signer, signed_bytes

ROOT = "a" * 64
STEP = Manifest(
    policy="reservations",
    run="run-1",
    version=7,
    parent=6,
    base_version=6,
    base_root=ROOT,
    target_root="b" * 64,
    codec="codec-1",
    history="h6",
    history_after="h7",
    chunks=(Chunk("c" * 64, 100), Chunk("d" * 64, 20)),
    full_bytes=4096,
    num_changed=12,
    num_weights=2048,
    created_at=1000.25,
    step=70,
    epoch=1,
    num_samples=256,
)
FULL = msgspec.structs.replace(
    STEP, version=0, parent=None, base_version=None, base_root=None, history=None, history_after=None
)
FIELDS = [field.name for field in msgspec.structs.fields(Manifest)]


def signer_from(seed: int) -> Signer:
    return Signer(Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32))


def trusting(*signers: Signer) -> Keyring:
    return Keyring({signer.key_id: signer.public_key for signer in signers})


OLD, NEW, FORGER = signer_from(1), signer_from(2), signer_from(3)


def refusal(keyring: Keyring, manifest: Manifest) -> WeightsRefused:
    with pytest.raises(WeightsRefused) as refused:
        keyring.verify(manifest)
    return refused.value


def changed(value: Any) -> Any:
    """Another value that the field could have."""
    if isinstance(value, str):
        return ("1" if value[0] != "1" else "2") + value[1:]
    if value is msgspec.UNSET:
        return ()
    if isinstance(value, tuple):
        return value[::-1]
    return value + 1 if value is not None else None


@pytest.mark.parametrize("manifest", [STEP, FULL], ids=["step", "full"])
def test_what_was_signed_is_taken_also_after_the_wire(manifest: Manifest) -> None:
    signed = OLD.sign(manifest)
    assert msgspec.structs.replace(signed, key=None, signature=None) == manifest
    trusting(OLD).verify(signed)
    trusting(OLD).verify(parse_manifest(msgspec.json.format(msgspec.json.encode(signed))))


def test_a_key_is_named_by_its_public_half() -> None:
    assert OLD.key_id == blake3(OLD.public_key.public_bytes_raw()).hexdigest()[:16]
    assert OLD.sign(STEP).key == OLD.key_id
    assert trusting(NEW, OLD).key_ids == tuple(sorted((OLD.key_id, NEW.key_id)))


def test_signing_again_replaces_key_and_signature() -> None:
    assert NEW.sign(OLD.sign(STEP)) == NEW.sign(STEP)


@each_case("name", [name for name in FIELDS if name not in {"key", "signature"}])
def test_a_changed_field_is_refused(name: str) -> None:
    signed = OLD.sign(STEP)
    other = msgspec.structs.replace(signed, **{name: changed(getattr(signed, name))})
    assert other != signed
    assert refusal(trusting(OLD), other).code == "bad_signature"


@pytest.mark.parametrize("name", ["parent", "base_version", "base_root", "history", "history_after"])
def test_a_field_that_is_taken_away_or_put_in_is_refused(name: str) -> None:
    without = msgspec.structs.replace(OLD.sign(STEP), **{name: None})
    assert refusal(trusting(OLD), without).code == "bad_signature"
    put_in = msgspec.structs.replace(OLD.sign(FULL), **{name: getattr(STEP, name)})
    assert refusal(trusting(OLD), put_in).code == "bad_signature"


@pytest.mark.parametrize(
    "chunks",
    [
        (),
        STEP.chunks[:1],
        (*STEP.chunks, Chunk("e" * 64, 1)),
        (STEP.chunks[0], Chunk("e" * 64, 20)),
        (STEP.chunks[0], Chunk("d" * 64, 21)),
    ],
    ids=["none", "fewer", "more", "other", "longer"],
)
def test_other_chunks_are_refused(chunks: tuple[Chunk, ...]) -> None:
    other = msgspec.structs.replace(OLD.sign(STEP), chunks=chunks)
    assert refusal(trusting(OLD), other).code == "bad_signature"


def test_a_forger_is_refused_under_its_own_name_and_under_a_trusted_one() -> None:
    forged = FORGER.sign(STEP)
    own = refusal(trusting(OLD, NEW), forged)
    assert own.code == "unknown_key"
    assert FORGER.key_id in own.message
    assert OLD.key_id in own.message
    assert NEW.key_id in own.message
    assert own.facts == {"key": FORGER.key_id, "trusted": tuple(sorted((OLD.key_id, NEW.key_id)))}
    assert refusal(trusting(OLD), msgspec.structs.replace(forged, key=OLD.key_id)).code == "bad_signature"


def test_a_forger_that_signs_the_trusted_name_too_is_refused() -> None:
    named = msgspec.structs.replace(STEP, key=OLD.key_id)
    signature = Ed25519PrivateKey.from_private_bytes(bytes([3]) * 32).sign(signed_bytes(named)).hex()
    forged = msgspec.structs.replace(named, signature=signature)
    assert refusal(trusting(OLD), forged).code == "bad_signature"


def test_the_name_of_another_trusted_key_is_refused() -> None:
    swapped = msgspec.structs.replace(OLD.sign(STEP), key=NEW.key_id)
    assert refusal(trusting(OLD, NEW), swapped).code == "bad_signature"


@pytest.mark.parametrize("taken", [{"key": None, "signature": None}, {"signature": None}, {"key": None}])
def test_a_stripped_signature_is_refused(taken: dict[str, None]) -> None:
    refused = refusal(trusting(OLD), msgspec.structs.replace(OLD.sign(STEP), **taken))
    assert refused.code == "unsigned"
    assert OLD.key_id in refused.message


@each_case(
    "spelled",
    [
        str.upper,
        lambda text: text[:-2],
        lambda text: text + "00",
        lambda text: f" {text}",
        lambda text: text[:64] + " " + text[64:],
        lambda text: text[::-1],
        lambda text: "0" * len(text),
        lambda _: "",
        lambda _: "not hex",
        lambda _: "ä" * 128,
    ],
)
def test_a_signature_has_one_spelling(spelled: Any) -> None:
    signed = OLD.sign(STEP)
    assert signed.signature is not None
    other = msgspec.structs.replace(signed, signature=spelled(signed.signature))
    assert refusal(trusting(OLD), other).code == "bad_signature"


@pytest.mark.parametrize("key", ["", "0" * 16, "../../signing", OLD.key_id.upper(), OLD.key_id + "0", "x" * 10_000])
def test_an_unknown_name_is_refused_in_few_words(key: str) -> None:
    refused = refusal(trusting(OLD), msgspec.structs.replace(OLD.sign(STEP), key=key))
    assert refused.code == "unknown_key"
    assert len(refused.message) < 400


def test_other_messages_are_signed_alike() -> None:
    message, keyring = b"millrace-pointer\n{}", trusting(OLD)
    signature = OLD.sign_bytes(message)
    keyring.verify_bytes(OLD.key_id, signature, message)
    for key, given_signature, text, code in (
        (None, signature, message, "unsigned"),
        (OLD.key_id, None, message, "unsigned"),
        (NEW.key_id, signature, message, "unknown_key"),
        (OLD.key_id, signature, message + b" ", "bad_signature"),
        (OLD.key_id, signature, signed_bytes(STEP), "bad_signature"),
    ):
        with refused(code, "the pointer"):
            keyring.verify_bytes(key, given_signature, text, name="the pointer")


def test_an_empty_keyring_takes_nothing() -> None:
    assert "trusted: none" in refusal(Keyring({}), OLD.sign(STEP)).message


def test_old_and_new_keys_hold_until_the_old_one_is_retired() -> None:
    before, after = OLD.sign(FULL), NEW.sign(STEP)
    assert refusal(trusting(OLD), after).code == "unknown_key"
    both = trusting(OLD, NEW)
    both.verify(before)
    both.verify(after)
    retired = trusting(NEW)
    retired.verify(after)
    assert refusal(retired, before).code == "unknown_key"


@given(bit=st.integers(min_value=0, max_value=8 * 64 - 1))
@settings(max_examples=40, derandomize=True, deadline=None)
def test_any_flipped_bit_of_a_signature_is_refused(bit: int) -> None:
    signed = OLD.sign(STEP)
    assert signed.signature is not None
    raw = bytearray.fromhex(signed.signature)
    raw[bit // 8] ^= 1 << bit % 8
    assert refusal(trusting(OLD), msgspec.structs.replace(signed, signature=raw.hex())).code == "bad_signature"


@given(data=st.data())
@settings(max_examples=60, derandomize=True, deadline=None)
def test_any_changed_character_of_the_text_is_refused_or_says_the_same(data: st.DataObject) -> None:
    signed = OLD.sign(STEP)
    text = bytearray(msgspec.json.encode(signed))
    place = data.draw(st.integers(min_value=0, max_value=len(text) - 1))
    text[place] = data.draw(st.integers(min_value=0, max_value=127))
    try:
        read = parse_manifest(bytes(text))
        trusting(OLD).verify(read)
    except WeightsRefused:
        return
    assert read == signed


def test_what_was_signed_before_chunks_had_epochs_is_signed_still() -> None:
    """Written out, because no signature of an old home can be made again."""
    text = signed_bytes(msgspec.structs.replace(STEP, key="k"))
    assert b'"schema":2,' in text
    assert (
        b'"chunks":[{"blake3":"' + b"c" * 64 + b'","num_bytes":100},{"blake3":"' + b"d" * 64 + b'","num_bytes":20}],'
        in text
    )
    assert parse_manifest(text.removeprefix(b"millrace-manifest\n")).chunks == STEP.chunks


def test_the_epoch_of_a_chunk_is_signed() -> None:
    here = OLD.sign(msgspec.structs.replace(STEP, chunks=(Chunk("c" * 64, 100, 7), Chunk("d" * 64, 20, 7))))
    assert b'"num_bytes":100,"epoch":7}' in signed_bytes(here)
    trusting(OLD).verify(parse_manifest(msgspec.json.encode(here)))
    moved = msgspec.structs.replace(here, chunks=(Chunk("c" * 64, 100, 8), *here.chunks[1:]))
    assert refusal(trusting(OLD), moved).code == "bad_signature"
