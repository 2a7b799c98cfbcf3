"""Which snapshots are accepted, what they let through, and what is remembered."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.errors import WeightsRefused
from tests.unit.weights.examples import edge, refused
from tests.worlds.stores import NOW, POLICY, RUN, signer
from tests.worlds.versions import keyring
from weights.versions.manifest import Manifest
from weights.versions.pointer import Pointer
from weights.versions.signing import Keyring, Signer
from weights.versions.snapshot import (
    CLOCK_SECONDS,
    RENEW_SECONDS,
    VALID_SECONDS,
    Snapshot,
    list_version,
    next_snapshot,
    parse_snapshot,
    sign_snapshot,
)
from weights.versions.vouching import Snapshots

OURS, OLD, THIEF = signer(1), signer(2), signer(9)
HOUR = 3600.0


def version(number: int, by: Signer | None = OURS, **fields: Any) -> Manifest:
    base = number - 1 if number else None
    made = edge(number, base, parent=base, policy=POLICY, run=RUN, **fields)
    return made if by is None else by.sign(made)


V0, V1, V2 = version(0), version(1), version(2)


def snapshot(*versions: Manifest, after: Snapshot | None = None, now: float = NOW, **fields: Any) -> Snapshot:
    made = next_snapshot(
        after,
        policy=POLICY,
        run=RUN,
        now=now,
        versions={one.version: list_version([one]) for one in versions},
        pointers={},
    )
    return msgspec.structs.replace(made, **fields)


class Reader:
    """Somebody who reads; `now` is its clock."""

    def __init__(self, folder: Path, trusted: Keyring | None = None, **options: Any) -> None:
        self.now = NOW
        self.snapshots = Snapshots(trusted or keyring(OURS), folder, clock=lambda: self.now, **options)

    def see(self, found: Snapshot | bytes | None, by: Signer = OURS) -> str:
        """`accepted`, or the code of the refusal."""
        text = sign_snapshot(found, by) if isinstance(found, Snapshot) else found
        try:
            self.snapshots.see(POLICY, text)
        except WeightsRefused as error:
            return error.code
        return "accepted"

    def takes(self, manifest: Manifest) -> str:
        try:
            self.snapshots.verify(manifest)
        except WeightsRefused as error:
            return error.code
        return "taken"


FIRST = snapshot(V0, V1)


def test_until_one_was_seen_signatures_count_and_then_the_list(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    assert reader.see(None) == "accepted", "an older store has no list"
    assert [reader.takes(one) for one in (V0, V2, version(1, THIEF))] == ["taken", "taken", "unknown_key"]
    assert reader.see(FIRST) == "accepted"
    assert [reader.takes(one) for one in (V0, V1, V2)] == ["taken", "taken", "unlisted"]


def test_it_is_insisted_on_also_after_a_restart(tmp_path: Path) -> None:
    Reader(tmp_path).see(FIRST)
    reader = Reader(tmp_path)
    assert reader.see(None) == "missing_snapshot"
    assert reader.takes(V2) == "unlisted"
    assert reader.takes(V1) == "taken"


def test_another_manifest_of_a_listed_version_is_not_listed(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.see(FIRST)
    assert reader.takes(version(1, num_samples=7)) == "unlisted"
    assert reader.takes(edge(1, None, parent=0, policy=POLICY, run=RUN)) == "unlisted"


def test_a_key_may_retire_while_what_it_signed_stays_listed(tmp_path: Path) -> None:
    old = version(0, OLD)
    reader = Reader(tmp_path, keyring(OURS))
    assert reader.takes(old) == "unknown_key"
    assert reader.see(snapshot(old, V1)) == "accepted"
    assert reader.takes(old) == "taken"
    assert reader.takes(version(1, OLD)) == "unlisted", "it cannot sign anything more"


def test_numbers_do_not_go_back_and_one_number_is_one_list(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    second = snapshot(V2, after=FIRST)
    assert reader.see(second) == "accepted"
    assert reader.see(FIRST) == "stale_snapshot"
    assert reader.see(second) == "accepted"
    assert reader.see(msgspec.structs.replace(second, versions={})) == "stale_snapshot"
    assert Reader(tmp_path).see(FIRST) == "stale_snapshot"
    assert reader.takes(V2) == "taken"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"run": "run-2"}, "wrong_run"),
        ({"policy": "other"}, "corrupt_snapshot"),
        ({"schema": 2}, "corrupt_snapshot"),
        ({"issued_at": NOW + CLOCK_SECONDS + 1.0}, "clock_off"),
        ({"expires_at": NOW - CLOCK_SECONDS - 1.0}, "expired_snapshot"),
    ],
)
def test_what_is_not_accepted_says_why_and_changes_nothing(tmp_path: Path, change: dict[str, Any], code: str) -> None:
    reader = Reader(tmp_path, run=RUN)
    reader.see(FIRST)
    assert reader.see(snapshot(V2, after=FIRST, **change)) == code
    assert reader.takes(V2) == "unlisted"
    assert reader.takes(V1) == "taken"


@pytest.mark.parametrize("text", [b"", b"{}", b"[" * 100_000, b"\xff", b'{"schema": 1e999}', b"null"])
def test_junk_is_no_snapshot(tmp_path: Path, text: bytes) -> None:
    assert Reader(tmp_path).see(text) == "corrupt_snapshot"


def test_a_forged_or_changed_one_is_refused(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    assert reader.see(FIRST, by=THIEF) == "unknown_key"
    text = sign_snapshot(FIRST, OURS)
    assert reader.see(text.replace(b'"sequence":1', b'"sequence":9')) == "bad_signature"
    assert reader.see(msgspec.json.encode(FIRST)) == "unsigned"


@pytest.mark.parametrize("hours", [-2.0, 2.0])
def test_a_clock_that_is_two_hours_off_changes_nothing(tmp_path: Path, hours: float) -> None:
    reader = Reader(tmp_path)
    reader.now = NOW + hours * HOUR
    assert reader.see(FIRST) == "accepted"
    reader.now = FIRST.issued_at + RENEW_SECONDS + hours * HOUR
    assert not reader.snapshots.is_expired(POLICY)
    assert not reader.snapshots.is_late(POLICY)


def test_an_expired_one_keeps_what_is_served_and_takes_nothing_new(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.see(FIRST)
    reader.now = NOW + VALID_SECONDS + CLOCK_SECONDS + 1.0
    assert reader.snapshots.is_expired(POLICY)
    assert reader.takes(V1) == "taken", "an engine that restarts has to load it"
    pointer = Pointer(policy=POLICY, run=RUN, arm="live", version=1, epoch=1)
    reader.snapshots.check_pointer(pointer, serves=1)
    with refused("expired_snapshot", "keys renew"):
        reader.snapshots.check_pointer(pointer, serves=0)


def test_a_pointer_is_as_new_as_the_list(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.see(msgspec.structs.replace(FIRST, pointers={"live": 5}))
    for epoch, run, code in ((4, RUN, "stale_pointer"), (5, "run-2", "wrong_run")):
        with refused(code):
            reader.snapshots.check_pointer(
                Pointer(policy=POLICY, run=run, arm="live", version=1, epoch=epoch), serves=1
            )
    reader.snapshots.check_pointer(Pointer(policy=POLICY, run=RUN, arm="live", version=1, epoch=5), serves=0)


def test_the_publisher_takes_what_it_is_about_to_list(tmp_path: Path) -> None:
    publisher = Reader(tmp_path, publishes=True, run=RUN)
    publisher.see(FIRST)
    assert [publisher.takes(V2), publisher.takes(version(2, THIEF))] == ["taken", "unknown_key"]
    assert publisher.takes(OURS.sign(edge(2, 1, parent=1, policy=POLICY, run="run-2"))) == "wrong_run"


def test_the_store_is_asked_when_it_is_time_and_for_what_is_not_listed(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    assert reader.snapshots.is_due(POLICY)
    reader.see(FIRST)
    assert [reader.snapshots.is_due(POLICY, number) for number in (1, 2)] == [False, True]
    reader.now += 61.0
    assert reader.snapshots.is_due(POLICY, 1)


def test_a_snapshot_reads_back_as_it_was_signed() -> None:
    found = parse_snapshot(sign_snapshot(FIRST, OURS), POLICY, keyring(OURS))
    assert msgspec.structs.replace(found, key=None, signature=None) == FIRST


def test_what_this_disk_lost_is_named_and_mended_by_the_store(tmp_path: Path) -> None:
    Reader(tmp_path).see(FIRST)
    (tmp_path / f"{POLICY}.json").write_bytes(b"{")
    reader = Reader(tmp_path)
    assert reader.takes(V1) == "corrupt_snapshot"
    assert reader.see(snapshot(V2, after=FIRST)) == "accepted"
    assert [reader.takes(one) for one in (V1, V2)] == ["taken", "taken"]


def test_where_nothing_can_be_remembered_it_counts_in_this_process_and_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where the folder should be")
    reader = Reader(tmp_path / "taken")
    assert reader.see(FIRST) == "not_remembered"
    assert [reader.takes(one) for one in (V1, V2)] == ["taken", "unlisted"]
