import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from commands.replica import _follow, bring_pointed, run_replica
from contracts.errors import InvalidSettings, NotFound, Unavailable, WeightsRefused
from tests.unit.weights.examples import POLICY, bf16_policy, publish, same, stepped
from weights.replica.replica import Replica
from weights.stores.opening import open_store_at
from weights.tensors import read_safetensors
from weights.versions.keys import trusted_folder
from weights.versions.pointer import Pointer, PointerReader, move_pointer
from weights.versions.signing import Keyring, Signer, public_pem

SIGNER = Signer(Ed25519PrivateKey.from_private_bytes(bytes(32)))
KEYRING = Keyring({SIGNER.key_id: SIGNER.public_key})
WEIGHTS = [bf16_policy(), stepped(bf16_policy(), 0.03)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two signed versions; the first is live."""
    root = tmp_path / "store"
    versions = open_store_at(root, KEYRING)
    publish(versions, 0, WEIGHTS[0], signer=SIGNER)
    publish(versions, 1, WEIGHTS[1], parent=0, base=WEIGHTS[0], signer=SIGNER)
    point(root, 0, 1)
    return root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A replica's folder that trusts the publisher."""
    folder = tmp_path / "replica"
    trusted_folder(folder).mkdir(parents=True)
    (trusted_folder(folder) / f"{SIGNER.key_id}.pub").write_bytes(public_pem(SIGNER.public_key))
    return folder


def point(root: Path, version: int, epoch: int) -> None:
    pointer = Pointer(policy=POLICY, run="run-1", arm="live", version=version, epoch=epoch)
    move_pointer(open_store_at(root), pointer, SIGNER, KEYRING)


def run(store: Path, folder: Path, version: int | None = None, *, follow: bool = False, unsigned: bool = False) -> None:
    run_replica(
        policy=POLICY, store=str(store), folder=folder, version=version, follow=follow, every=0.0, unsigned=unsigned
    )


def test_it_says_which_file_serves_what_is_live(store: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for version in (0, 1):
        point(store, version, version + 1)
        run(store, folder)
        said, path = capsys.readouterr().out.strip().split(" at ")
        assert said == f"version {version}"
        assert same(read_safetensors(Path(path)), WEIGHTS[version])


def test_one_version_can_be_asked_for(store: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(store, folder, 1)
    assert capsys.readouterr().out.startswith("version 1 at ")
    with pytest.raises(InvalidSettings, match="one of them"):
        run(store, folder, 1, follow=True)


def test_without_a_trusted_key_nothing_is_taken_unless_that_is_said(store: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="keys/trusted"):
        run(store, tmp_path / "other")
    run(store, tmp_path / "other", unsigned=True)


def test_an_old_pointer_that_was_put_back_is_refused(store: Path, folder: Path) -> None:
    path = store / POLICY / "pointers" / "live.json"
    old = path.read_bytes()
    point(store, 1, 2)
    run(store, folder)
    path.write_bytes(old)
    with pytest.raises(WeightsRefused) as refused:
        run(store, folder)
    assert refused.value.code == "stale_pointer"


def test_a_pointer_to_another_run_brings_nothing(store: Path, folder: Path) -> None:
    pointers = open_store_at(store)
    move_pointer(pointers, Pointer(policy=POLICY, run="run-2", arm="live", version=1, epoch=9), SIGNER, KEYRING)
    reader = PointerReader(pointers, POLICY, "live", KEYRING, folder / "pointer.json")
    with Replica(folder, open_store_at(store, KEYRING), POLICY) as replica:
        with pytest.raises(WeightsRefused) as refused:
            bring_pointed(replica, reader)
        assert refused.value.code == "wrong_run"
        assert replica.serves is None


def test_nothing_live_is_said(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(NotFound, match="nothing is live"):
        run(tmp_path / "empty", folder)


def test_following_says_what_is_new_once_and_goes_on_after_failures(capsys: pytest.CaptureFixture[str]) -> None:
    stop = threading.Event()
    answers: Iterator[str | Unavailable] = iter(
        ["version 0", "version 0", Unavailable("the store is away"), Unavailable("the store is away"), "version 1"]
    )

    def step() -> str:
        answer = next(answers)
        if answer == "version 1":
            stop.set()
        if isinstance(answer, Unavailable):
            raise answer
        return answer

    _follow(step, stop, 0.0)
    assert capsys.readouterr().out.splitlines() == ["version 0", "unavailable: the store is away", "version 1"]
