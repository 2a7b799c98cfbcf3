import os
import threading
import uuid
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from obstore.store import MemoryStore

from contracts.errors import InvalidValue, StaleWrite, WeightsRefused
from tests.unit.weights.examples import refused
from weights.stores.bucket import BucketObjects, open_bucket
from weights.stores.opening import open_store_at
from weights.stores.store import WeightStore
from weights.versions.pointer import (
    MOST_BYTES,
    Pointer,
    PointerReader,
    move_pointer,
    parse_pointer,
    pointer_path,
    read_pointer,
)
from weights.versions.signing import Keyring, Signer

POLICY = "reservations"


def signer_of(number: int) -> Signer:
    return Signer(Ed25519PrivateKey.from_private_bytes(bytes([number] * 32)))


OURS, OTHER = signer_of(1), signer_of(2)
KEYRING = Keyring({OURS.key_id: OURS.public_key})


def s3_pointers() -> WeightStore:
    if (url := os.environ.get("MILLRACE_WEIGHTS")) is None:
        pytest.skip("no MILLRACE_WEIGHTS: run make test-services")
    return WeightStore(open_bucket(f"{url}/test-{uuid.uuid4().hex[:12]}"))


@pytest.fixture(params=["folder", "memory", pytest.param("s3", marks=pytest.mark.services)])
def pointers(request: pytest.FixtureRequest, tmp_path: Path) -> WeightStore:
    match request.param:
        case "folder":
            return open_store_at(tmp_path / "weights")
        case "memory":
            return WeightStore(BucketObjects(MemoryStore(), "memory"))
        case _:
            return s3_pointers()


def to(version: int, epoch: int, arm: str = "live", run: str = "run-1") -> Pointer:
    return Pointer(policy=POLICY, run=run, arm=arm, version=version, epoch=epoch)


def move(pointers: WeightStore, pointer: Pointer, signer: Signer | None = OURS) -> None:
    move_pointer(pointers, pointer, signer, KEYRING)


def text_at(pointers: WeightStore, arm: str = "live") -> bytes:
    text = pointers.read_small(pointer_path(POLICY, arm), MOST_BYTES)
    assert text is not None
    return text


def put(pointers: WeightStore, text: bytes) -> None:
    pointers.write_small(pointer_path(POLICY, "live"), text)


@pytest.fixture
def reader(pointers: WeightStore, tmp_path: Path) -> PointerReader:
    return PointerReader(pointers, POLICY, "live", KEYRING, tmp_path / "seen.json")


def seen_version(reader: PointerReader) -> int | None:
    found = reader.look()
    return found.version if found else None


def test_a_reader_sees_each_move_and_an_arm_without_pointer_as_none(
    pointers: WeightStore, reader: PointerReader
) -> None:
    assert reader.look() is None
    for version, epoch in ((0, 1), (1, 2), (0, 5)):
        move(pointers, to(version, epoch))
        seen = [reader.look(), reader.look()]
        assert [(found.version, found.epoch, found.key) for found in seen if found] == 2 * [
            (version, epoch, OURS.key_id)
        ]


def test_the_same_move_again_changes_nothing(pointers: WeightStore) -> None:
    move(pointers, to(3, 7))
    before = text_at(pointers)
    move(pointers, to(3, 7))
    assert text_at(pointers) == before


@pytest.mark.parametrize("late", [to(2, 6), to(4, 7), to(3, 7, run="run-2"), to(3, 6)])
def test_an_epoch_only_rises(pointers: WeightStore, late: Pointer) -> None:
    move(pointers, to(3, 7))
    with pytest.raises(StaleWrite, match="epoch 7"):
        move(pointers, late)
    assert parse_pointer(text_at(pointers), POLICY, "live", KEYRING).version == 3


def test_of_two_writers_one_is_told(pointers: WeightStore) -> None:
    path = pointer_path(POLICY, "live")
    for first in (b"first", b"first again"):

        def change(_: bytes | None, first: bytes = first) -> bytes:
            put(pointers, first)
            return b"second"

        assert not pointers.update_small(path, MOST_BYTES, change)
        assert text_at(pointers) == first


