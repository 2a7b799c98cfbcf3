"""Whose word on how far a replica got counts, and what a replica writes."""

from pathlib import Path

import msgspec
import pytest

from commands.replica import Announcer
from contracts.errors import InvalidValue, WeightsRefused
from tests.worlds.people import StoreFollower, StorePublisher
from tests.worlds.stores import NOW, POLICY, BucketPlace, Folder, StorePlace, signer
from tests.worlds.versions import keyring
from weights.versions.presence import Presence, announce, presence_path, present_replicas

REPLICA, OTHER, THIEF = signer(2), signer(3), signer(9)
DAY = 24 * 3600.0


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StorePlace:
    return Folder(tmp_path / "store") if request.param == "folder" else BucketPlace()


def said(name: str, version: int = 0, at: float = NOW) -> Presence:
    return Presence(name=name, version=version, history=None, at=at)


def heard(place: StorePlace, *trusted: object) -> tuple[list[str], list[str]]:
    """Names of the replicas that count, and why others do not."""
    junk: list[str] = []

    def note(_place: str, reason: WeightsRefused) -> None:
        junk.append(reason.code)

    found = present_replicas(
        place.open(None),
        POLICY,
        since=NOW - DAY,
        now=NOW,
        replicas=keyring(*trusted) if trusted else None,  # type: ignore[arg-type]
        on_junk=note,
    )
    return [one.name for one in found.replicas], junk


def test_with_trusted_keys_only_these_are_asked_for(place: StorePlace) -> None:
    store = place.open(None)
    announce(store, POLICY, said("eu"), REPLICA)
    announce(store, POLICY, said("us", at=NOW - 60.0), OTHER)
    announce(store, POLICY, said("thief"), THIEF)
    announce(store, POLICY, said("nobody"))
    assert heard(place, REPLICA, OTHER) == (["eu", "us"], [])
    assert heard(place, REPLICA) == (["eu"], [])
    assert sorted(heard(place)[0]) == ["eu", "nobody", "thief", "us"], "hints, where no replica's key is known"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"version": 1}, "bad_signature"),
        ({"at": NOW + 1.0}, "bad_signature"),
        ({"signature": None}, "unsigned"),
        ({"key": THIEF.key_id}, "unknown_key"),
    ],
)
def test_a_word_that_was_changed_is_not_believed(place: StorePlace, change: dict[str, object], code: str) -> None:
    announce(place.open(None), POLICY, said("eu"), REPLICA)
    path = presence_path(POLICY, REPLICA.key_id)
    signed = msgspec.json.decode(place.get(path) or b"", type=Presence)
    place.put(path, msgspec.json.encode(msgspec.structs.replace(signed, **change)))
    assert heard(place, REPLICA) == ([], [code])


def test_the_word_of_one_replica_or_policy_is_not_anothers(place: StorePlace) -> None:
    store = place.open(None)
    announce(store, POLICY, said("eu"), REPLICA)
    text = place.get(presence_path(POLICY, REPLICA.key_id)) or b""
    place.put(presence_path(POLICY, OTHER.key_id), text)
    assert heard(place, OTHER, REPLICA) == (["eu"], ["corrupt_presence"])
    announce(store, "other", said("eu"), REPLICA)
    place.put(presence_path(POLICY, REPLICA.key_id), place.get(f"other/replicas/{REPLICA.key_id}.json") or b"")
    assert heard(place, REPLICA) == ([], ["bad_signature"])


def test_what_is_old_or_of_tomorrow_does_not_count(place: StorePlace) -> None:
    store = place.open(None)
    for signer_, at in ((REPLICA, NOW - 2 * DAY), (OTHER, NOW + DAY)):
        announce(store, POLICY, said("x", at=at), signer_)
    assert heard(place, REPLICA, OTHER) == ([], [])


def test_a_name_that_leads_elsewhere_is_refused(place: StorePlace) -> None:
    for name in ("../up", "a/b", "", "A", "x" * 64, ".."):
        with pytest.raises(InvalidValue):
            announce(place.open(None), POLICY, said(name))


def test_a_replica_writes_its_own_word_and_nothing_else(place: StorePlace, tmp_path: Path) -> None:
    publisher = StorePublisher(place, tmp_path / "publisher")
    for version in (0, 1):
        publisher.publish(version)
        publisher.point(version, version + 1)
    before = place.files()
    follower = StoreFollower(place, tmp_path / "follower")
    tell = Announcer(follower.weights, POLICY, "eu", lambda: NOW, REPLICA)
    tell(follower.replica, follower.look())
    publisher.publish(2)
    publisher.point(2, 3)
    between = place.files()
    tell(follower.replica, follower.look())
    assert follower.serves == 2
    own = presence_path(POLICY, REPLICA.key_id)
    after = place.files()
    assert {path for path, content in after.items() if between.get(path) != content} == {own}
    assert own not in before
    assert between.keys() - after.keys() == set()