def test_a_write_whose_answer_was_lost_is_no_conflict(pointers: WeightStore) -> None:
    def change(_: bytes | None) -> bytes:
        put(pointers, b"first")
        return b"first"

    for _ in range(2):
        assert pointers.update_small(pointer_path(POLICY, "live"), MOST_BYTES, change)
    assert text_at(pointers) == b"first"


def test_many_writers_at_once_leave_the_highest_epoch_or_are_told(pointers: WeightStore) -> None:
    move(pointers, to(0, 1))
    barrier, moved, told = threading.Barrier(6), list[int](), list[int]()

    def write(epoch: int) -> None:
        barrier.wait()
        try:
            move(pointers, to(epoch, epoch))
            moved.append(epoch)
        except StaleWrite:
            told.append(epoch)

    threads = [threading.Thread(target=write, args=(epoch,)) for epoch in range(2, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(moved + told) == [2, 3, 4, 5, 6, 7]
    assert parse_pointer(text_at(pointers), POLICY, "live", KEYRING).epoch == max(moved)


def test_a_replayed_pointer_is_refused_also_after_a_restart(
    pointers: WeightStore, reader: PointerReader, tmp_path: Path
) -> None:
    move(pointers, to(1, 1))
    old = text_at(pointers)
    move(pointers, to(2, 2))
    assert reader.look() is not None
    put(pointers, old)
    for follower in (reader, PointerReader(pointers, POLICY, "live", KEYRING, tmp_path / "seen.json")):
        with refused("stale_pointer", "epoch 2 was seen"):
            follower.look()
    move(pointers, to(3, 3))
    assert seen_version(reader) == 3


def test_another_version_under_an_epoch_that_was_seen_is_refused(pointers: WeightStore, reader: PointerReader) -> None:
    move(pointers, to(1, 1))
    reader.look()
    forged = to(2, 1)
    elsewhere = WeightStore(BucketObjects(MemoryStore(), "elsewhere"))
    move(elsewhere, forged)
    put(pointers, text_at(elsewhere))
    with refused("stale_pointer"):
        reader.look()


def test_what_nobody_trusted_signed_is_refused_by_name_and_replaced_by_who_may(
    pointers: WeightStore, reader: PointerReader
) -> None:
    move(pointers, to(1, 1))
    good = text_at(pointers)
    elsewhere = WeightStore(BucketObjects(MemoryStore(), "elsewhere"))
    move(elsewhere, to(1, 1, arm="candidate"))
    changed = msgspec.json.encode(msgspec.structs.replace(msgspec.json.decode(good, type=Pointer), version=9, epoch=99))
    bad = {
        changed: "bad_signature",
        msgspec.json.encode(to(9, 99)): "unsigned",
        msgspec.json.encode(msgspec.structs.replace(to(9, 99), key=OTHER.key_id, signature="00")): "unknown_key",
        text_at(elsewhere, "candidate"): "wrong_pointer",
        good[:-1]: "corrupt_pointer",
        b"\xff": "corrupt_pointer",
        good.replace(b'"schema":1', b'"schema":2'): "corrupt_pointer",
    }
    for text, code in bad.items():
        put(pointers, text)
        with refused(code):
            reader.look()
    move(pointers, to(2, 2))
    assert seen_version(reader) == 2


def test_a_damaged_memory_is_named(pointers: WeightStore, reader: PointerReader, tmp_path: Path) -> None:
    move(pointers, to(1, 1))
    (tmp_path / "seen.json").write_bytes(b"{}")
    with pytest.raises(WeightsRefused, match=r"seen\.json"):
        reader.look()


def test_names_cannot_lead_elsewhere(pointers: WeightStore) -> None:
    for policy, arm in (("..", "live"), (POLICY, "../x"), (POLICY, ""), (POLICY, "a/b")):
        with pytest.raises(InvalidValue):
            read_pointer(pointers, policy, arm, None)
        with pytest.raises(InvalidValue):
            move_pointer(pointers, Pointer(policy=policy, run="run-1", arm=arm, version=0, epoch=1), None, None)
